// Messages that MPI_Mprobe or MPI_Improbe has matched and no MPI_Mrecv has received: an MPI_Message does not
// name its communicator, whose error handler gets the errors of its receive (MPI-4.1 section 3.8.3).
#pragma once

#include <mpi.h>

#include "interpose/support/errors.hpp"

namespace gpudt::interpose {

struct MatchedFrom {
  ErrorOwner owner;  ///< its communicator or, once that has been freed, its error handler
  bool rts = false;  ///< it is an RTS
};

/// Remembers where `message` came from. There is nothing to remember of MPI_MESSAGE_NULL and MPI_MESSAGE_NO_PROC.
void matched_enter(MPI_Message message, const MatchedFrom& from) noexcept;

/// Removes and returns the entry of `message` (MPI may reuse the handle after the receive). Empty if unknown.
MatchedFrom matched_take(MPI_Message message);

/// A message while it is being received.
class MessageReceive {
 public:
  explicit MessageReceive(MPI_Message* message)
      : handle_(message), message_(message == nullptr ? MPI_MESSAGE_NULL : *message), from_(matched_take(message_)) {}
  ~MessageReceive() {
    if (handle_ != nullptr && *handle_ == message_) matched_enter(message_, from_);  // the receive has failed
  }
  MessageReceive(const MessageReceive&) = delete;
  MessageReceive& operator=(const MessageReceive&) = delete;
  const ErrorOwner& owner() const { return from_.owner; }
  bool is_rts() const { return from_.rts; }
  bool is_from_nobody() const { return message_ == MPI_MESSAGE_NO_PROC; }  ///< a probe of MPI_PROC_NULL matched it

 private:
  MPI_Message* handle_;
  MPI_Message message_;
  MatchedFrom from_;
};

/// The handle `comm` is about to become invalid.
void matched_forget_comm(MPI_Comm comm);

/// At MPI_Finalize: forgets the messages that the program has not received.
void matched_stop();

}  // namespace gpudt::interpose
