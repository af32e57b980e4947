// What the unit tests share. The seed and the number of random trees come from the environment:
//   GPUDT_TEST_SEED=n   the random numbers; by default others in each run. Printed at the start and with failures.
//   GPUDT_TEST_TREES=n  random datatypes per test case
#pragma once

#include <cstdint>
#include <random>

namespace gpudt::test {

std::uint64_t unit_seed();
/// GPUDT_TEST_TREES, else `otherwise`.
std::int64_t unit_trees(std::int64_t otherwise);
/// Random numbers for tree `index` alone, so that one tree can be made again without those before it.
std::mt19937_64 unit_random(std::uint64_t index);

}  // namespace gpudt::test
