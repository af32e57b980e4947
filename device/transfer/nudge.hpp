// Makes a GPU look at the waits of its streams at gates. A wait that is not over when the GPU first looks at it is
// looked at again some 10 us later, or as soon as the GPU gets other work. From the opening of a gate until its stream
// tells of the next one an H200 took 10.4, 8.4 and 9.8 us if the host had kept it shut for 3, 5 and 30 us; with a store
// by another stream right after the opening, 5.2, 3.9 and 5.7. (A kernel that polls in place of the wait takes 3.5 to
// 3.8 us, but the message would begin late where the program's kernels fill the GPU.) Not where processes take turns on
// the GPU: each nudge would cost a turn.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/mutex.hpp"
#include "device/runtime/runtime.hpp"
#include "device/transfer/context_watch.hpp"

namespace gpudt::device {

class Nudge {
 public:
  /// Throws Error.
  Nudge(Runtime& runtime, int ordinal, std::shared_ptr<const ContextWatch> watch)
      : runtime_(runtime), ordinal_(ordinal), watch_(std::move(watch)), stream_(runtime.stream_create(ordinal)) {
    try {
      word_ = static_cast<std::uint32_t*>(runtime_.mapped_alloc(ordinal, sizeof *word_));
    } catch (const Error&) {
      runtime_.stream_destroy(ordinal, stream_);
      throw;
    }
    *word_ = 0;
  }
  ~Nudge() {
    if (!watch_->ended()) {
      try {
        runtime_.stream_synchronize(ordinal_, stream_);
      } catch (const Error&) {
        return;  // the GPU has failed
      }
      runtime_.stream_destroy(ordinal_, stream_);
    }
    runtime_.mapped_free(ordinal_, word_);
  }
  Nudge(const Nudge&) = delete;
  Nudge& operator=(const Nudge&) = delete;

  /// To be called when gates have been opened. Does nothing while an earlier nudge is under way.
  void give() noexcept try {
    const LockGuard lock(mutex_);
    if (watch_->ended() || std::atomic_ref(*word_).load(std::memory_order_relaxed) != given_) return;
    runtime_.signal_async(ordinal_, word_, given_ + 1, stream_);
    ++given_;
  } catch (const Error&) {
    // A GPU that has failed has no waits.
  }

 private:
  Runtime& runtime_;
  const int ordinal_;
  const std::shared_ptr<const ContextWatch> watch_;
  StreamHandle const stream_;
  std::uint32_t* word_;
  Mutex mutex_;
  std::uint32_t given_ GUARDED_BY(mutex_) = 0;  ///< what the latest nudge stores in the word
};

}  // namespace gpudt::device
