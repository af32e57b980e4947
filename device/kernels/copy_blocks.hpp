// Copies of several blocks of bytes by one kernel: what a collective moves on one GPU.
#pragma once

#include <cstdint>
#include <span>

#include "device/device.hpp"

namespace gpudt::device {

struct BlockCopy {
  const void* from;
  void* to;
  std::int64_t bytes;  ///< not negative
};

/// Blocks that one kernel copies at most.
inline constexpr std::size_t most_block_copies = 64;

/// Starts copies by one kernel of GPU `ordinal`, which must reach all of the memory. No destination may overlap a
/// source or another destination. Thread-safe. Throws Error.
Transfer copy_blocks(int ordinal, std::span<const BlockCopy> copies);

}  // namespace gpudt::device
