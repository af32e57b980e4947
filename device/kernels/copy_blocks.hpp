// Copies of several blocks of bytes by one kernel: what a collective moves on one GPU.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpudt::device {

struct BlockCopy {
  const void* from;
  void* to;
  std::int64_t bytes;  ///< not negative
};

/// Blocks that one kernel copies at most.
inline constexpr std::size_t most_block_copies = 64;

}  // namespace gpudt::device
