// The body of the reduction kernels (reduction.hpp), written once as host and device inline functions:
// cuda/reduce_kernels.cu runs it on GPU threads, run_on_host() serially on the host.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>

#include "device/kernels/float16.hpp"
#include "device/kernels/kernel_args.hpp"
#include "device/kernels/kernel_body.hpp"
#include "device/kernels/kernel_maps.hpp"
#include "device/kernels/reduction.hpp"

namespace gpudt::device {

/// A reduction as kernels do it, with room for `most` sources and destinations.
template <std::size_t most>
struct ReductionOf {
  static constexpr std::size_t most_ranks = most;
  Address from[most];
  Address to[most];    ///< 0: no result is stored
  std::int64_t count;  ///< elements
  std::int32_t sources, destinations;
  Operator op;
  Element element;
  Result result;
  std::uint8_t wide;  ///< 1: in words of 16 bytes, which are all aligned; 0: by elements
  Completion completion;
};

/// The arguments of a reduction kernel.
struct ReduceArgs : ReductionOf<Reduction::most_ranks> {
  std::int32_t grid, block;
};

/// A reduction that the persistent kernel does (resident_body.hpp).
struct ShortReduction : ReductionOf<16> {
  std::int32_t blocks;  ///< its thread blocks that do it
};

// --- elements --------------------------------------------------------------------------------------------------------

template <class Part>
struct Complex {
  Part re, im;
};

/// The layout in which MPI packs a pair: the whole is aligned to `alignment`, its members are not.
template <class Value, class Index, int alignment>
struct [[gnu::packed, gnu::aligned(alignment)]] ValueAndIndex {
  Value value;
  Index index;
};

template <class T>
inline constexpr bool is_complex = false;
template <class Part>
inline constexpr bool is_complex<Complex<Part>> = true;
template <class T>
inline constexpr bool is_pair = false;
template <class Value, class Index, int alignment>
inline constexpr bool is_pair<ValueAndIndex<Value, Index, alignment>> = true;
/// Whether operators compute with floats, and round each result.
template <class T>
inline constexpr bool is_half = std::is_same_v<T, Float16> || std::is_same_v<T, Bfloat16>;

/// Calls act(T{}) with the type of the element if the persistent kernel reduces such elements: those most used, since
/// compiling that kernel for all would take minutes.
template <class Act>
GPUDT_HD void with_usual_element(Element element, const Act& act) {
  switch (element) {
    case Element::int32:
      return act(std::int32_t{});
    case Element::int64:
      return act(std::int64_t{});
    case Element::uint32:
      return act(std::uint32_t{});
    case Element::uint64:
      return act(std::uint64_t{});
    case Element::float32:
      return act(float{});
    case Element::float64:
      return act(double{});
    case Element::float16:
      return act(Float16{});
    case Element::bfloat16:
      return act(Bfloat16{});
    default:
      return;
  }
}

/// Calls act(T{}) with the type of the element. Only on the host.
template <class Act>
auto with_element(Element element, Act act) {
  switch (element) {
    case Element::int8:
      return act(std::int8_t{});
    case Element::int16:
      return act(std::int16_t{});
    case Element::int32:
      return act(std::int32_t{});
    case Element::int64:
      return act(std::int64_t{});
    case Element::uint8:
      return act(std::uint8_t{});
    case Element::uint16:
      return act(std::uint16_t{});
    case Element::uint32:
      return act(std::uint32_t{});
    case Element::uint64:
      return act(std::uint64_t{});
    case Element::float32:
      return act(float{});
    case Element::float64:
      return act(double{});
    case Element::complex64:
      return act(Complex<float>{});
    case Element::complex128:
      return act(Complex<double>{});
    case Element::int16_int32:
      return act(ValueAndIndex<std::int16_t, std::int32_t, 2>{});
    case Element::int32_int32:
      return act(ValueAndIndex<std::int32_t, std::int32_t, 4>{});
    case Element::int64_int32:
      return act(ValueAndIndex<std::int64_t, std::int32_t, 4>{});
    case Element::float32_int32:
      return act(ValueAndIndex<float, std::int32_t, 4>{});
    case Element::float64_int32:
      return act(ValueAndIndex<double, std::int32_t, 4>{});
    case Element::float32_float32:
      return act(ValueAndIndex<float, float, 4>{});
    case Element::float64_float64:
      return act(ValueAndIndex<double, double, 8>{});
    case Element::float16:
      return act(Float16{});
    case Element::bfloat16:
      break;
  }
  return act(Bfloat16{});
}

// --- operators -------------------------------------------------------------------------------------------------------

template <class T>
inline constexpr bool is_number = std::is_arithmetic_v<T> || is_half<T>;

template <Operator op, class T>
inline constexpr bool defined = std::is_integral_v<T>;
template <class T>
inline constexpr bool defined<Operator::max, T> = is_number<T>;
template <class T>
inline constexpr bool defined<Operator::min, T> = is_number<T>;
template <class T>
inline constexpr bool defined<Operator::sum, T> = is_number<T> || is_complex<T>;
template <class T>
inline constexpr bool defined<Operator::prod, T> = is_number<T> || is_complex<T>;
template <class T>
inline constexpr bool defined<Operator::maxloc, T> = is_pair<T>;
template <class T>
inline constexpr bool defined<Operator::minloc, T> = is_pair<T>;

/// Sums and products of integers wrap around, as on the host.
template <class T>
using Wrapping = typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::type_identity<T>>::type;

template <class T>
GPUDT_HD T sum_of(T a, T b) {
  if constexpr (is_complex<T>)
    return {a.re + b.re, a.im + b.im};
  else if constexpr (is_half<T>)
    return T::nearest(a.value() + b.value());
  else
    return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
}

template <class T>
GPUDT_HD T product_of(T a, T b) {
  if constexpr (is_complex<T>)
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
  else if constexpr (is_half<T>)
    return T::nearest(a.value() * b.value());
  else if constexpr (std::is_integral_v<T>)  // short ones would be multiplied as int
    return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
  else
    return a * b;
}

template <class T>
GPUDT_HD bool is_less(T a, T b) {
  if constexpr (is_half<T>)
    return place_in_order(a) < place_in_order(b);
  else
    return a < b;
}

/// For equal values the lower index is the result.
template <Operator op, class T>
GPUDT_HD T located(T a, T b) {
  const auto value_a = a.value, value_b = b.value;
  const auto index_a = a.index, index_b = b.index;
  if (value_a == value_b) return index_b < index_a ? b : a;
  return (op == Operator::maxloc ? value_b > value_a : value_b < value_a) ? b : a;
}

/// Combines `a`, of lower ranks, with `b`.
template <Operator op, class T>
GPUDT_HD T combined(T a, T b) {
  if constexpr (op == Operator::max)
    return is_less(a, b) ? b : a;
  else if constexpr (op == Operator::min)
    return is_less(b, a) ? b : a;
  else if constexpr (op == Operator::sum)
    return sum_of(a, b);
  else if constexpr (op == Operator::prod)
    return product_of(a, b);
  else if constexpr (op == Operator::land)
    return static_cast<T>(a != 0 && b != 0);
  else if constexpr (op == Operator::lor)
    return static_cast<T>(a != 0 || b != 0);
  else if constexpr (op == Operator::lxor)
    return static_cast<T>((a != 0) != (b != 0));
  else if constexpr (op == Operator::band)
    return static_cast<T>(a & b);
  else if constexpr (op == Operator::bor)
    return static_cast<T>(a | b);
  else if constexpr (op == Operator::bxor)
    return static_cast<T>(a ^ b);
  else
    return located<op>(a, b);
}

template <Operator op, class T, class Act>
GPUDT_HD void act_if_defined(const Act& act) {
  if constexpr (defined<op, T>) act.template run<op>();
}

/// Calls act.run<op>() if the operator accepts such elements.
template <class T, class Act>
GPUDT_HD void with_operator(Operator op, const Act& act) {
  switch (op) {
    case Operator::max:
      return act_if_defined<Operator::max, T>(act);
    case Operator::min:
      return act_if_defined<Operator::min, T>(act);
    case Operator::sum:
      return act_if_defined<Operator::sum, T>(act);
    case Operator::prod:
      return act_if_defined<Operator::prod, T>(act);
    case Operator::land:
      return act_if_defined<Operator::land, T>(act);
    case Operator::lor:
      return act_if_defined<Operator::lor, T>(act);
    case Operator::lxor:
      return act_if_defined<Operator::lxor, T>(act);
    case Operator::band:
      return act_if_defined<Operator::band, T>(act);
    case Operator::bor:
      return act_if_defined<Operator::bor, T>(act);
    case Operator::bxor:
      return act_if_defined<Operator::bxor, T>(act);
    case Operator::maxloc:
      return act_if_defined<Operator::maxloc, T>(act);
    case Operator::minloc:
      return act_if_defined<Operator::minloc, T>(act);
  }
}

// --- words -----------------------------------------------------------------------------------------------------------

/// Elements that are loaded and stored together: one, or 16 aligned bytes of them.
template <class T>
struct NarrowWord {
  T lane[1];
};
template <class T>
struct alignas(16) WideWord {
  T lane[16 / sizeof(T)];
};
template <class T>
inline constexpr bool has_wide_words = 16 % sizeof(T) == 0;

template <Operator op, class Word>
GPUDT_HD Word combined_words(Word a, const Word& b) {
  // Left to itself, the compiler keeps the words in local memory if the operator is long.
  GPUDT_UNROLL
  for (int i = 0; i < static_cast<int>(std::extent_v<decltype(Word::lane)>); ++i)
    a.lane[i] = combined<op>(a.lane[i], b.lane[i]);
  return a;
}

/// Number of sources whose words a thread loads at the same time. If it waits for one after the other, all GPUs wait
/// for the same one: 16 MiB from each of four H200s took 210 us, and take 174.
inline constexpr int sources_at_once = 4;

/// Which words a thread reduces, one after the other: first, first + step, ... before `last`. `turn`: the destination
/// that it stores to first, another one in each thread block, so that not all GPUs store to the same one at a time.
struct WordPlaces {
  std::int64_t first, step, last;
  int turn;
};

template <class Word, class Memory>
GPUDT_HD void store_word(const Memory& memory, Address base, Address offset, const Word& word) {
  if (base != 0) memory.template store<Word>(base + offset, word);
}

template <Operator op, class Word, class Args, class Memory>
GPUDT_HD void reduce_word(const Args& args, const Memory& memory, Address offset, int turn) {
  Word sum = {};
  for (int first = 0; first < args.sources; first += sources_at_once) {
    Word next[sources_at_once] = {};
    GPUDT_UNROLL
    for (int i = 0; i < sources_at_once; ++i)
      if (first + i < args.sources) next[i] = memory.template load<Word>(args.from[first + i] + offset);
    GPUDT_UNROLL
    for (int i = 0; i < sources_at_once; ++i) {
      const int source = first + i;
      if (source >= args.sources) break;
      if (args.result == Result::exscan && source > 0) store_word(memory, args.to[source], offset, sum);
      sum = source == 0 ? next[i] : combined_words<op>(sum, next[i]);
      if (args.result == Result::scan) store_word(memory, args.to[source], offset, sum);
    }
  }
  if (args.result != Result::total) return;
  for (int i = 0; i < args.destinations; ++i) {
    store_word(memory, args.to[turn], offset, sum);
    turn = turn + 1 < args.destinations ? turn + 1 : 0;
  }
}

template <Operator op, class Word, class Args, class Memory>
GPUDT_HD void reduce_words(const Args& args, const Memory& memory, const WordPlaces& places) {
  for (std::int64_t at = places.first; at < places.last; at += places.step)
    reduce_word<op, Word>(args, memory, static_cast<Address>(at) * sizeof(Word), places.turn);
}

/// Number of wide words of a launch; the elements behind them are reduced one by one.
template <class T, class Args>
GPUDT_HD std::int64_t wide_words(const Args& args) {
  return args.wide != 0 ? args.count / static_cast<std::int64_t>(16 / sizeof(T)) : 0;
}

/// Returns the arguments, without the completion, for a GPU with that number of multiprocessors.
ReduceArgs plan_reduction(const Reduction& reduction, int multiprocessors);

/// The reduction for the persistent kernel, without the completion; none if that does not suit.
std::optional<ShortReduction> shortened(const Reduction& reduction, const LaunchPolicy& policy = launch_policy());
/// The arguments of a launch that does the same.
ReduceArgs lengthened(const ShortReduction& reduction);

template <class T, class Args, class Memory>
struct HostReduction {
  const Args& args;
  const Memory& memory;

  template <Operator op>
  void run() const {
    std::int64_t reduced = 0;
    if constexpr (has_wide_words<T>) {
      const std::int64_t words = wide_words<T>(args);
      reduce_words<op, WideWord<T>>(args, memory, {0, 1, words, 0});
      reduced = words * static_cast<std::int64_t>(16 / sizeof(T));
    }
    reduce_words<op, NarrowWord<T>>(args, memory, {reduced, 1, args.count, 0});
  }
};

/// Does the whole launch serially on the host.
template <class Memory>
void reduce_on_host(const ReduceArgs& args, const Memory& memory) {
  with_element(args.element, [&](auto sample) {
    using T = decltype(sample);
    with_operator<T>(args.op, HostReduction<T, ReduceArgs, Memory>{args, memory});
  });
}
template <class Memory>
void reduce_on_host(const ShortReduction& args, const Memory& memory) {
  with_usual_element(args.element, [&](auto sample) {
    using T = decltype(sample);
    with_operator<T>(args.op, HostReduction<T, ShortReduction, Memory>{args, memory});
  });
}

}  // namespace gpudt::device
