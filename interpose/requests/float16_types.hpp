// The datatypes of gpudt_type_float16 and gpudt_type_bfloat16 (include/gpudt_mpi.h), and how MPI reduces them.
//
// MPI sees two bytes. It takes no predefined operator on them in reductions, and in accumulates some libraries add the
// bytes. So reductions get an operator of this library's in place of the predefined one, and accumulates do not go to
// MPI. MPICH has types of its own, MPIX_C_FLOAT16 and MPIX_BFLOAT16, which do less: MPICH 4.0 aborts in reductions of
// the first, 5.0 in products of the second, whose sums it rounds otherwise. Where a program reduces these, they are
// reduced like this library's.
#pragma once

#include <mpi.h>

#include <array>
#include <cstddef>
#include <optional>

#include "datatype/decode.hpp"
#include "device/device.hpp"

namespace gpudt::interpose {

inline constexpr std::array half_elements = {device::Element::float16, device::Element::bfloat16};
constexpr std::size_t half_index(device::Element element) {
  return element == half_elements[0] ? 0 : 1;
}

/// The type of float16 or bfloat16 elements, made in the first call. Thread-safe. Throws MpiError.
MPI_Datatype float16_type(device::Element element);
/// Frees the types and their operators. To be called while MPI works.
void float16_types_stop();

/// Whether this process has made such a type, of which others may consist.
bool float16_types_exist() noexcept;
bool is_float16_type(MPI_Datatype type) noexcept;
/// The elements of such a type, or of one of MPICH's; empty for all others, those that consist of them included.
std::optional<device::Element> float16_element(MPI_Datatype type) noexcept;
/// The elements of a copy of such a type, which MPI_Type_get_contents may return. `type`: taken apart.
std::optional<device::Element> float16_copy(const datatype::Members& type) noexcept;

/// The operator that MPI gets. Throws MpiError.
MPI_Op operator_for_mpi(MPI_Op op, MPI_Datatype type);

}  // namespace gpudt::interpose
