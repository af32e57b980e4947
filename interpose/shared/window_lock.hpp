// The locks of one process's window memory (MPI-4.1 section 12.5.3), in shared memory of the node: other processes take
// and release them without the help of that process.
#pragma once

#include <atomic>
#include <cstdint>

namespace gpudt::interpose::peer {

/// Held by one process exclusively, or by any number of processes that share it. There is no queue: a process that
/// wants to share the lock must not wait for one that waits for exclusive access, since those that hold it may wait for
/// the first one.
struct alignas(64) WindowLock {
  std::atomic<std::int32_t> holders;  ///< number of processes that share it; exclusive_holder: one holds it exclusively
  static constexpr std::int32_t exclusive_holder = -1;

  /// To be called before other processes know the lock.
  void clear() { holders.store(0, std::memory_order_relaxed); }
  /// Takes the lock; false if others hold it in a way that excludes this.
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

struct WindowLockSet {
  WindowLock memory;       ///< for MPI_Win_lock
  WindowLock accumulates;  ///< held, exclusively, by the process that accumulates to the memory
};

/// Number of windows of a process that can have such locks at a time.
inline constexpr int window_lock_count = 256;

}  // namespace gpudt::interpose::peer
