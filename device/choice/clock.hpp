// The clock by which transfers and start delays are timed.
#pragma once

#include <chrono>

namespace gpudt::device {

/// The steady clock, or what a test sets it to: there the time that other processes take must not count.
struct Clock : std::chrono::steady_clock {
  static time_point now() noexcept { return stopped_at ? *stopped_at : std::chrono::steady_clock::now(); }
  static inline const time_point* stopped_at = nullptr;  ///< set while no other thread uses the device layer
};

}  // namespace gpudt::device
