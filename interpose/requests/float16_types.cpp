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

#ifdef GPUDT_MPI_LARGE_COUNTS  // otherwise MPI_Reduce_local_c would fail beyond 2^31 elements
using Count = MPI_Count;
constexpr auto create_operator = PMPI_Op_create_c;
#else
using Count = int;
constexpr auto create_operator = PMPI_Op_create;
#endif

/// What MPI calls in place of a predefined operator: MPI-4.1 section 6.9.5.
template <Operator op, Element element>
void combine(void* in, void* inout, Count* count, MPI_Datatype*) {
  device::combine_on_host(op, element, in, inout, *count);
}
using Combine = decltype(&combine<Operator::sum, Element::float16>);

/// By the numbers of the operators.
template <Element element>
constexpr std::array<Combine, 4> functions = {combine<Operator::max, element>, combine<Operator::min, element>,
                                              combine<Operator::sum, element>, combine<Operator::prod, element>};
static_assert(Operator{0} == Operator::max && Operator{1} == Operator::min && Operator{2} == Operator::sum &&
              Operator{3} == Operator::prod);

struct HalfType {
  const Element element;
  const char* const name;
  const std::array<Combine, 4>& combine;
  std::atomic<MPI_Datatype> type{MPI_DATATYPE_NULL};  ///< stored last
  std::array<MPI_Op, 4> operators = {MPI_OP_NULL, MPI_OP_NULL, MPI_OP_NULL, MPI_OP_NULL};

  /// Marks the type and all its copies: the displacement of a second block, which is empty. No program has such blocks
  /// at a distance that reads "gpudt".
  std::int64_t mark() const { return 0x6770756474 + static_cast<std::int64_t>(element); }
  void make();
  void free();

 private:
  void free_operators();
};

std::array<HalfType, 2> types = {{{Element::float16, "GPUDT_FLOAT16", functions<Element::float16>},
                                  {Element::bfloat16, "GPUDT_BFLOAT16", functions<Element::bfloat16>}}};
Mutex make_mutex;

void check(int code) {
  if (code != MPI_SUCCESS) throw MpiError(MPI_ERR_OTHER, "the MPI library cannot make the datatype or its operators");
}

void HalfType::make() try {
  for (std::size_t i = 0; i < operators.size(); ++i) check(create_operator(combine[i], /*commute=*/1, &operators[i]));
  const int lengths[] = {2, 0};
  const MPI_Aint displacements[] = {0, static_cast<MPI_Aint>(mark())};
  MPI_Datatype made = MPI_DATATYPE_NULL;
  check(PMPI_Type_create_hindexed(2, lengths, displacements, MPI_BYTE, &made));
  check(PMPI_Type_commit(&made));
  PMPI_Type_set_name(made, name);
  type.store(made, std::memory_order_release);
} catch (const MpiError&) {
  free_operators();
  throw;
}

void HalfType::free() {
  MPI_Datatype made = type.exchange(MPI_DATATYPE_NULL);
  if (made == MPI_DATATYPE_NULL) return;
  datatype::forget_type(made);
  PMPI_Type_free(&made);
  free_operators();
}

void HalfType::free_operators() {
  for (MPI_Op& each : operators)
    if (each != MPI_OP_NULL) PMPI_Op_free(&each);
}

HalfType& type_of(Element element) {
  return types[half_index(element)];
}

const HalfType* find(MPI_Datatype type) noexcept {
  for (const HalfType& each : types)
    if (type != MPI_DATATYPE_NULL && each.type.load(std::memory_order_acquire) == type) return &each;
  return nullptr;
}

}  // namespace

MPI_Datatype float16_type(Element element) {
  HalfType& found = type_of(element);
  if (found.type.load(std::memory_order_acquire) == MPI_DATATYPE_NULL) {
    const LockGuard lock(make_mutex);
    if (found.type.load(std::memory_order_relaxed) == MPI_DATATYPE_NULL) found.make();
  }
  return found.type.load(std::memory_order_acquire);
}

void float16_types_stop() {
  for (HalfType& each : types) each.free();
}

bool float16_types_exist() noexcept {
  for (const HalfType& each : types)
    if (each.type.load(std::memory_order_relaxed) != MPI_DATATYPE_NULL) return true;
  return false;
}

bool is_float16_type(MPI_Datatype type) noexcept {
  return find(type) != nullptr;
}

std::optional<Element> float16_element(MPI_Datatype type) noexcept {
  if (type == MPI_DATATYPE_NULL) return std::nullopt;
#if defined(MPICH_VERSION) && defined(MPIX_C_FLOAT16)  // not that of Open MPI's mpi-ext.h
  constexpr MPI_Datatype mpix_bfloat16 = 0x4c00024c;   // of MPICH 5, under which the build for MPICH 4 runs, too
  if (type == MPIX_C_FLOAT16) return Element::float16;
  if (type == mpix_bfloat16) return Element::bfloat16;
#endif
  const HalfType* const found = find(type);
  return found != nullptr ? std::optional(found->element) : std::nullopt;
}

std::optional<Element> float16_copy(const datatype::Members& type) noexcept {
  if (type.combiner() != MPI_COMBINER_HINDEXED) return std::nullopt;
  for (const HalfType& each : types)
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
