// Memory of one process as another process of the node uses it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

namespace gpudt::device {

/// An allocation of one process as another one of the node opens it. Plain data, to travel through shared memory.
struct Exported {
  unsigned char handle[64];  ///< a cudaIpcMemHandle_t; of memory in pieces where to ask for them (handle_server.hpp)
  std::uint32_t pieces;      ///< their number; 0: an allocation of cudaMalloc
  std::uint32_t mps;         ///< 1: CUDA MPS lets kernels of the exporting process run beside those of others; or 0
  std::uint64_t buffer_id;   ///< differs for each allocation of the process, even at the same address
  std::uint64_t base, size;  ///< in the exporting process
  unsigned char gpu[16];     ///< the UUID
  std::uint64_t process;     ///< a random number that identifies the exporting process
  std::int64_t slot;         ///< in the exporting process's ExportTable; negative: none
};
static_assert(std::has_unique_object_representations_v<Exported>);  // it is compared and sent as bytes

/// The same for processes whose kernels take turns on the GPU of the memory, so that none should wait there for
/// another. That are all that use the GPU, unless CUDA MPS serves them. If it serves only some, or several daemons do,
/// the answer makes these slower, not wrong.
inline std::array<unsigned char, 16> turn_of(const Exported& memory) {
  std::array<unsigned char, 16> turn = std::to_array(memory.gpu);
  if (memory.mps != 0)
    for (std::size_t i = 0; i < sizeof memory.process; ++i)
      turn[i] ^= static_cast<unsigned char>(memory.process >> (8 * i));
  return turn;
}

/// Another process's allocation where a GPU of this process reaches it. Copies share one mapping, which stays open at
/// least while a copy exists, but not beyond stop(). Transfers that use it must be done before the last copy goes.
class Mapping {
 public:
  Mapping() = default;
  /// The address here of what is at `exporters_address` in the exporting process. That may lie outside the allocation,
  /// as the address of a buffer with a lower bound may; then the result is only for address arithmetic.
  void* at(std::uint64_t exporters_address) const;
  explicit operator bool() const { return memory_ != nullptr; }

 private:
  friend class Peers;
  friend class KnownMapping;
  explicit Mapping(std::shared_ptr<const struct PeerMemory> memory) : memory_(std::move(memory)) {}
  std::shared_ptr<const struct PeerMemory> memory_;
};

/// A Mapping that is remembered, but does not stay open for that (device::hold_again()).
class KnownMapping {
 public:
  KnownMapping() = default;
  explicit KnownMapping(const Mapping& mapping) : memory_(mapping.memory_) {}

 private:
  friend class Peers;
  std::weak_ptr<const struct PeerMemory> memory_;
};

/// The numbers of allocations known to be exportable or not, and of open mappings of other processes' memory.
struct PeerStatistics {
  std::int64_t exports = 0, imports = 0;
};

}  // namespace gpudt::device
