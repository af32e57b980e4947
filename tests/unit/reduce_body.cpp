// Reductions as kernels do them (device/kernels/reduce_body.hpp), on the host: every operator on every element that it
// takes, against plain loops over one element at a time.
#include <algorithm>
#include <complex>
#include <cstring>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "device/kernels/reduce_body.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/kernels_here.hpp"

using namespace gpudt::device;
using gpudt::test::run_here;

namespace {

constexpr std::size_t guard = 48;
constexpr char guard_byte = 0x5a;

const std::vector<Operator> operators = {Operator::max,  Operator::min,  Operator::sum,    Operator::prod,
                                         Operator::land, Operator::lor,  Operator::lxor,   Operator::band,
                                         Operator::bor,  Operator::bxor, Operator::maxloc, Operator::minloc};

// --- what MPI says of one element ------------------------------------------------------------------------------------

template <class T>
T number_expected(Operator op, T a, T b) {
  switch (op) {
    case Operator::max:
      return std::max(a, b);
    case Operator::min:
      return std::min(a, b);
    case Operator::sum:
      return static_cast<T>(a + b);
    case Operator::prod:
      return static_cast<T>(a * b);
    default:
      break;
  }
  if constexpr (std::is_integral_v<T>) {
    const bool x = static_cast<bool>(a), y = static_cast<bool>(b);
    switch (op) {
      case Operator::land:
        return static_cast<T>(x ? y : false);
      case Operator::lor:
        return static_cast<T>(x ? true : y);
      case Operator::lxor:
        return static_cast<T>(x ? !y : y);
      case Operator::band:
        return static_cast<T>(a & b);
      case Operator::bor:
        return static_cast<T>(a | b);
      default:
        return static_cast<T>(a ^ b);
    }
  }
  FAIL("an operator that the element is not for");
  return a;
}

template <class T>
T expected(Operator op, T a, T b) {
  if constexpr (is_complex<T>) {
    const std::complex<double> x(a.re, a.im), y(b.re, b.im), z = op == Operator::sum ? x + y : x * y;
    using Part = decltype(a.re);
    return {static_cast<Part>(z.real()), static_cast<Part>(z.imag())};
  } else if constexpr (is_pair<T>) {
    const double x = static_cast<double>(a.value), y = static_cast<double>(b.value);
    T found = a;
    if (op == Operator::maxloc ? y > x : y < x) found = b;
    if (x == y) found.index = std::min<decltype(+a.index)>(a.index, b.index);
    return found;
  } else if constexpr (is_half<T>) {
    return T::nearest(number_expected(op, a.value(), b.value()));
  } else {
    return number_expected(op, a, b);
  }
}

/// Small values, so that sums and products are exact, and some are equal.
template <class T>
T value(int rank, std::int64_t i) {
  const auto small = static_cast<int>((i * 7 + rank * 3 + i / 5) % 4);
  T made{};
  if constexpr (is_complex<T>) {
    made.re = static_cast<decltype(made.re)>(small);
    made.im = static_cast<decltype(made.im)>(1 - small);
  } else if constexpr (is_pair<T>) {
    made.value = static_cast<decltype(+made.value)>(small);
    made.index = static_cast<decltype(+made.index)>((rank * 5 + i) % 7);
  } else if constexpr (is_half<T>) {
    made = T::nearest(static_cast<float>(small));
  } else {
    made = static_cast<T>(small);
  }
  return made;
}

// --- buffers ---------------------------------------------------------------------------------------------------------

/// `count` elements, `skew` bytes beyond a multiple of 64, between guards.
template <class T>
class ReduceBuffer {
 public:
  ReduceBuffer(std::int64_t count, std::size_t skew)
      : bytes_(static_cast<std::size_t>(count) * sizeof(T)),
        memory_(guard + alignment + skew + bytes_ + guard, guard_byte) {
    const auto first = reinterpret_cast<std::uintptr_t>(memory_.data()) + guard;
    begin_ = guard + (alignment - first % alignment) % alignment + skew;
  }
  char* data() { return memory_.data() + begin_; }
  void put(std::int64_t i, const T& element) {
    std::memcpy(data() + static_cast<std::size_t>(i) * sizeof(T), &element, sizeof element);
  }
  bool holds(std::int64_t i, const T& element) {
    return std::memcmp(data() + static_cast<std::size_t>(i) * sizeof(T), &element, sizeof element) == 0;
  }
  bool guarded() const {
    return std::all_of(memory_.begin(), memory_.begin() + static_cast<std::ptrdiff_t>(begin_),
                       [](char c) { return c == guard_byte; }) &&
           std::all_of(memory_.begin() + static_cast<std::ptrdiff_t>(begin_ + bytes_), memory_.end(),
                       [](char c) { return c == guard_byte; });
  }
  bool untouched() const {
    return std::all_of(memory_.begin(), memory_.end(), [](char c) { return c == guard_byte; });
  }

 private:
  static constexpr std::size_t alignment = 64;
  std::size_t bytes_, begin_ = 0;
  std::vector<char> memory_;
};

struct ReduceCase {
  Operator op;
  Result result;
  int ranks;
  std::int64_t count;
  bool in_place;
  std::size_t skew;
};

void run(const ReduceCase& c, Element element, std::vector<void*>& from, std::vector<void*>& to) {
  const std::vector<const void*> sources(from.begin(), from.end());
  const Reduction reduction = {c.op, element, c.result, c.count, sources, to};
  const ReduceArgs args = plan_reduction(reduction, 4);
  const std::optional<ShortReduction> job = shortened(reduction);
  if (job && c.count % 2 == 0)
    run_here(*job);
  else
    run_here(job ? lengthened(*job) : args);
}

/// What each destination holds afterwards, at element i; false: nothing is stored.
template <class T>
bool expected_at(const ReduceCase& c, int rank, std::int64_t i, T& wanted) {
  const int last = c.result == Result::total ? c.ranks - 1 : c.result == Result::scan ? rank : rank - 1;
  if (last < 0) return false;
  wanted = value<T>(0, i);
  for (int other = 1; other <= last; ++other) wanted = expected(c.op, wanted, value<T>(other, i));
  return true;
}

template <class T>
void check(const ReduceCase& c, Element element) {
  std::vector<ReduceBuffer<T>> in, out;
  in.reserve(static_cast<std::size_t>(c.ranks));
  out.reserve(in.capacity());
  std::vector<void*> from, to;
  for (int rank = 0; rank < c.ranks; ++rank) {
    in.emplace_back(c.count, c.skew);
    out.emplace_back(c.count, c.skew);
    for (std::int64_t i = 0; i < c.count; ++i) in.back().put(i, value<T>(rank, i));
    from.push_back(in.back().data());
    const bool none = !c.in_place && rank == 1;
    to.push_back(none ? nullptr : c.in_place ? in.back().data() : out.back().data());
  }
  run(c, element, from, to);
  for (int rank = 0; rank < c.ranks; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    ReduceBuffer<T>& found = c.in_place ? in[at] : out[at];
    bool right = true;
    for (std::int64_t i = 0; i < c.count && to[at] != nullptr; ++i) {
      T wanted{};
      const bool stored = expected_at(c, rank, i, wanted);
      if (!stored) wanted = value<T>(rank, i);
      if (stored || c.in_place) right = right && found.holds(i, wanted);
    }
    CHECK(right);
    CHECK(in[at].guarded());
    CHECK(out[at].guarded());
    if (to[at] == nullptr) CHECK(out[at].untouched());
  }
}

}  // namespace

TEST_CASE("reductions of every element by every operator", "[kernel]") {
  int number = 0;
  for (int index = 0; index <= static_cast<int>(last_element); ++index) {
    const auto element = static_cast<Element>(index);
    for (const Operator op : operators) {
      if (!is_defined(op, element)) continue;
      for (const Result result : {Result::total, Result::scan, Result::exscan})
        for (const std::int64_t count : {1, 7, 64, 1027}) {
          const int ranks = 1 + number % 11;  // more than a thread loads from at the same time, too
          const auto skew = static_cast<std::size_t>(number % 3 * element_alignment(element));
          const ReduceCase c = {op, result, ranks, count, number % 2 == 1, skew};
          INFO("element " << index << ", operator " << static_cast<int>(op) << ", result " << static_cast<int>(result)
                          << ", " << count << " elements of " << ranks << " ranks, skew " << skew);
          with_element(element, [&](auto sample) { check<decltype(sample)>(c, element); });
          ++number;
        }
    }
  }
  CHECK(number > 1000);
}

TEST_CASE("which reductions are short", "[kernel]") {
  alignas(16) static char memory[64];
  const auto blocks = [](Element element, std::int64_t count, std::size_t ranks, std::size_t skew = 0) {
    const std::vector<const void*> from(ranks, memory + skew);
    const std::vector<void*> to(ranks, memory + skew);
    const Reduction reduction = {Operator::sum, element, Result::total, count, from, to};
    const ReduceArgs args = plan_reduction(reduction, 4);
    const std::optional<ShortReduction> job = shortened(reduction);
    if (job) {
      const ReduceArgs again = lengthened(*job);
      CHECK((again.grid == args.grid && again.block == args.block && again.wide == args.wide));
      CHECK(std::equal(args.from, args.from + ranks, again.from));
      CHECK(std::equal(args.to, args.to + ranks, again.to));
    }
    return job ? job->blocks : 0;
  };
  constexpr int all = 8;
  CHECK(blocks(Element::float32, 1, 16) == 1);
  CHECK(blocks(Element::float32, 1, 17) == 0);
  CHECK(blocks(Element::float32, 4096, 2) == 1);
  CHECK(blocks(Element::float32, 4100, 2) == all);
  CHECK(blocks(Element::float32, all * 4096, 2) == all);
  CHECK(blocks(Element::float32, all * 4096 + 4, 2) == 0);
  CHECK(blocks(Element::float32, 1024, 2, 4) == 1);
  CHECK(blocks(Element::float32, 1025, 2, 4) == all);
  CHECK(blocks(Element::float16, 1, 2) == 1);
  CHECK(blocks(Element::int8, 1, 2) == 0);
  CHECK(blocks(Element::complex64, 1, 2) == 0);
}

TEST_CASE("sums and products of integers wrap around", "[kernel]") {
  CHECK(combined<Operator::sum>(std::int32_t{0x7fffffff}, std::int32_t{1}) == std::int32_t(-0x7fffffff - 1));
  CHECK(combined<Operator::prod>(std::int16_t{0x4000}, std::int16_t{2}) == std::int16_t(-0x7fff - 1));
  CHECK(combined<Operator::prod>(std::int64_t{1} << 62, std::int64_t{4}) == 0);
}

TEST_CASE("operators take the elements that MPI says", "[kernel]") {
  CHECK(is_defined(Operator::sum, Element::complex128));
  CHECK(is_defined(Operator::max, Element::bfloat16));
  CHECK_FALSE(is_defined(Operator::bor, Element::float16));
  CHECK_FALSE(is_defined(Operator::max, Element::complex64));
  CHECK_FALSE(is_defined(Operator::band, Element::float32));
  CHECK_FALSE(is_defined(Operator::sum, Element::int32_int32));
  CHECK(is_defined(Operator::minloc, Element::float64_int32));
  CHECK_FALSE(is_defined(Operator::maxloc, Element::float64));
  CHECK(element_bytes(Element::float64_int32) == 12);
  CHECK(element_bytes(Element::int16_int32) == 6);
  CHECK(element_alignment(Element::float64_int32) == 4);
}
