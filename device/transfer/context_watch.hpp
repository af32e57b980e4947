// Detects that a GPU context has been destroyed: cudaDeviceReset and cuCtxDestroy release all its resources without
// telling. One small allocation is checked in place of all of them: device memory, or pinned memory if the GPU has none
// left.
#pragma once

#include <atomic>
#include <chrono>
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

  /// Once it has ended, handles of its streams and events and addresses of its memory mean nothing, or something else.
  /// Costs a look at the clock, now and then a question to the driver (100 ns). Thread-safe.
  bool ended() const noexcept;
  /// Throws Error if it has.
  void check() const;
  static std::string complaint(int ordinal);
  /// No other one of the process has had it; not 0.
  std::uint64_t number() const { return number_; }

 private:
  using Clock = std::chrono::steady_clock;

  Runtime& runtime_;
  const int ordinal_;
  const std::uint64_t number_;
  bool gone() const noexcept;
  MemoryKind kind_ = MemoryKind::device;
  void* const memory_;
  const std::uint64_t id_;  ///< of device memory; 0: the runtime has none
  mutable std::atomic<bool> ended_{false};
  mutable std::atomic<Clock::rep> asked_{0};
};

}  // namespace gpudt::device
