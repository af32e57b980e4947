// What the memory and the link of a machine allow, measured in the same run: the mark that packing is held against.
#pragma once

#include <cstdint>

#include "pingpong/common/layouts.hpp"
#include "pingpong/common/memory.hpp"

namespace gpudt::bench {

/// 10^9 bytes per second.
struct Bandwidths {
  double to_host = 0;      ///< DMA from device to pinned host memory
  double from_host = 0;    ///< and back
  double device_copy = 0;  ///< copying inside device memory, bytes read plus bytes written
};

/// Copies `bytes` bytes around several times.
Bandwidths measure_bandwidths(std::size_t bytes);

/// The bytes that device memory moves when `message` is packed or unpacked there: whole 64-byte bursts on the
/// strided side, counted twice where an unpack writes only a part of one (it is read first), plus the packed bytes.
/// The buffer's address counts as a multiple of 64.
std::int64_t device_traffic(const Message& message, bool unpack);

}  // namespace gpudt::bench
