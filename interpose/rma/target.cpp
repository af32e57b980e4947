// Applies accesses: read, combine, write, answer.
#include "interpose/rma/target.hpp"

#include <cstring>
#include <string>
#include <utility>

#include "interpose/support/errors.hpp"
#include "interpose/support/log.hpp"

namespace gpudt::interpose {

void TargetAccess::set_place(TargetPlace place) {
  try {
    if (header_.bytes != 0) incoming_ = Block(place.ordinal(), header_.bytes);
    place_.emplace(std::move(place));
  } catch (const device::Error& failure) {
    log_error(std::string("an access to this process's window: ") + failure.what());
    fail(error_class(failure));
  }
}

void TargetAccess::fail(int error) {
  error_ = error;
  if (header_.bytes != 0) incoming_ = Block(-1, header_.bytes);  // the data arrive all the same
}

bool TargetAccess::advance() {
  try {
    if (error_ == MPI_SUCCESS) return step();
  } catch (const device::Error& failure) {
    log_error(std::string("an access to this process's window: ") + failure.what());
    error_ = place_ && place_->is_missing() ? MPI_ERR_RMA_RANGE : error_class(failure);
  } catch (const std::bad_alloc&) {
    error_ = MPI_ERR_NO_MEM;
  }
  answer({});
  turn_.give_back(this);
  return true;
}

bool TargetAccess::reads() const {
  return fetches(header_.kind) || (header_.kind == MessageKind::accumulate && operation_at(header_.op) != MPI_REPLACE);
}

/// Waits if other processes may wait for the turn: this process may not call MPI again soon.
bool TargetAccess::transferred() {
  if (transfer_ && is_atomic(header_.kind) && turn_.shared()) transfer_.wait();
  return !transfer_ || transfer_.done();
}

bool TargetAccess::step() {
  for (;;) {
    switch (step_) {
      case Step::begin:
        if (is_atomic(header_.kind) && !turn_.take(this)) return false;
        if (reads()) {
          current_ = Block(place_->ordinal(), place_->bytes());
          transfer_ = place_->start_read(current_);
        }
        step_ = Step::reading;
        break;
      case Step::reading:
        if (!transferred()) return false;
        finish_read();
        step_ = Step::writing;
        break;
      case Step::writing:
        if (!transferred()) return false;
        step_ = Step::over;
        break;
      case Step::over:
        turn_.give_back(this);
        return true;
    }
  }
}

/// Answers with the data that were read, and starts to write the new data.
void TargetAccess::finish_read() {
  switch (header_.kind) {
    case MessageKind::put:
      transfer_ = place_->start_write(incoming_);
      break;
    case MessageKind::get:
      answer(std::move(current_));
      break;
    case MessageKind::compare_and_swap: {
      const auto bytes = static_cast<std::size_t>(place_->bytes());
      const bool equal = std::memcmp(current_.data(), incoming_.data() + bytes, bytes) == 0;
      answer(std::move(current_));
      if (equal) transfer_ = place_->start_write(incoming_);
      break;
    }
    default:
      accumulate();
  }
}

void TargetAccess::accumulate() {
  const MPI_Op op = operation_at(header_.op);
  if (header_.kind == MessageKind::get_accumulate && (op == MPI_NO_OP || op == MPI_REPLACE)) {
    answer(std::move(current_));
  } else if (header_.kind == MessageKind::get_accumulate) {
    Block fetched(-1, current_.bytes());
    std::memcpy(fetched.data(), current_.data(), static_cast<std::size_t>(current_.bytes()));
    answer(std::move(fetched));
  }
  if (op == MPI_NO_OP) return;
  if (op == MPI_REPLACE) {
    transfer_ = place_->start_write(incoming_);
    return;
  }
  combine(op, element_at(header_.element), incoming_.data(), current_.data(), current_.bytes());
  transfer_ = place_->start_write(current_);
}

void TargetAccess::answer(Block data) {
  if (!fetches(header_.kind) || std::exchange(answered_, true)) return;
  MessageHeader header;
  header.kind = MessageKind::result;
  header.id = header_.id;
  header.error = error_;
  header.bytes = data.bytes();
  reply_(header, std::move(data));
}

void LockQueue::request(int rank, int type, std::uint64_t id) {
  waiting_.push_back({rank, type, id});
  grant_waiting();
}

void LockQueue::release(int rank) {
  if (exclusive_ == rank)
    exclusive_ = MPI_PROC_NULL;
  else
    --shared_;
  grant_waiting();
}

/// Grants in order, except that shared requests overtake a waiting exclusive one, since processes that hold the lock
/// may wait for those that request it shared.
void LockQueue::grant_waiting() {
  for (auto next = waiting_.begin(); next != waiting_.end() && exclusive_ == MPI_PROC_NULL;) {
    const Waiting granted = *next;
    if (granted.type == MPI_LOCK_EXCLUSIVE && shared_ != 0) {
      ++next;
      continue;
    }
    next = waiting_.erase(next);
    if (granted.type == MPI_LOCK_EXCLUSIVE)
      exclusive_ = granted.rank;
    else
      ++shared_;
    grant_(granted.rank, granted.id);
  }
}

}  // namespace gpudt::interpose
