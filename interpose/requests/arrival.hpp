// What follows when MPI has delivered a message to a receive: the same steps for blocking receives, which take them in
// finish_receive(), and for nonblocking ones, which take them in the engine (operations.cpp), together for all messages
// that have arrived.
//
//   payload.is_readable()   polled until the first bytes can be read on the host
//   recognise()             finds out what has arrived: the message itself, or an RTS whose message is to be fetched
//   payload.start_unpack()  starts moving the data to the user's buffer
//   payload.done()          polled until they are there
//
// If the message has been truncated, or cannot be read, release() replaces these steps.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <limits>

#include "base/function_ref.hpp"
#include "interpose/mpi/workarounds.hpp"
#include "interpose/support/errors.hpp"
#include "interpose/transport/payload.hpp"
#include "interpose/transport/peer/peer.hpp"

namespace gpudt::interpose {

/// A message that MPI has delivered, or has failed to.
struct Arrival {
  int source = MPI_ANY_SOURCE;
  int tag = MPI_ANY_TAG;
  std::int64_t bytes = 0;   ///< delivered by MPI; after recognise() those that the receive gets
  int error = MPI_SUCCESS;  ///< MPI_ERR_TRUNCATE: the message is longer than `bytes`

  void note(const MPI_Status& status) {
    source = status.MPI_SOURCE;
    tag = status.MPI_TAG;
    bytes = received_bytes(status);
  }

  /// Sets `bytes` and `error`. `comm()` returns the communicator, or MPI_COMM_NULL if it has been freed. Throws what
  /// the payload does.
  void recognise(ReceivePayload& payload, FunctionRef<MPI_Comm()> comm) {
    const Announced announced = payload.announced(bytes);
    if (!announced.fetched) came_plain(payload, announced.bytes, comm);
    bytes = announced.bytes;
    error = announced.error;
  }
  /// The message is no RTS: `taken` bytes of it are the receive's.
  void came_plain(const ReceivePayload& payload, std::int64_t taken, FunctionRef<MPI_Comm()> comm) const;

  /// Whether a receive that failed with `code` may have lost an RTS, so that release() is needed.
  bool may_be_lost_rts(int code) const;
  /// Releases the sender of a lost RTS. `context`: of the communicator, if that has been freed (request_context()).
  void release(ReceivePayload& payload, MPI_Comm comm, std::int64_t context = -1) const;
};

/// The status of a call, which this library reads too. If MPI returns handled errors (returns_handled_errors), it is
/// the program's status, or `own_` if the program ignores it. Otherwise it is `own_`, which shows whether MPI has
/// filled it in, and the destructor copies it to the program's.
class SeenStatus {
 public:
  explicit SeenStatus(MPI_Status* user) : user_(user) {
    if constexpr (returns_handled_errors) return;
    own_ = {};
    own_.MPI_SOURCE = nobody;
    if (wanted()) own_.MPI_ERROR = user->MPI_ERROR;  // calls with one status do not set it
  }
  ~SeenStatus() {
    if (!returns_handled_errors && wanted() && own_.MPI_SOURCE != nobody) *user_ = own_;
  }
  SeenStatus(const SeenStatus&) = delete;
  SeenStatus& operator=(const SeenStatus&) = delete;
  /// The argument for MPI. A null pointer that does not mean "ignore" is passed on, since MPI reports it.
  MPI_Status* get() const { return is_users() || is_wrong() ? user_ : &own_; }
  MPI_Status& operator*() const { return is_users() ? *user_ : own_; }
  /// Whether a call that returned `code` has failed all the same, after an error handler was called.
  bool refused(int code) const { return !returns_handled_errors && code == MPI_SUCCESS && own_.MPI_SOURCE == nobody; }

 private:
  static constexpr int nobody = std::numeric_limits<int>::min();  // no rank, nor MPI_PROC_NULL or MPI_ANY_SOURCE

  bool wanted() const { return user_ != MPI_STATUS_IGNORE && user_ != nullptr; }
  bool is_users() const { return returns_handled_errors && wanted(); }
  bool is_wrong() const { return user_ == nullptr && user_ != MPI_STATUS_IGNORE; }

  mutable MPI_Status own_;  // MPI fills in a constant SeenStatus, too
  MPI_Status* const user_;
};

/// Ends a blocking receive for which MPI has returned `code`: unpacks or fetches the message into the user's buffer.
/// Returns what the program's call is to return.
int finish_receive(int code, const char* call, ReceivePayload& payload, const SeenStatus& seen, const ErrorOwner& owner,
                   PendingReceive& pending);
/// Ends a blocking receive for which MPI was given the program's buffer in host memory.
int finish_host_receive(int code, const char* call, const Outgoing& program, const SeenStatus& seen,
                        const ErrorOwner& owner, PendingReceive& pending);

}  // namespace gpudt::interpose
