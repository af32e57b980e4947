#include "pingpong/common/sampling.hpp"

#include <algorithm>
#include <chrono>
#include <numeric>

namespace gpudt::bench {
namespace {

constexpr int turn_length = 10;  // timed iterations in one turn; the one before them is not timed

bool wants_more(const Contestant& contestant, const SamplingPlan& plan) {
  const auto taken = static_cast<int>(contestant.samples.size());
  const double spent = std::accumulate(contestant.samples.begin(), contestant.samples.end(), 0.0) / 1e6;
  return taken < plan.iterations && (taken < plan.fewest || spent < plan.seconds);
}

void take_turn(Contestant& contestant, const SamplingPlan& plan) {
  contestant.measure();  // the caches are full of the other ways' data
  const int left = plan.iterations - static_cast<int>(contestant.samples.size());
  for (int i = 0; i < std::min(left, turn_length); ++i) contestant.samples.push_back(contestant.measure());
}

}  // namespace

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void sample_in_turns(std::vector<Contestant>& contestants, const SamplingPlan& plan,
                     const std::function<bool(bool)>& agree) {
  for (Contestant& contestant : contestants) {
    for (int i = 0; i < plan.warmup; ++i) contestant.measure();
  }
  for (bool any = true; any;) {
    any = false;
    for (Contestant& contestant : contestants) {
      if (!agree(wants_more(contestant, plan))) continue;
      take_turn(contestant, plan);
      any = true;
    }
  }
}

}  // namespace gpudt::bench
