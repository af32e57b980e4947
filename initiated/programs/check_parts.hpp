// What the parts of gpudt-initiated-check share.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "initiated/programs/check_kernels.hpp"
#include "initiated/programs/session.hpp"

namespace gpudt::initiated::programs {

using Bytes = std::vector<std::byte>;

/// Bytes around what a message touches; most of a message; of a window.
constexpr std::int64_t guard = 64, most_bytes = 1 << 17, window_bytes = 1 << 21;

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine(seed) {}
  std::int64_t operator()(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(engine);
  }
  Bytes bytes(std::int64_t size) {
    Bytes made(static_cast<std::size_t>(size));
    for (std::byte& byte : made) byte = static_cast<std::byte>(engine());
    return made;
  }
  std::mt19937_64 engine;
};

inline const char* name_of(By by) {
  constexpr const char* names[] = {"thread", "warp", "block", "grid"};
  return names[static_cast<int>(by)];
}

/// MPI's calls in kernels (mpi_calls.cuh), in windows of all kinds. With one process only what is refused.
void check_mpi_calls(Session& session, std::uint64_t seed);

/// Partitioned communication.
void check_partitions(Session& session, std::uint64_t seed);

}  // namespace gpudt::initiated::programs
