// A nonblocking operation on a device buffer. The user holds a generalized request (MPI-4.1 section 13.2); the engine
// (engine/engine.hpp) takes the operation on:
//
//   send:     pack -> (in program order per peer) start the real send on staging memory -> it completes -> complete
//   receive:  real receive into staging memory -> it completes -> unpack what arrived -> complete
//
// An Operation is shared between the engine (until it completes) and the generalized request (until freed), and
// deletes itself when both have let go.
//
// Errors: the program's handlers run in the call that starts an operation or in the one that completes its request,
// never within the engine. A handler may wait for other operations; the engine could not complete those while it is
// waiting for the handler. Swapping handlers on the communicator would be seen by the program and by other threads. So
// the engine tests real requests by the half of MPI_Testsome that calls no handler, and leaves those that have failed
// to the completion call, which has MPI itself tell whom it concerns. Buffered sends, which fail for lack of room, are
// given to MPI by the starting call; other sends are checked there, so that what is left is a breakdown of MPI itself,
// in which it does call the handler from within the engine.
#pragma once

#include <mpi.h>

#include <atomic>
#include <concepts>
#include <memory>
#include <utility>
#include <vector>

#include "base/recycled.hpp"
#include "device/device.hpp"
#include "interpose/engine/engine.hpp"
#include "interpose/mpi/workarounds.hpp"
#include "interpose/requests/arrival.hpp"
#include "interpose/support/errors.hpp"
#include "interpose/transport/device_buffer.hpp"
#include "interpose/transport/payload.hpp"

namespace gpudt::interpose {

/// A PMPI_Isend and its like.
using NonblockingSend = int (*)(const void*, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request*);
/// Must be called by the call that starts the operation: it takes room that the program has attached, or fails.
inline bool is_buffered(NonblockingSend send) {
  return send == PMPI_Ibsend;
}
using BlockingSend = int (*)(const void*, int, MPI_Datatype, int, int, MPI_Comm);
inline bool is_buffered(BlockingSend send) {
  return send == PMPI_Bsend;
}

/// Sends that MPI keeps in order.
struct SendChannel {
  MPI_Comm comm = MPI_COMM_NULL;
  int peer = MPI_PROC_NULL;
  bool operator==(const SendChannel&) const = default;
};

/// What an operation does, and the payload of that sort.
class Moved {
 public:
  enum class Kind {
    send,     ///< delivers nothing; the status is empty
    receive,  ///< delivers what the status of the real operation says
    fill,     ///< delivers all bytes: a collective, whose status is empty
    read,     ///< delivers what the status says: an access to a file, or a partitioned receive
    write,    ///< delivers nothing but a status: an access to a file
  };

  Moved() = default;
  template <std::derived_from<SendPayload> Sort>
  Moved(std::shared_ptr<Sort> payload) : kind_(Kind::send), out_(payload.get()), payload_(std::move(payload)) {}
  template <std::derived_from<ReceivePayload> Sort>
  Moved(std::shared_ptr<Sort> payload) : kind_(Kind::receive), in_(payload.get()), payload_(std::move(payload)) {}
  Moved(Kind kind, std::shared_ptr<CallPayload> payload)
      : kind_(kind), call_(payload.get()), payload_(std::move(payload)) {}

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  explicit operator bool() const { return payload_ != nullptr; }
  Payload* operator->() const { return payload_.get(); }
  const std::shared_ptr<Payload>& payload() const { return payload_; }
  std::shared_ptr<SendPayload> shared_out() const { return {payload_, out_}; }
  /// Of what is neither a send nor a receive.
  std::shared_ptr<CallPayload> shared_call() const { return {payload_, call_}; }
  /// Of a send, of a receive, of the others.
  SendPayload& out() const { return *out_; }
  ReceivePayload& in() const { return *in_; }
  CallPayload& call() const { return *call_; }
  /// Starts bringing the user's data to where MPI takes it; nothing for a receive.
  void start_pack() const {
    if (out_ != nullptr) out_->start_pack();
    if (call_ != nullptr) call_->start_pack();
  }
  void reset() { payload_.reset(); }

 private:
  Kind kind_ = Kind::send;
  SendPayload* out_ = nullptr;
  ReceivePayload* in_ = nullptr;
  CallPayload* call_ = nullptr;
  std::shared_ptr<Payload> payload_;
};

struct Operation : Recycled<Operation> {
  using Kind = Moved::Kind;

  Moved moved;
  ErrorOwner owner;     ///< its handle goes when the user frees it: engine_forget_comm
  SendChannel channel;  ///< send
  int tag = 0;
  NonblockingSend send = nullptr;          ///< send: how to start it, if it is not issued when it is submitted
  MPI_Request inner = MPI_REQUEST_NULL;    ///< the real operation on the staging memory; stays if it has failed
  bool lasting = false;                    ///< inner is persistent, and not for the operation to free
  bool on_device = true;                   ///< its buffer
  MPI_Request request = MPI_REQUEST_NULL;  ///< the generalized request
  CheckedRef checked;                      ///< of a persistent operation; of others the payload has it
  std::shared_ptr<void> keep;              ///< what else must outlive the operation

  // The outcome, written by the engine before the generalized request completes.
  Arrival arrived;  ///< what the status says
  bool cancelled = false;
  int error = MPI_SUCCESS;
  bool told = false;  ///< the error handler has been called
  /// What follows when the real operation has ended.
  enum class Step {
    none,
    reading,   ///< the first bytes of the message are being copied to the host (ReceivePayload::is_readable())
    starting,  ///< it is known what has come (or that all has been sent), and the data are to be moved
    moving,    ///< the payload says when it is done
    lost,      ///< MPI has not delivered all of a message that may have been an RTS (Arrival::release())
  };
  Step step = Step::none;
  std::int64_t context = -1;  ///< of a receive without `inner`: that of its communicator (request_context())

  /// Set when the outcome is written, just before the generalized request completes: what the engine's thread did to
  /// the operation then happens before what the thread does that sees it complete, whatever MPI does in between.
  std::atomic<bool> decided{false};

  std::atomic<bool> cancel_wanted{false};
  std::uint64_t number = 0;  ///< send: the engine's, for the order of sends
  // The engine's.
  bool issued = false;                             ///< when it was submitted
  Operation *next = nullptr, *previous = nullptr;  ///< in the list of all
  Operation* next_incoming = nullptr;
  Operation* next_retired = nullptr;

  Operation() = default;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  ~Operation() {
    if (inner != MPI_REQUEST_NULL && !lasting) PMPI_Request_free(&inner);  // it has failed and nobody asked
  }

  /// Whether to destroy it takes calls to MPI, be it by what is kept for it.
  bool needs_mpi_to_end() const { return (inner != MPI_REQUEST_NULL && !lasting) || keep || owner.kept; }

  void retain() { references_.fetch_add(1, std::memory_order_relaxed); }
  void release() {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

 private:
  std::atomic<int> references_{1};
};

// --- all operations --------------------------------------------------------------------------------------------------

/// Hooks into MPI's progress. Null, or why that is impossible.
const char* engine_start();
/// Lets pending operations end, cancelling receives that no message matches, and unhooks. False if some could not be
/// ended: MPI may still write to their staging memory.
bool engine_stop();

/// An operation with its generalized request, made before the real operation is started: nothing can fail any more
/// once MPI uses the staging memory. Unless it is submitted, both go again.
class Reservation {
 public:
  explicit Reservation(std::unique_ptr<Operation> operation);  ///< may throw std::bad_alloc
  ~Reservation();
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;
  /// Of MPI_Grequest_start, which has called the error handler; then nothing else may be done.
  int error() const { return error_; }
  Operation* operator->() const { return operation_; }

  /// For an operation whose communicator may be freed before it is submitted, by another thread: from here on it would
  /// forget the handle.
  void list();
  /// Hands the operation to the engine. A send starts in state "packing" (its pack has been started), unless `issued`;
  /// a receive is always issued (inner is active). Issued without an inner request, it completes when its payload says
  /// done. Returns MPI_SUCCESS. Of operations that are not issued it may throw std::bad_alloc.
  int submit(bool issued, MPI_Request* request);
  /// The same after the function that starts the real operation has returned `code`, if it has made a request: MPICH 5
  /// returns success of a call that has failed if an error handler of the program's own has been told. Returns `code`.
  int submit_issued(int code, MPI_Request* request);
  /// Hands over a send. MPI gets it at once if it is `packed` (there is nothing to pack, or that is done) and no send
  /// is deferred that must go before it. Returns what MPI has returned, or MPI_SUCCESS.
  int submit_send(bool packed, MPI_Request* request);

 private:
  Operation* operation_;  ///< null: submitted
  int error_;
};

/// Returns when the sends that are deferred on (comm, peer) now have been handed to MPI, so that a send issued then
/// does not overtake them (MPI-4.1 section 3.5). Costs one atomic load when nothing is deferred.
void engine_order(MPI_Comm comm, int peer);
/// Whether any send is deferred.
bool engine_defers();
/// The same for all communicators: for a persistent send of MPI's own, whose peer is not known here.
void engine_order_all();
/// The same for all peers of `comm`, whose handle is about to be freed; all operations that have not been freed, those
/// that have failed among them, then keep its error handler in its stead.
void engine_forget_comm(MPI_Comm comm);
/// Operations on `win` forget the handle, which is about to be freed.
void engine_forget_win(MPI_Win win);

/// Generalized requests that the user holds. Zero means that no nonpersistent request is ours.
int engine_held();

// --- failures, to be delivered by the completion calls ---------------------------------------------------------------

struct OperationRelease {
  void operator()(Operation* operation) const { operation->release(); }
};

struct Failed {
  MPI_Request request;
  std::unique_ptr<Operation, OperationRelease> operation;
};

/// Failed operations whose query function has run on this thread since the list was last taken.
std::vector<Failed>& failed_here();

/// Has the error handler called, once. Returns the error. Not to be called within the engine.
int tell(Operation& operation);

}  // namespace gpudt::interpose
