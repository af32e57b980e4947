#include <algorithm>
#include <string>

#include "device/kernels/reduce_body.hpp"
#include "device/timeline.hpp"
#include "device/transfer/engine.hpp"

namespace gpudt::device {
namespace {

constexpr int threads = 256;
/// Thread blocks per multiprocessor: reading another GPU's memory takes many words under way.
constexpr int blocks_per_multiprocessor = 8;

Address address_of(const void* address) {
  return static_cast<Address>(reinterpret_cast<std::uintptr_t>(address));
}

}  // namespace

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

ReduceArgs plan_reduction(const Reduction& reduction, int multiprocessors) {
  ReduceArgs args = {};
  args.ranks = static_cast<std::int32_t>(reduction.from.size());
  args.op = reduction.op;
  args.element = reduction.element;
  args.result = reduction.result;
  args.count = reduction.count;
  Address bits = 0;
  for (std::size_t rank = 0; rank < reduction.from.size(); ++rank) {
    args.from[rank] = address_of(reduction.from[rank]);
    args.to[rank] = address_of(reduction.to[rank]);
    bits |= args.from[rank] | args.to[rank];
  }
  const std::int64_t bytes = element_bytes(args.element);
  args.wide = bits % sizeof(Word16) == 0 && sizeof(Word16) % static_cast<std::size_t>(bytes) == 0 ? 1 : 0;
  const std::int64_t words = args.wide != 0 ? args.count * bytes / 16 : args.count;
  const std::int64_t per_block = std::int64_t{threads} * reduced_at_once;
  const std::int64_t most = std::int64_t{multiprocessors} * blocks_per_multiprocessor;
  args.block = threads;
  args.grid = static_cast<std::int32_t>(std::clamp((words + per_block - 1) / per_block, std::int64_t{1}, most));
  return args;
}

Transfer Engine::reduce(int ordinal, const Reduction& reduction) {
  if (reduction.from.empty() || reduction.from.size() > Reduction::most_ranks ||
      reduction.from.size() != reduction.to.size() || !is_defined(reduction.op, reduction.element))
    throw Error(Failure::runtime, "a reduction that no kernel can do");
  if (reduction.count == 0) return {};
  Gpu& here = gpu(ordinal);
  ReduceArgs args = plan_reduction(reduction, here.traits.multiprocessors);
  return start_alone(here, args);
}

}  // namespace gpudt::device
