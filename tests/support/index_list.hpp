// Index lists that nobody can take for something shorter: those with a pattern become nested strides.
#pragma once

#include <random>
#include <vector>

namespace gpudt::test {

struct IndexList {
  std::vector<int> lengths, places;  ///< of runs, in elements
};

/// Runs of 1 to 4 elements at places that have no pattern. Each `seed` makes another list; more runs are more elements.
inline IndexList patternless_list(int runs, int seed) {
  std::minstd_rand random(static_cast<unsigned>(seed) + 1);
  IndexList list;
  for (int run = 0, place = seed; run < runs; ++run) {
    list.lengths.push_back(1 + run % 4);
    list.places.push_back(place);
    place += list.lengths.back() + 1 + static_cast<int>(random() >> 8) % 3;
  }
  return list;
}

}  // namespace gpudt::test
