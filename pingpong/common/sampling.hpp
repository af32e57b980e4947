// Measuring several ways of doing one thing fairly: in short turns, one way after the other, so that whatever else
// happens on the machine meets them all.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace gpudt::bench {

struct SamplingPlan {
  int warmup = 5;        ///< untimed, for each way
  int iterations = 200;  ///< at most
  int fewest = 10;       ///< even if they take longer than `seconds`
  double seconds = 0.3;  ///< after which a way gets no further turn
};

/// One way: a name for the table, and a function that does the thing once and returns microseconds.
struct Contestant {
  std::string name;
  std::function<double()> measure;
  std::vector<double> samples = {};
};

/// Fills the samples. `agree` turns the wish to go on of one process into the same answer on all of them.
void sample_in_turns(std::vector<Contestant>& contestants, const SamplingPlan& plan,
                     const std::function<bool(bool)>& agree);

/// Microseconds since some point in the past.
double now_us();

}  // namespace gpudt::bench
