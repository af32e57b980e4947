// Copies to the program's pinned host memory, by the copy engine alone: a receive into host memory must not wait for
// room on a GPU, whose kernels may wait for what the host does with the data.
#include <algorithm>

#include "device/transfer/context_watch.hpp"
#include "device/transfer/engine.hpp"
#include "device/transfer/start.hpp"

namespace gpudt::device {
namespace {

using datatype::ShapeKind;

/// The copies that move packed bytes [begin, end) of `from` to where they lie in `to`; empty if there are none. There
/// are for every range, if there are for the whole message and `from` is contiguous, so that it may come in parts.
CopyPlan copies_between(const Side& from, const Side& to, std::int64_t begin, std::int64_t end) {
  const datatype::Shape from_shape = from.layout->shape(from.count), to_shape = to.layout->shape(to.count);
  if (from_shape.ndims > 1 || to_shape.ndims > 1) return {};
  if (from_shape.kind == ShapeKind::contiguous)
    return copy_plan_of(to_shape, /*unpack=*/true, to.user, place_of(from, from_shape, begin), begin, end);
  if (to_shape.kind == ShapeKind::contiguous)
    return copy_plan_of(from_shape, /*unpack=*/false, from.user, place_of(to, to_shape, begin), begin, end);
  return copy_plan_between(copy_plan_of(from_shape, /*unpack=*/false, from.user, nullptr, begin, end),
                           copy_plan_of(to_shape, /*unpack=*/true, to.user, nullptr, begin, end));
}

/// Whether the copies are few, and of rows so long that they take as long as contiguous data.
bool are_worth_it(const CostModel& model, const CopyPlan& copies, std::int64_t bytes) {
  const Cost& cost = model.copy_pack_to_host;
  return !copies.empty() && copies.calls() <= static_cast<std::int64_t>(CopyPlan::most_within) &&
         static_cast<double>(copies.rows()) * cost.row_ns * 1e-3 <= static_cast<double>(bytes) / cost.bytes_per_us;
}

}  // namespace

int Engine::gpu_to_host(const GpuId& owner) const {
  int first = -1;
  for (int ordinal = 0; ordinal < max_gpus; ++ordinal) {
    const Gpu* const gpu = gpus_[ordinal].load(std::memory_order_acquire);
    if (gpu == nullptr || gpu->watch->ended()) continue;
    if (gpu->traits.id == owner) return ordinal;
    if (first < 0) first = ordinal;
  }
  return first;
}

bool Engine::is_pinned(int ordinal, const Side& side, std::int64_t bytes) const {
  const std::int64_t size = side.layout->size();
  if (bytes <= 0) return false;
  const datatype::Span span = side.layout->span(std::min(side.count, (bytes + size - 1) / size));
  const std::uintptr_t first = first_of(span, side.user), last = first + static_cast<std::uintptr_t>(span.bytes()) - 1;
  return runtime_->is_pinned(ordinal, reinterpret_cast<const void*>(first), reinterpret_cast<const void*>(last));
}

bool Engine::copies_to_host(int ordinal, const Side& from, const Side& to, std::int64_t bytes) {
  return are_worth_it(gpu(ordinal).tuning.model, copies_between(from, to, 0, bytes), bytes);
}

Transfer Engine::copy_to_host(int ordinal, const Side& from, const Side& to, std::int64_t begin, std::int64_t end) {
  const CopyPlan copies = copies_between(from, to, begin, end);
  if (copies.empty()) return {};
  Channel& channel = gpu(ordinal).channel(Direction::pack);
  StateOwner state = channel.take_within(std::chrono::milliseconds(0));
  if (!state) return {};
  const LockGuard lock(channel.queue_mutex);
  channel.check_context();
  if (!channel.start_aside(*state, copies)) return {};
  copies_.fetch_add(1, std::memory_order_relaxed);
  return Transfer(std::move(state));
}

int gpu_to_host(const GpuId& owner) noexcept {
  const Engine* const engine = process_engine.load(std::memory_order_acquire);
  return engine != nullptr ? engine->gpu_to_host(owner) : -1;
}

bool is_pinned(int ordinal, const Side& side, std::int64_t bytes) {
  return current_engine().is_pinned(ordinal, side, bytes);
}

bool copies_to_host(int ordinal, const Side& from, const Side& to, std::int64_t bytes) {
  return current_engine().copies_to_host(ordinal, from, to, bytes);
}

Transfer copy_to_host(int ordinal, const Side& from, const Side& to, std::int64_t begin, std::int64_t end) {
  return current_engine().copy_to_host(ordinal, from, to, begin, end);
}

}  // namespace gpudt::device
