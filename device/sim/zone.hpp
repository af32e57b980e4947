// Addresses of the simulated device.
#pragma once

#include <cstddef>
#include <map>

namespace gpudt::sim {

/// Unused addresses of one part of the arena. Host-accessible and device memory lie in parts of their own.
struct Zone {
  std::map<std::size_t, std::size_t> free;  // offset -> bytes
  std::size_t cursor = 0;                   // where to look next
  bool take(std::size_t bytes, std::size_t* offset);
  void give(std::size_t offset, std::size_t bytes);
};

}  // namespace gpudt::sim
