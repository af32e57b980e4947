#include "device/transfer/default_stream.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <thread>
#include <utility>

#include "device/memory/gates.hpp"
#include "device/transfer/engine.hpp"

namespace gpudt::device {
namespace {

/// The number of pending marks from which on reached ones are removed even if nobody polls them.
constexpr std::size_t most_pending = 64;
constexpr std::size_t page_bytes = 4096;
/// The host polls one word while the GPU writes another.
constexpr std::size_t bytes_apart = 64;

}  // namespace

bool DefaultStream::Mark::reached() const {
  return std::atomic_ref(*word).load(std::memory_order_acquire) == static_cast<std::uint32_t>(number);
}

DefaultStream::DefaultStream(Runtime& runtime, int ordinal, Order order)
    : runtime_(runtime), ordinal_(ordinal), order_(order) {}

DefaultStream::~DefaultStream() {
  forget_reached();
  if (!pending_.empty()) return;  // the GPU may still write to the words: they stay until the process ends
  for (void* const page : pages_) runtime_.mapped_free(ordinal_, page);
}

std::uint32_t* DefaultStream::take_word() {
  if (idle_.empty()) {
    pages_.reserve(pages_.size() + 1);
    idle_.reserve(pending_.capacity() + page_bytes / bytes_apart);
    auto* const page = static_cast<std::byte*>(runtime_.mapped_alloc(ordinal_, page_bytes));
    std::memset(page, 0, page_bytes);
    pages_.push_back(page);
    for (std::size_t at = 0; at < page_bytes; at += bytes_apart)
      idle_.push_back(reinterpret_cast<std::uint32_t*>(page + at));
  }
  std::uint32_t* const word = idle_.back();
  idle_.pop_back();
  return word;
}

std::uint64_t DefaultStream::mark() {
  // The thread's own stream may have work that is not captured.
  if (runtime_.default_stream_idle(ordinal_, /*while_capturing=*/order_ != Order::per_thread)) return 0;
  const LockGuard lock(mutex_);
  if (pending_.size() >= most_pending) forget_reached();
  pending_.reserve(pending_.size() + 1);
  idle_.reserve(pending_.size() + idle_.size() + 1);
  Mark mark = {last_ + 1, take_word()};
  if (static_cast<std::uint32_t>(mark.number) == 0) ++mark.number;  // words are made with 0
  bool signals = false;
  try {
    const auto value = static_cast<std::uint32_t>(mark.number);
    signals = runtime_.signal_default_async(ordinal_, mark.word, value, order_ == Order::per_thread);
  } catch (const Error&) {
    idle_.push_back(mark.word);
    throw;
  }
  if (!signals) {
    idle_.push_back(mark.word);
    return 0;
  }
  last_ = mark.number;
  pending_.push_back(mark);
  return last_;
}

bool DefaultStream::reached(std::uint64_t number) {
  if (number <= reached_.load(std::memory_order_acquire)) return true;
  // mark() may hold it in a launch, which waits for room, perhaps until an operation is done that waits for this one.
  if (!mutex_.try_lock()) return false;
  const LockGuard lock(mutex_, std::adopt_lock);
  const auto at = std::lower_bound(pending_.begin(), pending_.end(), number,
                                   [](const Mark& mark, std::uint64_t wanted) { return mark.number < wanted; });
  if (at == pending_.end() || at->number != number) return true;  // seen by another thread
  if (!at->reached()) return false;
  const bool in_order = order_ == Order::default_stream;
  const auto first = in_order ? pending_.begin() : at;
  std::transform(first, std::next(at), std::back_inserter(idle_), [](const Mark& mark) { return mark.word; });
  pending_.erase(first, std::next(at));
  if (in_order) reached_.store(number, std::memory_order_release);
  return true;
}

void DefaultStream::lose() noexcept {
  const LockGuard lock(mutex_);
  pending_.clear();
  idle_.clear();
  for (void* const page : pages_) runtime_.mapped_free(ordinal_, page);
  pages_.clear();
}

void DefaultStream::forget_reached() {
  std::erase_if(pending_, [this](const Mark& mark) REQUIRES(mutex_) {
    const bool done = mark.reached();
    if (done) idle_.push_back(mark.word);
    return done;
  });
}

// --- marks ----------------------------------------------------------------------------------------------------------

constinit thread_local bool detail::ordered_by_stream = false;
namespace {
constinit thread_local StreamMark mark_of_thread;  ///< if it is ordered by a stream
}

OrderedByStream::OrderedByStream(bool ordered, const StreamMark& mark)
    : before_(std::exchange(detail::ordered_by_stream, ordered)), mark_before_(std::exchange(mark_of_thread, mark)) {}
OrderedByStream::~OrderedByStream() {
  detail::ordered_by_stream = before_;
  mark_of_thread = mark_before_;
}

DefaultStream* Engine::default_stream(int ordinal) {
  if (order_ == Order::none || ordinal < 0 || ordinal >= max_gpus) return nullptr;
  static_cast<void>(gpu(ordinal));  // whose context may have ended
  std::atomic<DefaultStream*>& slot = default_streams_[ordinal];
  if (DefaultStream* const stream = slot.load(std::memory_order_acquire)) return stream;
  const LockGuard lock(gpus_mutex_);
  if (slot.load(std::memory_order_acquire) == nullptr)
    slot.store(new DefaultStream(*runtime_, ordinal, order_), std::memory_order_release);
  return slot.load(std::memory_order_acquire);
}

StreamMark mark_default_stream(int ordinal) {
  if (detail::ordered_by_stream) return mark_of_thread;
  DefaultStream* const stream = current_engine().default_stream(ordinal);
  return stream != nullptr ? StreamMark(ordinal, stream->mark()) : StreamMark();
}

bool StreamMark::is_reached() const {
  if (gate_ != nullptr) return gate_->has_told(static_cast<std::uint32_t>(number_));
  return current_engine().default_stream(ordinal_)->reached(number_);
}

void StreamMark::wait() const {
  while (!reached()) std::this_thread::yield();
}

}  // namespace gpudt::device
