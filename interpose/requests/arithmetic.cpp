#include "interpose/requests/arithmetic.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <vector>

#include "base/never_destroyed.hpp"
#include "interpose/requests/float16_types.hpp"

namespace gpudt::interpose {
namespace {

using device::Element;
using device::Operator;

/// The groups of datatypes by which MPI-4.1 section 6.9.2 defines what an operator takes.
enum class Group { c_integer, fortran_integer, floating, complex, logical, byte, several_languages, pair };

struct KnownType {
  MPI_Datatype type;
  Group group;
  Element element;
};

Element signed_of(int bytes) {
  return bytes == 1 ? Element::int8 : bytes == 2 ? Element::int16 : bytes == 4 ? Element::int32 : Element::int64;
}

Element unsigned_of(int bytes) {
  return bytes == 1 ? Element::uint8 : bytes == 2 ? Element::uint16 : bytes == 4 ? Element::uint32 : Element::uint64;
}

/// Handles are numbers or pointers.
constexpr std::less<MPI_Datatype> comes_before;

/// The types in order of their handles. Several names may have one handle.
std::vector<KnownType> make_types() {
  std::vector<KnownType> types;
  // Only types of the size of an element; an MPI without Fortran has null handles.
  const auto add = [&](MPI_Datatype type, Group group, auto element_of) {
    int bytes = 0;
    if (type == MPI_DATATYPE_NULL || PMPI_Type_size(type, &bytes) != MPI_SUCCESS) return;
    const Element element = element_of(bytes);
    if (device::element_bytes(element) == bytes) types.push_back({type, group, element});
  };
  const auto always = [](Element element) { return [element](int) { return element; }; };
  const auto floating_of = [](int bytes) { return bytes == 4 ? Element::float32 : Element::float64; };
  const auto complex_of = [](int bytes) { return bytes == 8 ? Element::complex64 : Element::complex128; };
  for (const MPI_Datatype type : {MPI_SIGNED_CHAR, MPI_SHORT, MPI_INT, MPI_LONG, MPI_LONG_LONG, MPI_INT8_T, MPI_INT16_T,
                                  MPI_INT32_T, MPI_INT64_T})
    add(type, Group::c_integer, signed_of);
  for (const MPI_Datatype type : {MPI_UNSIGNED_CHAR, MPI_UNSIGNED_SHORT, MPI_UNSIGNED, MPI_UNSIGNED_LONG,
                                  MPI_UNSIGNED_LONG_LONG, MPI_UINT8_T, MPI_UINT16_T, MPI_UINT32_T, MPI_UINT64_T})
    add(type, Group::c_integer, unsigned_of);
  for (const MPI_Datatype type : {MPI_INTEGER, MPI_INTEGER1, MPI_INTEGER2, MPI_INTEGER4, MPI_INTEGER8})
    add(type, Group::fortran_integer, signed_of);
  for (const MPI_Datatype type : {MPI_AINT, MPI_OFFSET, MPI_COUNT}) add(type, Group::several_languages, signed_of);
  for (const MPI_Datatype type : {MPI_FLOAT, MPI_DOUBLE, MPI_REAL, MPI_REAL4, MPI_REAL8, MPI_DOUBLE_PRECISION})
    add(type, Group::floating, floating_of);
  for (const MPI_Datatype type : {MPI_C_FLOAT_COMPLEX, MPI_C_DOUBLE_COMPLEX, MPI_CXX_FLOAT_COMPLEX,
                                  MPI_CXX_DOUBLE_COMPLEX, MPI_COMPLEX, MPI_DOUBLE_COMPLEX})
    add(type, Group::complex, complex_of);
  for (const MPI_Datatype type : {MPI_C_BOOL, MPI_CXX_BOOL}) add(type, Group::logical, unsigned_of);
  add(MPI_BYTE, Group::byte, unsigned_of);
  add(MPI_SHORT_INT, Group::pair, always(Element::int16_int32));
  add(MPI_2INT, Group::pair, always(Element::int32_int32));
  add(MPI_LONG_INT, Group::pair, always(Element::int64_int32));
  add(MPI_FLOAT_INT, Group::pair, always(Element::float32_int32));
  add(MPI_DOUBLE_INT, Group::pair, always(Element::float64_int32));
  add(MPI_2INTEGER, Group::pair, always(Element::int32_int32));
  add(MPI_2REAL, Group::pair, always(Element::float32_float32));
  add(MPI_2DOUBLE_PRECISION, Group::pair, always(Element::float64_float64));
  std::ranges::stable_sort(types, comes_before, &KnownType::type);
  return types;
}

/// The predefined datatypes that GPUs can reduce.
struct KnownTypes {
  std::vector<KnownType> list = make_types();
};

std::optional<Operator> operator_of(MPI_Op op) {
  constexpr Operator operators[] = {Operator::max,  Operator::min,  Operator::sum,    Operator::prod,
                                    Operator::land, Operator::lor,  Operator::lxor,   Operator::band,
                                    Operator::bor,  Operator::bxor, Operator::maxloc, Operator::minloc};
  const MPI_Op handles[] = {MPI_MAX,  MPI_MIN,  MPI_SUM, MPI_PROD, MPI_LAND,   MPI_LOR,
                            MPI_LXOR, MPI_BAND, MPI_BOR, MPI_BXOR, MPI_MAXLOC, MPI_MINLOC};
  const auto* const found = std::find(std::begin(handles), std::end(handles), op);
  if (found == std::end(handles)) return std::nullopt;
  return operators[found - std::begin(handles)];
}

/// Whether MPI takes the operator for the group: GPUs do nothing that MPI refuses.
bool takes(Operator op, Group group) {
  switch (op) {
    case Operator::max:
    case Operator::min:
      return group == Group::c_integer || group == Group::fortran_integer || group == Group::floating ||
             group == Group::several_languages;
    case Operator::sum:
    case Operator::prod:
      return group == Group::c_integer || group == Group::fortran_integer || group == Group::floating ||
             group == Group::complex || group == Group::several_languages;
    case Operator::land:
    case Operator::lor:
    case Operator::lxor:
      return group == Group::c_integer || group == Group::logical;
    case Operator::band:
    case Operator::bor:
    case Operator::bxor:
      return group == Group::c_integer || group == Group::fortran_integer || group == Group::byte ||
             group == Group::several_languages;
    case Operator::maxloc:
    case Operator::minloc:
      break;
  }
  return group == Group::pair;
}

std::optional<Arithmetic> look_up(MPI_Op op, MPI_Datatype type) {
  static const std::vector<KnownType>& types = never_destroyed<KnownTypes>().list;
  const std::optional<Operator> known = operator_of(op);
  if (!known) return std::nullopt;
  const auto found = std::ranges::lower_bound(types, type, comes_before, &KnownType::type);
  if (found == types.end() || found->type != type || !takes(*known, found->group)) return std::nullopt;
  return Arithmetic{*known, found->element};
}

}  // namespace

// Remembers the last result of look_up(), since programs repeat it. It stays valid: predefined handles are never freed,
// and the result for all others is empty.
std::optional<Arithmetic> arithmetic_of(MPI_Op op, MPI_Datatype type) {
  struct Last {
    MPI_Op op = MPI_OP_NULL;
    MPI_Datatype type = MPI_DATATYPE_NULL;
    std::optional<Arithmetic> found = {};
  };
  thread_local Last last;
  const bool repeated = last.op == op && last.type == type;
  if (repeated && last.found) return last.found;
  if (const std::optional<Element> element = float16_element(type)) {
    const std::optional<Operator> known = operator_of(op);
    return known && takes(*known, Group::floating) ? std::optional(Arithmetic{*known, *element}) : std::nullopt;
  }
  if (!repeated) last = {op, type, look_up(op, type)};
  return last.found;
}

bool is_predefined_operator(MPI_Op op) {
  return op == MPI_OP_NULL || op == MPI_REPLACE || op == MPI_NO_OP || operator_of(op).has_value();
}

}  // namespace gpudt::interpose
