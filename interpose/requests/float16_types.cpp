#include "interpose/requests/float16_types.hpp"

#include <algorithm>
#include <array>
#include <atomic>

#include "base/mutex.hpp"
#include "interpose/requests/arithmetic.hpp"
#include "interpose/support/errors.hpp"

namespace gpudt::interpose {
namespace {

using device::Element;
using device::Operator;

/// What MPI calls in place of a predefined operator: MPI-4.1 section 6.9.5.
template <Operator op, Element element>
void combine(void* in, void* inout, int* count, MPI_Datatype*) {
  device::combine_on_host(op, element, in, inout, *count);
}

/// In the order of `Operator`.
template <Element element>
constexpr std::array<MPI_User_function*, 4> functions = {
    combine<Operator::max, element>, combine<Operator::min, element>, combine<Operator::sum, element>,
    combine<Operator::prod, element>};

struct Float16Type {
  const Element element;
  const char* const name;
  const std::array<MPI_User_function*, 4>& combine;
  std::atomic<MPI_Datatype> type{MPI_DATATYPE_NULL};  ///< stored last
  std::array<MPI_Op, 4> operators{};

  /// Marks the type and all its copies: the displacement of a second block, which is empty.
  std::int64_t mark() const { return 0x6770756474 + static_cast<std::int64_t>(element); }
  void make();
  void free();
};

std::array<Float16Type, 2> types = {{{Element::float16, "GPUDT_FLOAT16", functions<Element::float16>},
                                     {Element::bfloat16, "GPUDT_BFLOAT16", functions<Element::bfloat16>}}};
Mutex make_mutex;

void check(int code) {
  if (code != MPI_SUCCESS) throw MpiError(MPI_ERR_OTHER, "the MPI library cannot make the datatype or its operators");
}

void Float16Type::make() {
  const int lengths[] = {2, 0};
  const MPI_Aint displacements[] = {0, static_cast<MPI_Aint>(mark())};
  MPI_Datatype made = MPI_DATATYPE_NULL;
  check(PMPI_Type_create_hindexed(2, lengths, displacements, MPI_BYTE, &made));
  check(PMPI_Type_commit(&made));
  PMPI_Type_set_name(made, name);
  for (std::size_t i = 0; i < operators.size(); ++i) check(PMPI_Op_create(combine[i], /*commute=*/1, &operators[i]));
  type.store(made, std::memory_order_release);
}

void Float16Type::free() {
  MPI_Datatype made = type.exchange(MPI_DATATYPE_NULL);
  if (made == MPI_DATATYPE_NULL) return;
  datatype::forget_type(made);
  PMPI_Type_free(&made);
  for (MPI_Op& each : operators) PMPI_Op_free(&each);
}

Float16Type& type_of(Element element) {
  return types[element == Element::bfloat16 ? 1 : 0];
}

}  // namespace

MPI_Datatype float16_type(Element element) {
  Float16Type& found = type_of(element);
  if (found.type.load(std::memory_order_acquire) == MPI_DATATYPE_NULL) {
    const LockGuard lock(make_mutex);
    if (found.type.load(std::memory_order_relaxed) == MPI_DATATYPE_NULL) found.make();
  }
  return found.type.load(std::memory_order_acquire);
}

void float16_types_stop() {
  for (Float16Type& each : types) each.free();
}

bool float16_types_exist() noexcept {
  for (const Float16Type& each : types)
    if (each.type.load(std::memory_order_relaxed) != MPI_DATATYPE_NULL) return true;
  return false;
}

bool is_float16_type(MPI_Datatype type) noexcept {
  for (const Float16Type& each : types)
    if (type != MPI_DATATYPE_NULL && each.type.load(std::memory_order_acquire) == type) return true;
  return false;
}

std::optional<Element> float16_element(MPI_Datatype type) noexcept {
#ifdef MPIX_C_FLOAT16                                 // MPICH
  constexpr MPI_Datatype mpix_bfloat16 = 0x4c00024c;  // of MPICH 5, under which the build for MPICH 4 runs, too
  if (type == MPIX_C_FLOAT16) return Element::float16;
  if (type == mpix_bfloat16) return Element::bfloat16;
#endif
  if (type == MPI_DATATYPE_NULL) return std::nullopt;
  for (const Float16Type& each : types)
    if (each.type.load(std::memory_order_acquire) == type) return each.element;
  return std::nullopt;
}

std::optional<Element> float16_copy(const datatype::Members& type) noexcept {
  if (type.combiner() != MPI_COMBINER_HINDEXED) return std::nullopt;
  for (const Float16Type& each : types)
    if (std::ranges::equal(type.numbers(), std::array<std::int64_t, 5>{2, 2, 0, 0, each.mark()})) return each.element;
  return std::nullopt;
}

MPI_Op operator_for_mpi(MPI_Op op, MPI_Datatype type) {
  if (!float16_element(type)) return op;
  const std::optional<Arithmetic> arithmetic = arithmetic_of(op, type);
  if (!arithmetic) return op;  // MPI refuses it
  float16_type(arithmetic->element);
  return type_of(arithmetic->element).operators[static_cast<std::size_t>(arithmetic->op)];
}

}  // namespace gpudt::interpose
