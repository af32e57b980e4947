// The predefined types that MPI_Init finds, by their handles: most messages in host memory consist of them. A look-up
// takes a nanosecond, MPI's inspection calls several each.
#pragma once

#include <mpi.h>

#include <array>
#include <cstdint>
#include <functional>
#include <span>

namespace gpudt::datatype {

/// All named types of MPI-4.1 sections 3.2.2, 6.9.4 and 19.1.9 that can be elements of messages, Fortran's included, in
/// an order that is the same in all processes. An MPI without Fortran has null handles in it.
std::span<const MPI_Datatype> element_types();

/// The place of a handle in a table of 2^bits.
template <int bits>
std::size_t slot_of(MPI_Datatype type) noexcept {
  return (std::hash<MPI_Datatype>{}(type)*std::uint64_t(0x9e3779b97f4a7c15)) >> (64 - bits);
}

/// The sizes of the predefined types without gaps. Filled once, before other threads read it; named types are never
/// freed.
class BasicTypes {
 public:
  void fill();
  /// The size in bytes; 0 if `type` is not in the table.
  int size(MPI_Datatype type) const noexcept { return entries_[find(type)].size; }

 private:
  struct Entry {
    MPI_Datatype type;
    int size;
  };
  static constexpr int slot_bits = 8;  // several times as many as types, so that searches are short

  /// The place of the type in the table, or where it would be.
  std::size_t find(MPI_Datatype type) const noexcept {
    std::size_t at = slot_of<slot_bits>(type);
    while (entries_[at].size != 0 && entries_[at].type != type) at = (at + 1) % entries_.size();
    return at;
  }

  std::array<Entry, std::size_t(1) << slot_bits> entries_ = {};
};
extern BasicTypes basic_types;

/// The size of any type in bytes; MPI provides that of types which are not basic.
inline std::int64_t size_of(MPI_Datatype type) {
  if (const int known = basic_types.size(type); known != 0) return known;
  MPI_Count size = 0;
  PMPI_Type_size_x(type, &size);
  return size;
}

}  // namespace gpudt::datatype
