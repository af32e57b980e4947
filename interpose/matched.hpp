// Messages that MPI_Mprobe or MPI_Improbe has matched and no MPI_Mrecv has received: a message does not say which
// communicator it came by, and errors of its receive are that communicator's (MPI-4.1 section 3.8.3).
#pragma once

#include <mpi.h>

namespace gpudt::interpose {

/// Remembers where `message` came from. There is nothing to remember of MPI_MESSAGE_NULL and MPI_MESSAGE_NO_PROC.
void matched_enter(MPI_Message message, MPI_Comm comm) noexcept;

/// Forgets `message`, whose handle may come back as soon as MPI has received it. Returns its communicator;
/// MPI_COMM_NULL if that is not known, or freed.
MPI_Comm matched_take(MPI_Message message);

/// A message while it is being received.
class MessageReceive {
 public:
  explicit MessageReceive(MPI_Message* message)
      : handle_(message), message_(message == nullptr ? MPI_MESSAGE_NULL : *message), comm_(matched_take(message_)) {}
  ~MessageReceive() {
    if (handle_ != nullptr && *handle_ == message_) matched_enter(message_, comm_);  // that has failed
  }
  MessageReceive(const MessageReceive&) = delete;
  MessageReceive& operator=(const MessageReceive&) = delete;
  MPI_Comm comm() const { return comm_; }

 private:
  MPI_Message* handle_;
  MPI_Message message_;
  MPI_Comm comm_;
};

/// The handle `comm` is about to become invalid.
void matched_forget_comm(MPI_Comm comm);

}  // namespace gpudt::interpose
