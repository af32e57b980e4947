// The lock of one process's window memory (MPI-4.1 section 12.5.3), in memory that the node shares: processes take and
// release it without the help of the process whose memory it is.
#pragma once

#include <atomic>
#include <cstdint>
#include <initializer_list>

namespace gpudt::interpose::peer {

/// A ticket lock: granted in the order in which it was asked for, to neighbouring shared ones together. Numbers wrap
/// around.
struct alignas(64) WindowLock {
  std::atomic<std::uint32_t> tickets;  ///< given out so far
  std::atomic<std::uint32_t> entered;  ///< tickets that have held the lock, or hold it shared
  std::atomic<std::uint32_t> left;     ///< tickets that hold it no more

  /// Nobody holds it, or is told of it yet.
  void clear() {
    for (std::atomic<std::uint32_t>* const each : {&tickets, &entered, &left})
      each->store(0, std::memory_order_relaxed);
  }
  /// The place of a new holder-to-be in the queue.
  std::uint32_t take_ticket() { return tickets.fetch_add(1, std::memory_order_acq_rel); }
  /// Whether the lock is the ticket's now; not to be asked again after that.
  bool enter(std::uint32_t ticket, bool exclusive) {
    if (exclusive) return left.load(std::memory_order_acquire) == ticket;
    if (entered.load(std::memory_order_acquire) != ticket) return false;
    entered.store(ticket + 1, std::memory_order_release);
    return true;
  }
  void leave(bool exclusive) {
    if (exclusive) entered.fetch_add(1, std::memory_order_release);  // nobody else can be about to
    left.fetch_add(1, std::memory_order_acq_rel);
  }
};

/// Those of one window.
struct WindowLocks {
  WindowLock memory;       ///< MPI_Win_lock's
  WindowLock accumulates;  ///< held, exclusively, by the process that accumulates to the memory
};

/// Windows of a process that have such locks at a time.
inline constexpr int window_lock_count = 256;

}  // namespace gpudt::interpose::peer
