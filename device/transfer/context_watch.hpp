// Detects that a GPU context has been destroyed: cudaDeviceReset and cuCtxDestroy release all its resources silently.
// One small allocation is checked in place of all of them: device memory, or pinned memory if the GPU has none left.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "device/runtime/runtime.hpp"

namespace gpudt::device {

class ContextWatch {
 public:
  /// May create the context. Throws Error.
  ContextWatch(Runtime& runtime, int ordinal);
  ~ContextWatch();
  ContextWatch(const ContextWatch&) = delete;
  ContextWatch& operator=(const ContextWatch&) = delete;

  /// Whether the context has ended: then handles of its streams and events and addresses of its memory are invalid, or
  /// belong to others. Queries the driver now and then (100 ns). Thread-safe.
  bool ended() const noexcept;
  /// Whether the driver certainly knows the context's memory, asked now.
  bool is_known() const noexcept { return !gone(); }
  /// Throws Error if the context has ended.
  void check() const {
    if (ended()) throw Error(Failure::runtime, complaint(ordinal_));
  }
  static std::string complaint(int ordinal);
  /// Unique within the process; not 0.
  std::uint64_t number() const { return number_; }

 private:
  Runtime& runtime_;
  const int ordinal_;
  const std::uint64_t number_;
  bool gone() const noexcept;
  MemoryKind kind_ = MemoryKind::device;
  void* const memory_;
  const std::uint64_t id_;  ///< the allocation's; 0: the runtime has no ids
  mutable std::atomic<bool> ended_{false};
  mutable std::atomic<std::int64_t> asked_{0};  ///< when the driver was last queried, in ticks; 0: never
};

}  // namespace gpudt::device
