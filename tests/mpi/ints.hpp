// Buffers of ints for reductions, and what comes of them.
#pragma once

#include <vector>

#include "tests/support/mpi_harness.hpp"

namespace gpudt::test {

/// `count` ints of `key`'s, each process's others.
inline std::vector<int> ints_of(int process, int count, int key) {
  std::vector<int> ints;
  for (int i = 0; i < count; ++i) ints.push_back((process + 1) * (i % 1000) + key);
  return ints;
}

inline std::vector<int> sum_of_all(int processes, int count, int key) {
  std::vector<int> sum(static_cast<std::size_t>(count), 0);
  for (int process = 0; process < processes; ++process) {
    const std::vector<int> ints = ints_of(process, count, key);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += ints[i];
  }
  return sum;
}

class Ints {
 public:
  Ints(Place place, int count) : count_(count), memory_(place, static_cast<std::size_t>(count) * sizeof(int)) {}
  void write(const std::vector<int>& ints) { memory_.write(ints.data(), ints.size() * sizeof(int)); }
  std::vector<int> read() const {
    std::vector<int> ints(static_cast<std::size_t>(count_));
    memory_.read(ints.data(), ints.size() * sizeof(int));
    return ints;
  }
  void* address() const { return memory_.data(); }

 private:
  int count_;
  Memory memory_;
};

}  // namespace gpudt::test
