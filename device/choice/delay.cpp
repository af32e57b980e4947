#include "device/choice/delay.hpp"

#include <algorithm>
#include <chrono>

namespace gpudt::device {
namespace {

Clock::rep after(double us) {
  const auto duration = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double, std::micro>(us));
  return (Clock::now() + duration).time_since_epoch().count();
}

}  // namespace

double Delay::seen_us() const {
  const float delay = delay_us_.load(std::memory_order_relaxed);
  if (delay == 0) return 0;
  return Clock::now().time_since_epoch().count() < until_.load(std::memory_order_relaxed) ? delay : 0;
}

bool Delay::yields() const {
  const Clock::rep until = turns_until_.load(std::memory_order_relaxed);
  return until != 0 && Clock::now().time_since_epoch().count() < until;
}

double Delay::late_us() const {
  return yields() ? std::max(seen_us(), lateness_.turn_us) : seen_us();
}

void Delay::yield_turns() {
  turns_until_.store(after(lateness_.turns_believed_us), std::memory_order_relaxed);
}

void Delay::observe(double expected_us, double after_us, double before_us, bool roughly) {
  const double error = roughly ? lateness_.rough_error : lateness_.model_error;
  const double tolerated = lateness_.significant_us + error * expected_us;
  if (after_us > tolerated) {
    const double delay = after_us - expected_us;
    const double believed_us =
        std::min(std::max(delay * lateness_.belief, lateness_.shortest_belief_us), lateness_.longest_belief_us);
    seen_.store(after(0), std::memory_order_relaxed);
    until_.store(after(believed_us), std::memory_order_relaxed);
    delay_us_.store(static_cast<float>(delay), std::memory_order_relaxed);
    times_.fetch_add(1, std::memory_order_relaxed);
  } else if (!roughly && before_us < tolerated && delay_us_.load(std::memory_order_relaxed) != 0) {
    delay_us_.store(0, std::memory_order_relaxed);
  }
}

}  // namespace gpudt::device
