// Stops the clock of transfers, so that a test decides what time passes, however busy the machine is.
#pragma once

#include "device/choice/clock.hpp"

namespace gpudt::test {

/// One at a time.
struct StoppedClock {
  StoppedClock() { device::Clock::stopped_at = &now; }
  ~StoppedClock() { device::Clock::stopped_at = nullptr; }
  StoppedClock(const StoppedClock&) = delete;
  StoppedClock& operator=(const StoppedClock&) = delete;

  device::Clock::time_point now = device::Clock::now();
};

}  // namespace gpudt::test
