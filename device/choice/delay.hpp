// The start delay: how late work of one direction currently begins on one GPU. It is learned from the transfers that
// somebody waited for, and from probe kernels. It cannot be queried cheaply: a GPU whose multiprocessors are busy, or
// given to another process for a time slice, or whose copy engine is busy with copies of other processes, looks idle to
// every query that takes less time than a short transfer.
#pragma once

#include <atomic>
#include <cstdint>

#include "device/choice/clock.hpp"
#include "device/choice/cost_model.hpp"

namespace gpudt::device {

class Delay {
 public:
  explicit Delay(const Lateness& lateness = {}) : lateness_(lateness) {}

  /// Microseconds by which a kernel or copy started now is expected to begin late; 0 unless one began late recently, or
  /// another process takes turns with this one on the GPU.
  double expected_us() const {
    const bool on_time =
        delay_us_.load(std::memory_order_relaxed) == 0 && turns_until_.load(std::memory_order_relaxed) == 0;
    return on_time ? 0 : late_us();
  }

  /// Another process has just used the GPU: for a while, kernels of this process are expected to wait for a time slice.
  void yield_turns();
  /// Whether yield_turns() was called recently.
  bool yields() const;

  /// Records that a kernel or copy that was expected to take `expected_us` ended between `after_us` and `before_us`
  /// after its start. `roughly`: its time depends on more than its size, so it can show that it began late, but not
  /// that it began in time.
  void observe(double expected_us, double after_us, double before_us, bool roughly = false);

  /// When a late beginning was last seen, in the clock's ticks since its epoch; 0: never.
  Clock::rep seen() const { return seen_.load(std::memory_order_relaxed); }

  std::int64_t times() const { return times_.load(std::memory_order_relaxed); }  ///< late beginnings seen so far

 private:
  double late_us() const;
  /// expected_us() without the effect of yield_turns().
  double seen_us() const;

  const Lateness lateness_;
  std::atomic<float> delay_us_{0};
  std::atomic<std::int64_t> times_{0};
  std::atomic<Clock::rep> seen_{0};
  std::atomic<Clock::rep> until_{0};        ///< when delay_us_ ceases to be believed, in ticks since the epoch
  std::atomic<Clock::rep> turns_until_{0};  ///< when yield_turns() ceases to count, in ticks since the epoch
};

}  // namespace gpudt::device
