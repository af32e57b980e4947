#include "device/delay.hpp"

#include <algorithm>

namespace gpudt::device {
double Delay::expected_us() const {
  const float delay = delay_us_.load(std::memory_order_relaxed);
  if (delay == 0) return 0;
  return Clock::now().time_since_epoch().count() < until_.load(std::memory_order_relaxed) ? delay : 0;
}

void Delay::observe(double expected_us, double after_us, double before_us, bool roughly) {
  const double error = roughly ? lateness_.rough_error : lateness_.model_error;
  const double tolerated = lateness_.significant_us + error * expected_us;
  if (after_us > tolerated) {
    const double delay = after_us - expected_us;
    const double believed_us =
        std::min(std::max(delay * lateness_.belief, lateness_.shortest_belief_us), lateness_.longest_belief_us);
    const auto believed =
        std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double, std::micro>(believed_us));
    const auto now = Clock::now();
    seen_.store(now.time_since_epoch().count(), std::memory_order_relaxed);
    until_.store((now + believed).time_since_epoch().count(), std::memory_order_relaxed);
    delay_us_.store(static_cast<float>(delay), std::memory_order_relaxed);
    times_.fetch_add(1, std::memory_order_relaxed);
  } else if (!roughly && before_us < tolerated && delay_us_.load(std::memory_order_relaxed) != 0) {
    delay_us_.store(0, std::memory_order_relaxed);
  }
}

}  // namespace gpudt::device
