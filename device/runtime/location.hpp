// In which memory an address lies.
#pragma once

#include <cstdint>

namespace gpudt::device {

enum class MemoryKind : std::uint8_t {
  host,     ///< pageable, or not known to the runtime
  pinned,   ///< host memory that the GPU can reach
  device,   ///< memory of one GPU: cudaMalloc, cudaMallocAsync, VMM
  managed,  ///< migrates by itself; handled like device memory
};

struct Location {
  MemoryKind kind = MemoryKind::host;
  std::int32_t ordinal = -1;     ///< the GPU, for device and managed memory
  std::uint64_t allocation = 0;  ///< id of the GPU's memory there; 0 if it is not known
  bool on_device() const { return kind == MemoryKind::device || kind == MemoryKind::managed; }
};

}  // namespace gpudt::device
