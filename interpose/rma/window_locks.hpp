// The locks of a window whose processes share memory.
#pragma once

#include <utility>
#include <vector>

#include "interpose/transport/peer/shared_segment.hpp"

namespace gpudt::interpose {

/// One of the locks in this process's segment, while a window uses it.
class OwnWindowLock {
 public:
  OwnWindowLock() = default;
  /// Takes a free one, if there is one.
  explicit OwnWindowLock(peer::Segment& segment);
  OwnWindowLock(OwnWindowLock&& other) noexcept : index_(std::exchange(other.index_, -1)) {}
  OwnWindowLock(const OwnWindowLock&) = delete;
  OwnWindowLock& operator=(const OwnWindowLock&) = delete;
  ~OwnWindowLock();
  int index() const { return index_; }  ///< negative: none

 private:
  int index_ = -1;
};

/// As one process uses them. A rank's lock may be acquired again after it has been released; one thread at a time for
/// each rank.
class WindowLocks {
 public:
  /// `locks`: by rank in the window.
  explicit WindowLocks(std::vector<peer::WindowLockSet*> locks)
      : locks_(std::move(locks)), exclusive_(locks_.size(), 0) {}
  /// Returns when this process holds it; drives the engine meanwhile. `type` as in MPI_Win_lock.
  void acquire(int rank, int type);
  /// The same of all ranks, shared: never some of them while it waits for others.
  void acquire_all();
  void release(int rank);
  /// Whoever holds this, exclusively, alone accumulates to the memory of `rank`.
  peer::WindowLock& turn(int rank) const { return locks_[static_cast<std::size_t>(rank)]->accumulates; }

 private:
  std::vector<peer::WindowLockSet*> locks_;
  std::vector<char> exclusive_;  ///< of those held
};

}  // namespace gpudt::interpose
