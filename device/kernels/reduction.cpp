#include "device/kernels/reduction.hpp"

#include <algorithm>
#include <cfenv>
#include <cstring>

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

/// The same reduction without the completion; there must be room.
template <class Args, class Given>
Args with_room(const Given& given) {
  Args args = {};
  std::copy_n(given.from, given.sources, args.from);
  std::copy_n(given.to, given.destinations, args.to);
  args.count = given.count;
  args.sources = given.sources;
  args.destinations = given.destinations;
  args.op = given.op;
  args.element = given.element;
  args.result = given.result;
  args.wide = given.wide;
  return args;
}

}  // namespace

ReduceArgs plan_reduction(const Reduction& reduction, int multiprocessors) {
  ReduceArgs args = {};
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
  lay_out(args, std::int64_t{multiprocessors} * blocks_for_several_gpus);
  return args;
}

std::optional<ShortReduction> shortened(const ReduceArgs& args, const LaunchPolicy& policy) {
  const auto sources = static_cast<std::size_t>(args.sources),
             destinations = static_cast<std::size_t>(args.destinations);
  if (std::max(sources, destinations) > ShortReduction::most_ranks || !is_usual(args.element) ||
      words_of(args) > policy.persistent.most_reduced_words)
    return std::nullopt;
  return with_room<ShortReduction>(args);
}

ReduceArgs lengthened(const ShortReduction& reduction) {
  auto args = with_room<ReduceArgs>(reduction);
  lay_out(args, words_of(args));
  return args;
}

}  // namespace gpudt::device
