// Transfers that are made again and again, planned once. A kernel makes many of them, and shows their end by one flag.
#pragma once

#include <cstdint>
#include <vector>

#include "device/kernels/batch_body.hpp"

namespace gpudt::device {

struct PreparedTransfers {
  int ordinal = -1;
  std::uint64_t generation = 0;  ///< of the GPU's context: programs of layouts are lost with it
  std::vector<BatchArgs>
      launches{};  ///< their completions are the latest start's, guarded by the channel's queue_mutex
};

}  // namespace gpudt::device
