#include "device/kernels/reduction.hpp"

#include <algorithm>
#include <cfenv>
#include <cstring>
#include <utility>

#include "device/kernels/reduce_body.hpp"

namespace gpudt::device {

std::int64_t element_bytes(Element element) {
  return with_element(element, [](auto sample) { return static_cast<std::int64_t>(sizeof sample); });
}

std::int64_t element_alignment(Element element) {
  return with_element(element, [](auto sample) { return static_cast<std::int64_t>(alignof(decltype(sample))); });
}

namespace {

struct Found {
  bool& found;
  template <Operator op>
  void run() const {
    found = true;
  }
};

}  // namespace

bool is_defined(Operator op, Element element) {
  bool found = false;
  with_element(element, [&](auto sample) { with_operator<decltype(sample)>(op, Found{found}); });
  return found;
}

namespace {

template <class T>
struct Combination {
  const char* in;
  char* inout;
  std::int64_t count;
  template <Operator op>
  void run() const {
    for (std::int64_t at = 0; at < count * static_cast<std::int64_t>(sizeof(T)); at += sizeof(T)) {
      T a, b;
      std::memcpy(&a, in + at, sizeof a);
      std::memcpy(&b, inout + at, sizeof b);
      b = combined<op>(a, b);
      std::memcpy(inout + at, &b, sizeof b);
    }
  }
};

}  // namespace

void combine_on_host(Operator op, Element element, const void* in, void* inout, std::int64_t count) {
  const auto* const from = static_cast<const char*>(in);
  auto* const to = static_cast<char*>(inout);
  std::fenv_t of_program;  // which may round otherwise, and flush subnormal floats
  std::fegetenv(&of_program);
  std::fesetenv(FE_DFL_ENV);
  if (element == Element::float16)
    with_operator<Float16>(op, Combination<Float16>{from, to, count});
  else if (element == Element::bfloat16)
    with_operator<Bfloat16>(op, Combination<Bfloat16>{from, to, count});
  std::fesetenv(&of_program);
}

namespace {

bool is_usual(Element element) {
  bool found = false;
  with_usual_element(element, [&](auto) { found = true; });
  return found;
}

/// Number of words that are reduced one by one.
template <class Args>
std::int64_t words_of(const Args& args) {
  return args.wide != 0 ? args.count * element_bytes(args.element) / 16 : args.count;
}

void lay_out(ReduceArgs& args, std::int64_t most_blocks) {
  const std::int64_t words = words_of(args);
  args.block = block_threads;
  args.grid = static_cast<std::int32_t>(
      std::clamp((words + block_threads - 1) / block_threads, std::int64_t{1}, std::max(most_blocks, std::int64_t{1})));
}

/// All but the completion and the launch. There must be room.
template <class Args>
void describe(const Reduction& reduction, Args& args) {
  args.sources = static_cast<std::int32_t>(reduction.from.size());
  args.destinations = static_cast<std::int32_t>(reduction.to.size());
  args.op = reduction.op;
  args.element = reduction.element;
  args.result = reduction.result;
  args.count = reduction.count;
  Address bits = 0;
  for (std::size_t i = 0; i < reduction.from.size(); ++i) bits |= args.from[i] = address_of(reduction.from[i]);
  for (std::size_t i = 0; i < reduction.to.size(); ++i) bits |= args.to[i] = address_of(reduction.to[i]);
  const std::int64_t bytes = element_bytes(args.element);
  args.wide = bits % sizeof(Word16) == 0 && sizeof(Word16) % static_cast<std::size_t>(bytes) == 0 ? 1 : 0;
}

}  // namespace

ReduceArgs plan_reduction(const Reduction& reduction, int multiprocessors) {
  ReduceArgs args = {};
  describe(reduction, args);
  lay_out(args, std::int64_t{multiprocessors} * blocks_for_several_gpus);
  return args;
}

std::optional<ShortReduction> shortened(const Reduction& reduction, const LaunchPolicy& policy) {
  const std::int64_t most_words = resident_blocks * policy.persistent.most_reduced_words;
  if (std::max(reduction.from.size(), reduction.to.size()) > ShortReduction::most_ranks ||
      !is_usual(reduction.element) || reduction.count * element_bytes(reduction.element) > most_words * widest_word)
    return std::nullopt;
  std::optional<ShortReduction> job(std::in_place);
  describe(reduction, *job);
  if (words_of(*job) > most_words) return std::nullopt;
  job->blocks = words_of(*job) > policy.persistent.most_reduced_words ? resident_blocks : 1;
  return job;
}

ReduceArgs lengthened(const ShortReduction& reduction) {
  ReduceArgs args = {};
  std::copy_n(reduction.from, reduction.sources, args.from);
  std::copy_n(reduction.to, reduction.destinations, args.to);
  args.count = reduction.count;
  args.sources = reduction.sources;
  args.destinations = reduction.destinations;
  args.op = reduction.op;
  args.element = reduction.element;
  args.result = reduction.result;
  args.wide = reduction.wide;
  lay_out(args, words_of(args));
  return args;
}

}  // namespace gpudt::device
