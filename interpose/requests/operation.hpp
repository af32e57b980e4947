// A nonblocking operation on a device buffer. The user holds a generalized request (MPI-4.1 section 13.2); the engine
// (engine/engine.hpp) takes the operation on:
//
//   send:     pack -> (in program order per peer) start the real send on staging memory -> it completes -> complete
//   receive:  real receive into staging memory -> it completes -> unpack what arrived -> complete
//
// An Operation is shared between the engine (until it completes) and the generalized request (until freed), and
// deletes itself when both have released it.
//
// Errors: the program's handlers run in the call that starts an operation or in the one that completes its request,
// never within the engine. A handler may wait for other operations, which the engine cannot complete while it
// waits for the handler. Exchanging the communicator's handler would be visible to the program and to other threads. So
// the engine tests real requests by test_some(), which calls no handler, and leaves failed ones to the completion call,
// in which MPI calls the right handler. Buffered sends, which fail for lack of room, are given to MPI by the starting
// call, and the arguments of other sends are checked there. Only if MPI itself breaks down does it call a handler
// within the engine.
#pragma once

#include <mpi.h>

#include <atomic>
#include <concepts>
#include <memory>
#include <utility>
#include <vector>

#include "base/one_thread.hpp"
#include "base/recycled.hpp"
#include "device/device.hpp"
#include "interpose/engine/engine.hpp"
#include "interpose/mpi/workarounds.hpp"
#include "interpose/requests/arrival.hpp"
#include "interpose/support/errors.hpp"
#include "interpose/transport/device_buffer.hpp"
#include "interpose/transport/payload.hpp"

namespace gpudt::interpose {

/// PMPI_Isend or another nonblocking send, or hidden_send.
using NonblockingSend = int (*)(const void*, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request*);
/// Whether the starting call must give the send to MPI: it takes room that the program has attached, or fails.
inline bool is_buffered(NonblockingSend send) {
  return send == PMPI_Ibsend;
}
using BlockingSend = int (*)(const void*, int, MPI_Datatype, int, int, MPI_Comm);
inline bool is_buffered(BlockingSend send) {
  return send == PMPI_Bsend;
}

/// The sends to one process on one communicator, which MPI keeps in order.
struct SendChannel {
  MPI_Comm comm = MPI_COMM_NULL;
  int peer = MPI_PROC_NULL;
  bool operator==(const SendChannel&) const = default;
};

/// The kind of an operation, and its payload, whose class depends on the kind.
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
  /// Only for kinds other than send and receive.
  std::shared_ptr<CallPayload> shared_call() const { return {payload_, call_}; }
  /// For a send, for a receive, for the other kinds.
  SendPayload& out() const { return *out_; }
  ReceivePayload& in() const { return *in_; }
  CallPayload& call() const { return *call_; }
  /// Starts packing the user's data for MPI; does nothing for a receive.
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
  ErrorOwner owner;     ///< engine_forget_comm() replaces a communicator that is freed
  SendChannel channel;  ///< send
  int tag = 0;
  NonblockingSend send = nullptr;          ///< send: how to start it, if it is not issued when it is submitted
  MPI_Request inner = MPI_REQUEST_NULL;    ///< the real operation on the staging memory; stays if it has failed
  bool lasting = false;                    ///< inner is persistent, and not for the operation to free
  bool on_device = true;                   ///< the program's buffer is device memory
  MPI_Request request = MPI_REQUEST_NULL;  ///< the generalized request
  CheckedRef checked;                      ///< of a persistent operation; otherwise the payload has one
  std::shared_ptr<void> keep;              ///< what else must outlive the operation

  // The outcome, written by the engine before the generalized request completes.
  Arrival arrived;  ///< what the status says
  bool cancelled = false;
  int error = MPI_SUCCESS;
  bool forbidden = false;  ///< `error` is that of GPUDT_REQUIRE
  bool told = false;       ///< the error handler has been called
  Went went{};             ///< where buffers are followed: the way of the data, once decided
  /// What follows when the real operation has ended.
  enum class Step {
    none,
    reading,   ///< the first bytes of the message are being copied to the host (ReceivePayload::is_readable())
    starting,  ///< the message has been recognised (or all has been sent), and the data are to be moved
    moving,    ///< the payload says when it is done
    lost,      ///< MPI has not delivered all of a message that may have been an RTS (Arrival::release())
  };
  Step step = Step::none;
  std::int64_t context = -1;  ///< of a receive without `inner`: that of its communicator (request_context())

  /// Set once the outcome is written, before the generalized request completes. A thread that sees the request complete
  /// reads it, so that all that the engine's thread wrote is visible, whatever MPI synchronises.
  std::atomic<bool> decided{false};

  std::atomic<bool> cancel_wanted{false};
  std::uint64_t number = 0;  ///< of a deferred send: its place in the order of sends
  // Only for the engine.
  bool issued = false;                             ///< MPI had it when it was submitted
  Operation *next = nullptr, *previous = nullptr;  ///< in the list of all
  Operation* next_incoming = nullptr;
  Operation* next_retired = nullptr;

  Operation() = default;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  ~Operation() {
    if (inner != MPI_REQUEST_NULL && !lasting) PMPI_Request_free(&inner);  // failed, and no call has completed it
  }

  /// Whether its destructor calls MPI, or may do so through `keep` or `owner.kept`.
  bool needs_mpi_to_end() const { return (inner != MPI_REQUEST_NULL && !lasting) || keep || owner.kept; }

  void retain() { add_to(references_, 1, std::memory_order_relaxed); }
  void release() {
    if (take_from(references_, 1, std::memory_order_acq_rel) == 1) delete this;
  }

 private:
  std::atomic<int> references_{1};
};

// --- all operations --------------------------------------------------------------------------------------------------

/// Lets MPI's progress advance operations. Returns null, or the reason why that is impossible.
const char* engine_start();
/// Lets pending operations end, cancelling receives that no message matches, and unhooks. False if some have not ended:
/// MPI may still write to their staging memory.
bool engine_stop();

/// An operation with its generalized request, made before the real operation is started: nothing can fail any more
/// once MPI uses the staging memory. Unless it is submitted, the destructor destroys both.
class Reservation {
 public:
  explicit Reservation(std::unique_ptr<Operation> operation);  ///< may throw std::bad_alloc
  ~Reservation();
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;
  /// The error of MPI_Grequest_start, which has called the error handler; then no other function may be called.
  int error() const { return error_; }
  Operation* operator->() const { return operation_; }

  /// To be called if another thread may free the communicator before submit(): from now on engine_forget_comm() finds
  /// the operation.
  void list();
  /// Hands the operation to the engine. A send starts in state "packing" (its pack has been started), unless `issued`;
  /// a receive is always issued (inner is active). Issued without an inner request, it completes when its payload is
  /// done. Returns MPI_SUCCESS. May throw std::bad_alloc if the operation is not issued.
  int submit(bool issued, MPI_Request* request);
  /// submit() if the function that starts the real operation has returned `code` and made a request. (MPICH 5 returns
  /// MPI_SUCCESS from a failed call after an error handler of the program has been called.) Returns `code`.
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
/// engine_order() for all sends: before a persistent send of MPI's own, whose peer is not known here.
void engine_order_all();
/// engine_order() for all peers of `comm`, whose handle is about to be freed. All operations on it, failed ones
/// included, then keep its error handler instead of the handle.
void engine_forget_comm(MPI_Comm comm);
/// Operations on `win` forget the handle, which is about to be freed.
void engine_forget_win(MPI_Win win);

namespace detail {
extern std::atomic<int> held;
}
/// Generalized requests that the user holds. Zero means that no nonpersistent request is ours.
inline int engine_held() {
  return detail::held.load(std::memory_order_relaxed);
}

/// Which way the data of a request go.
struct RequestWay {
  enum class State {
    not_ours,
    not_followed,  ///< buffers_followed is false
    open,          ///< its message has not come, or other processes have not made the collective
    known,
  };
  State state = State::not_ours;
  Went went{};
};
RequestWay engine_way_of(MPI_Request request);

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

/// Calls the error handler, unless it has been called. Returns the error. Not to be called within the engine.
int tell(Operation& operation);

}  // namespace gpudt::interpose
