// A block of staging memory, held by its user until it goes back to its pool (pool.hpp).
#pragma once

#include <cstddef>
#include <utility>

#include "device/runtime/location.hpp"

namespace gpudt::device {

enum class StagingKind {
  mapped,  ///< pinned host memory, mapped into every GPU: the host and kernels both use it
  device,  ///< plain cudaMalloc memory of one GPU
};

/// A block of staging memory; returns to its pool when destroyed (which may also be after stop()). Contents are
/// undefined.
class Staging {
 public:
  Staging() = default;
  Staging(Staging&& other) noexcept { swap(other); }
  Staging& operator=(Staging&& other) noexcept {
    Staging taken(std::move(other));
    swap(taken);
    return *this;
  }
  ~Staging() {
    if (data_ != nullptr) give_back();
  }
  void* data() const { return data_; }  ///< for MPI: host-readable only if mapped. At least 256-byte aligned.
  std::size_t capacity() const { return capacity_; }
  MemoryKind memory_kind() const;
  explicit operator bool() const { return data_ != nullptr; }

 private:
  friend class Pool;
  void give_back() noexcept;
  void swap(Staging& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(data_, other.data_);
    std::swap(capacity_, other.capacity_);
    std::swap(chunk_, other.chunk_);
  }
  class Pool* pool_ = nullptr;
  void* data_ = nullptr;
  std::size_t capacity_ = 0;
  void* chunk_ = nullptr;  ///< a Pool::Chunk; null: ordinary memory
};

/// Staging memory now and at its peak, in bytes (in use, and in use + idle).
struct StagingStatistics {
  std::size_t in_use = 0, peak_in_use = 0, allocated = 0, peak_allocated = 0;
};

}  // namespace gpudt::device
