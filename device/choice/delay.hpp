// How late work of one direction begins on one GPU at the moment, learned from the transfers that messages waited for,
// and from probe kernels. The start delay cannot be queried cheaply: a GPU whose multiprocessors are busy, or given to
// another process for a time slice, or whose copy engine is busy with the copies of others, looks idle to every query
// that costs less than a message.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "device/choice/cost_model.hpp"

namespace gpudt::device {

class Delay {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Delay(const Lateness& lateness = {}) : lateness_(lateness) {}

  /// Microseconds by which a kernel or copy started now is expected to begin late; 0 unless one did so lately, or
  /// another process has the GPU in turns with this one.
  double expected_us() const;

  /// Another process has just used the GPU; for a while assume that kernels of this process wait for a time slice.
  void yield_turns();
  /// Whether that was lately.
  bool yields() const;
  /// expected_us() without that.
  double seen_us() const;

  /// One that was expected to take `expected_us` ended between `after_us` and `before_us` after its start. `roughly`:
  /// its time depends on more than its size, so that it may show that one was late, but not that it was not.
  void observe(double expected_us, double after_us, double before_us, bool roughly = false);

  /// When one was last seen to begin late, in the clock's time since its epoch; 0: never.
  Clock::rep seen() const { return seen_.load(std::memory_order_relaxed); }

  std::int64_t times() const { return times_.load(std::memory_order_relaxed); }  ///< that one was seen to begin late

 private:
  const Lateness lateness_;
  std::atomic<float> delay_us_{0};
  std::atomic<std::int64_t> times_{0};
  std::atomic<Clock::rep> seen_{0};
  std::atomic<Clock::rep> until_{0};        ///< the time since the clock's epoch up to which delay_us_ is believed
  std::atomic<Clock::rep> turns_until_{0};  ///< likewise, that others take turns
};

}  // namespace gpudt::device
