// Memory of one process as another process of the node uses it.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

namespace gpudt::device {

/// An allocation of one process as another one of the node opens it. Plain data, to travel through shared memory.
struct Exported {
  unsigned char handle[64];  ///< a cudaIpcMemHandle_t
  std::uint64_t buffer_id;   ///< another for each allocation of the process, also of the same addresses
  std::uint64_t base, size;  ///< in the exporting process
  unsigned char gpu[16];     ///< the UUID
  std::uint64_t process;     ///< a random number of the exporting process's
};

/// Another process's allocation where a GPU of this process reaches it. Copies refer to the same mapping, which stays
/// while there is one, and at the longest until stop(). Transfers that use it must be done before the last one goes.
class Mapping {
 public:
  Mapping() = default;
  /// Where this process's GPU finds what the exporter knows by `exporters_address`: an address in the allocation, or
  /// one that is only calculated with, as a buffer's with a lower bound may be.
  void* at(std::uint64_t exporters_address) const;
  explicit operator bool() const { return memory_ != nullptr; }

 private:
  friend class Peers;
  explicit Mapping(std::shared_ptr<const struct PeerMemory> memory) : memory_(std::move(memory)) {}
  std::shared_ptr<const struct PeerMemory> memory_;
};

/// Allocations known to be exportable or not, and mappings of other processes' memory that are open.
struct PeerStatistics {
  std::int64_t exports = 0, imports = 0;
};

}  // namespace gpudt::device
