// Numbers for predefined handles, and the arithmetic of accumulates.
#include "interpose/rma/message.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <limits>
#include <span>

#include "datatype/basic.hpp"
#include "datatype/decode.hpp"
#include "datatype/reference.hpp"
#include "interpose/requests/arithmetic.hpp"
#include "interpose/requests/float16_types.hpp"
#include "interpose/support/errors.hpp"
#include "interpose/transport/device_buffer.hpp"

namespace gpudt::interpose {
namespace {

constexpr std::int64_t chunk_bytes = std::int64_t(1) << 30;  ///< bytes of the inner type of a Bytes too long for an int
constexpr std::int64_t combine_elements = std::int64_t(1) << 24;  ///< elements of one MPI_Reduce_local

std::span<const MPI_Op> operations() {
  static const std::array list = {MPI_SUM,  MPI_PROD, MPI_MIN,  MPI_MAX,    MPI_LAND,   MPI_LOR,     MPI_LXOR,
                                  MPI_BAND, MPI_BOR,  MPI_BXOR, MPI_MINLOC, MPI_MAXLOC, MPI_REPLACE, MPI_NO_OP};
  return list;
}

template <class Handle>
int index_of(std::span<const Handle> list, Handle handle) {
  const auto at = std::find(list.begin(), list.end(), handle);
  return at == list.end() ? -1 : static_cast<int>(at - list.begin());
}

MPI_Datatype first_of_size(std::initializer_list<MPI_Datatype> candidates, std::int64_t size) {
  for (const MPI_Datatype candidate : candidates)
    if (datatype::size_of(candidate) == size) return candidate;
  return MPI_DATATYPE_NULL;
}

/// MPI_Type_create_f90_integer, _real and _complex return predefined types without names; this returns a named one.
MPI_Datatype predefined(MPI_Datatype type, int combiner) {
  switch (combiner) {
    case MPI_COMBINER_F90_INTEGER:
      return first_of_size({MPI_INT8_T, MPI_INT16_T, MPI_INT32_T, MPI_INT64_T}, datatype::size_of(type));
    case MPI_COMBINER_F90_REAL:
      return first_of_size({MPI_FLOAT, MPI_DOUBLE, MPI_LONG_DOUBLE}, datatype::size_of(type));
    case MPI_COMBINER_F90_COMPLEX:
      return first_of_size({MPI_C_FLOAT_COMPLEX, MPI_C_DOUBLE_COMPLEX, MPI_C_LONG_DOUBLE_COMPLEX},
                           datatype::size_of(type));
    default:
      return type;
  }
}

void reduce(MPI_Op op, MPI_Datatype element, const char* in, char* inout, std::int64_t count, std::int64_t extent) {
  for (std::int64_t at = 0; at < count; at += combine_elements)
    PMPI_Reduce_local(in + at * extent, inout + at * extent, static_cast<int>(std::min(combine_elements, count - at)),
                      element, operator_for_mpi(op, element));
}

}  // namespace

int operation_index(MPI_Op op) {
  return index_of(operations(), op);
}
MPI_Op operation_at(int index) {
  return operations()[static_cast<std::size_t>(index)];
}
int element_index(MPI_Datatype type) {
  if (const auto element = float16_element(type))
    return static_cast<int>(datatype::element_types().size() + half_index(*element));
  return type == MPI_DATATYPE_NULL
             ? -1
             : index_of(datatype::element_types(), type);  // an MPI without Fortran has null entries
}
MPI_Datatype element_at(int index) {
  const std::span<const MPI_Datatype> named = datatype::element_types();
  const auto at = static_cast<std::size_t>(index);
  if (at < named.size()) return named[at];
  return float16_type(half_elements[at - named.size()]);
}

MPI_Datatype element_of(MPI_Datatype type) {
  if (is_float16_type(type)) return type;
  const datatype::Members members(type);
  if (const auto element = float16_copy(members)) return float16_type(*element);
  if (members.types().empty()) return predefined(type, members.combiner());
  MPI_Datatype element = MPI_DATATYPE_NULL;
  for (const MPI_Datatype member : members.types()) {
    if (datatype::size_of(member) == 0) continue;
    const MPI_Datatype own = element_of(member);
    if (own == MPI_DATATYPE_NULL || (element != MPI_DATATYPE_NULL && own != element)) return MPI_DATATYPE_NULL;
    element = own;
  }
  return element;
}

bool accumulates_float16(MPI_Op op, MPI_Datatype type) {
  if (!float16_types_exist() || op == MPI_REPLACE || op == MPI_NO_OP || datatype::basic_types.size(type) != 0)
    return false;
  if (active.load()) {  // without taking others apart
    const datatype::TypeInfoRef info = datatype::type_info(type);
    if (!info || info->widest_element() != 1) return false;  // MPI reports what is no type
  }
  const MPI_Datatype element = type == MPI_DATATYPE_NULL ? type : element_of(type);
  if (!is_float16_type(element)) return false;
  if (!arithmetic_of(op, element))
    throw MpiError(MPI_ERR_OP, "float16 and bfloat16 take MPI_SUM, MPI_PROD, MPI_MIN and MPI_MAX only");
  return true;
}

MPI_Datatype type_to_fetch(MPI_Datatype type) {
  return is_float16_type(type) ? MPI_INT16_T : type;
}

Bytes::Bytes(std::int64_t bytes) : count_(static_cast<int>(bytes)) {
  if (bytes <= std::numeric_limits<int>::max()) return;
  MPI_Datatype chunk = MPI_DATATYPE_NULL, chunks = MPI_DATATYPE_NULL;
  PMPI_Type_contiguous(static_cast<int>(chunk_bytes), MPI_BYTE, &chunk);
  PMPI_Type_contiguous(static_cast<int>(bytes / chunk_bytes), chunk, &chunks);
  const int lengths[] = {1, static_cast<int>(bytes % chunk_bytes)};
  const MPI_Aint displs[] = {0, static_cast<MPI_Aint>(bytes - bytes % chunk_bytes)};
  const MPI_Datatype types[] = {chunks, MPI_BYTE};
  PMPI_Type_create_struct(2, lengths, displs, types, &type_);
  PMPI_Type_commit(&type_);
  PMPI_Type_free(&chunk);
  PMPI_Type_free(&chunks);
  count_ = 1;
}

Bytes::~Bytes() {
  if (type_ != MPI_BYTE) PMPI_Type_free(&type_);
}

void combine(MPI_Op op, MPI_Datatype element, const void* in, void* inout, std::int64_t bytes) {
  if (op == MPI_NO_OP) return;
  if (op == MPI_REPLACE) {
    std::memcpy(inout, in, static_cast<std::size_t>(bytes));
    return;
  }
  const datatype::TypeInfoRef info = datatype::type_info(element);
  const datatype::Layout& layout = info->layout();
  const std::int64_t count = bytes / layout.size();
  if (layout.size() == layout.extent())
    return reduce(op, element, static_cast<const char*>(in), static_cast<char*>(inout), count, layout.extent());
  // Pair types with gaps: their operators need the gaps.
  std::vector<char> left(static_cast<std::size_t>(count * layout.extent())), right(left.size());
  datatype::unpack(layout, count, left.data(), 0, bytes, in);
  datatype::unpack(layout, count, right.data(), 0, bytes, inout);
  reduce(op, element, left.data(), right.data(), count, layout.extent());
  datatype::pack(layout, count, right.data(), 0, bytes, inout);
}

}  // namespace gpudt::interpose
