// The locks of a window whose processes share memory.
#pragma once

#include <utility>
#include <vector>

#include "interpose/shared/shared_segment.hpp"

namespace gpudt::interpose {

/// One of the locks in this process's segment, while a window uses it.
class OwnWindowLock {
 public:
  OwnWindowLock() = default;
  /// Takes a free lock, if there is one.
  explicit OwnWindowLock(peer::Segment& segment);
  OwnWindowLock(OwnWindowLock&& other) noexcept : index_(std::exchange(other.index_, -1)) {}
  OwnWindowLock(const OwnWindowLock&) = delete;
  OwnWindowLock& operator=(const OwnWindowLock&) = delete;
  ~OwnWindowLock();
  int index() const { return index_; }  ///< negative: none

 private:
  int index_ = -1;
};

/// The locks of all ranks, as one process uses them. For each rank only one thread at a time may use the object.
class WindowLocks {
 public:
  /// `locks`: by rank in the window.
  explicit WindowLocks(std::vector<peer::WindowLockSet*> locks)
      : locks_(std::move(locks)), exclusive_(locks_.size(), 0) {}
  /// Returns when this process holds the lock; drives the engine meanwhile. `type` as in MPI_Win_lock.
  void acquire(int rank, int type);
  /// Acquires the locks of all ranks, shared. It holds none while it waits for another, so that no deadlock can arise.
  void acquire_all();
  void release(int rank);
  /// The lock that a process holds, exclusively, while it accumulates to the memory of `rank`.
  peer::WindowLock& turn(int rank) const { return locks_[static_cast<std::size_t>(rank)]->accumulates; }

 private:
  std::vector<peer::WindowLockSet*> locks_;
  std::vector<char> exclusive_;  ///< by rank: whether a held lock is exclusive
};

}  // namespace gpudt::interpose
