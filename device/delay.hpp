// How late kernels begin on one GPU at the moment, learnt from those that messages waited for: a GPU whose
// multiprocessors are full, or given to another process for a time slice, shows in no query that costs less than a
// message.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "device/cost_model.hpp"

namespace gpudt::device {

class KernelDelay {
 public:
  using Clock = std::chrono::steady_clock;

  explicit KernelDelay(const Lateness& lateness = {}) : lateness_(lateness) {}

  /// Microseconds by which a kernel launched now is expected to begin late; 0 unless one did so lately.
  double expected_us() const;

  /// A kernel that was expected to take `expected_us` ended between `after_us` and `before_us` after its launch.
  void observe(double expected_us, double after_us, double before_us);

  std::int64_t times() const { return times_.load(std::memory_order_relaxed); }  ///< that one was seen to begin late

 private:
  const Lateness lateness_;
  std::atomic<float> delay_us_{0};
  std::atomic<std::int64_t> times_{0};
  std::atomic<Clock::rep> until_{0};  ///< the time since the clock's epoch up to which delay_us_ is believed
};

}  // namespace gpudt::device
