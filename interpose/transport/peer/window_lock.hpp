// The locks of one process's window memory (MPI-4.1 section 12.5.3), in memory that the node shares: processes take and
// release them without the help of the process whose memory it is.
#pragma once

#include <atomic>
#include <cstdint>

namespace gpudt::interpose::peer {

/// Held by one process exclusively or by any number that share it. Nobody queues: who shares it must not wait for one
/// that wants it exclusively, and may itself be what others that share it wait for.
struct alignas(64) WindowLock {
  std::atomic<std::int32_t> holders;  ///< that share it; exclusive: one holds it alone
  static constexpr std::int32_t exclusive_holder = -1;

  /// Nobody holds it, or is told of it yet.
  void clear() { holders.store(0, std::memory_order_relaxed); }
  /// False if it is held so that this one cannot have it.
  bool try_enter(bool exclusive) {
    std::int32_t now = holders.load(std::memory_order_relaxed);
    while (exclusive ? now == 0 : now >= 0)
      if (holders.compare_exchange_weak(now, exclusive ? exclusive_holder : now + 1, std::memory_order_acquire,
                                        std::memory_order_relaxed))
        return true;
    return false;
  }
  void leave(bool exclusive) {
    if (exclusive)
      holders.store(0, std::memory_order_release);
    else
      holders.fetch_sub(1, std::memory_order_release);
  }
};

/// Those of one window.
struct WindowLockSet {
  WindowLock memory;       ///< MPI_Win_lock's
  WindowLock accumulates;  ///< held, exclusively, by the process that accumulates to the memory
};

/// Windows of a process that have such locks at a time.
inline constexpr int window_lock_count = 256;

}  // namespace gpudt::interpose::peer
