#include "device/default_stream.hpp"

#include <algorithm>
#include <iterator>

namespace gpudt::device {
namespace {

/// Marks that nobody asks about any more go when there are so many.
constexpr std::size_t most_pending = 64;

}  // namespace

DefaultStream::DefaultStream(Runtime& runtime, int ordinal, Order order)
    : runtime_(runtime), ordinal_(ordinal), order_(order) {}

DefaultStream::~DefaultStream() {
  for (const Mark& mark : pending_) runtime_.event_destroy(ordinal_, mark.event);
  for (EventHandle const event : idle_) runtime_.event_destroy(ordinal_, event);
}

EventHandle DefaultStream::take_event() {
  if (idle_.empty()) return runtime_.event_create(ordinal_);
  EventHandle const event = idle_.back();
  idle_.pop_back();
  return event;
}

std::uint64_t DefaultStream::mark() {
  const bool per_thread = order_ == Order::per_thread;
  if (runtime_.default_stream_idle(ordinal_, per_thread)) return 0;
  const std::lock_guard lock(mutex_);
  if (pending_.size() >= most_pending) forget_reached();
  pending_.reserve(pending_.size() + 1);
  idle_.reserve(pending_.size() + idle_.size() + 1);
  EventHandle const event = take_event();
  bool recorded = false;
  try {
    recorded = runtime_.event_record_default(ordinal_, event, per_thread);
  } catch (const Error&) {
    idle_.push_back(event);
    throw;
  }
  if (!recorded) {
    idle_.push_back(event);
    return 0;
  }
  pending_.push_back({++last_, event});
  return last_;
}

bool DefaultStream::reached(std::uint64_t number) {
  if (number <= reached_.load(std::memory_order_acquire)) return true;
  const std::lock_guard lock(mutex_);
  const auto at = std::lower_bound(pending_.begin(), pending_.end(), number,
                                   [](const Mark& mark, std::uint64_t wanted) { return mark.number < wanted; });
  if (at == pending_.end() || at->number != number) return true;  // seen by another thread
  if (!runtime_.event_done(ordinal_, at->event)) return false;
  const bool in_order = order_ == Order::default_stream;
  const auto first = in_order ? pending_.begin() : at;
  std::transform(first, std::next(at), std::back_inserter(idle_), [](const Mark& mark) { return mark.event; });
  pending_.erase(first, std::next(at));
  if (in_order) reached_.store(number, std::memory_order_release);
  return true;
}

void DefaultStream::lose() noexcept {
  const std::lock_guard lock(mutex_);
  pending_.clear();
  idle_.clear();
}

void DefaultStream::forget_reached() {
  std::erase_if(pending_, [this](const Mark& mark) {
    const bool done = runtime_.event_done(ordinal_, mark.event);
    if (done) idle_.push_back(mark.event);
    return done;
  });
}

}  // namespace gpudt::device
