// The target's side of a served window. It applies the accesses that have arrived, one after the other, and grants
// locks.
#pragma once

#include <mpi.h>

#include <deque>
#include <functional>
#include <optional>

#include "interpose/rma/data.hpp"
#include "interpose/rma/message.hpp"
#include "interpose/shared/window_lock.hpp"

namespace gpudt::interpose {

/// Makes accumulates to a window's memory exclude each other.
class AtomicTurn {
 public:
  /// To be called if other processes accumulate to this memory too; each holds `lock` while it does.
  void share(peer::WindowLock& lock) { lock_ = &lock; }
  /// Whether other processes may wait for the turn, also while this process does not call MPI.
  bool shared() const { return lock_ != nullptr; }
  bool take(const void* who) {
    if (owner_ == nullptr && (lock_ == nullptr || lock_->try_enter(/*exclusive=*/true))) owner_ = who;
    return owner_ == who;
  }
  void give_back(const void* who) {
    if (owner_ != who) return;
    owner_ = nullptr;
    if (lock_ != nullptr) lock_->leave(/*exclusive=*/true);
  }

 private:
  const void* owner_ = nullptr;
  peer::WindowLock* lock_ = nullptr;
};

/// An access that is being applied. It stores failures instead of throwing them.
class TargetAccess {
 public:
  /// Sends an answer to the origin: the data fetched (no bytes after a failure).
  using Reply = std::function<void(MessageHeader, Block)>;

  TargetAccess(const MessageHeader& header, AtomicTurn& turn, Reply reply)
      : header_(header), turn_(turn), reply_(std::move(reply)) {}
  ~TargetAccess() { turn_.give_back(this); }
  TargetAccess(const TargetAccess&) = delete;
  TargetAccess& operator=(const TargetAccess&) = delete;

  /// Sets the place of the access, or the MPI error class if it is impossible.
  void set_place(TargetPlace place);
  void fail(int error);

  /// Memory for the data of the access; to be filled before the first advance().
  std::byte* incoming() const { return incoming_.data(); }

  /// Advances as far as possible without waiting. True when the access is complete.
  bool advance();
  int error() const { return error_; }

 private:
  enum class Step { begin, reading, writing, over };
  bool step();
  bool transferred();
  void finish_read();
  void accumulate();
  void answer(Block data);
  bool reads() const;

  MessageHeader header_;
  AtomicTurn& turn_;
  Reply reply_;
  std::optional<TargetPlace> place_;
  Block incoming_, current_;
  device::Transfer transfer_;  // after the blocks: it must end before they are destroyed
  Step step_ = Step::begin;
  int error_ = MPI_SUCCESS;
  bool answered_ = false;
};

/// The lock of this process's window memory (MPI-4.1 section 12.5.3): which processes hold it, and which wait for it.
class LockQueue {
 public:
  /// Sends process `rank` the grant of its lock request `id`.
  using Grant = std::function<void(int rank, std::uint64_t id)>;
  explicit LockQueue(Grant grant) : grant_(std::move(grant)) {}
  void request(int rank, int type, std::uint64_t id);
  void release(int rank);

 private:
  struct Waiting {
    int rank;
    int type;
    std::uint64_t id;
  };
  void grant_waiting();

  Grant grant_;
  int exclusive_ = MPI_PROC_NULL;
  int shared_ = 0;
  std::deque<Waiting> waiting_;
};

}  // namespace gpudt::interpose
