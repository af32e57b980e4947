// The data of an MPI operation, independent of the transport: of sends, of receives, and of calls whose buffers MPI
// reads and writes as a whole.
#pragma once

#include <mpi.h>

#include <cstdint>

#include "interpose/engine/engine.hpp"
#include "interpose/support/report.hpp"

namespace gpudt::interpose {

/// What MPI is given to send, or to receive into.
struct Outgoing {
  const void* data;
  int count;
  MPI_Datatype type;

  void* room() const { return const_cast<void*>(data); }  ///< the receive buffer
};

/// What a receive delivers.
struct Announced {
  std::int64_t bytes;
  int error = MPI_SUCCESS;  ///< MPI_ERR_TRUNCATE: the message was longer
  bool fetched = false;     ///< MPI has delivered an RTS; the data are fetched
};

/// What an operation moves. All functions of it and of those below may throw device::Error and MpiError.
class Payload {
 public:
  Payload() = default;
  Payload(const Payload&) = delete;
  Payload& operator=(const Payload&) = delete;
  virtual ~Payload() = default;
  /// To be called before each start of a persistent operation.
  virtual void restart() {}
  /// True when what has been started last is done.
  virtual bool done() = 0;
  virtual void wait() {
    const Timed timed(Clock::transfer);
    wait_until([this] { return done(); }, for_message);
  }
  /// To be called when the operation has failed: stops all use of the user's buffers, and releases other processes.
  virtual void abandon() {}
  /// Calls `visit` for each of the user's buffers that is followed (report.hpp).
  virtual void each_reported(VisitReported) const {}
  /// To be called when the operation is over, for the report. A persistent one may be started again.
  void ended() const {
    each_reported([](Reported& buffer) { buffer.end(); });
  }
};

class SendPayload : public Payload {
 public:
  /// Starts bringing the user's data to where MPI takes it.
  virtual void start_pack() {}
  /// What MPI is given once the pack is done.
  virtual Outgoing message() const = 0;
  /// Whether message() is to be sent by a synchronous send, whatever the program's is.
  virtual bool goes_synchronously() const { return false; }
  /// MPI has been given message(), or has refused it.
  virtual void given() {}
  /// MPI has cancelled message(), or has refused it for its arguments: no process receives it.
  virtual void recalled() {}
  /// MPI has sent message(). True if the operation is over only once done() returns true again.
  virtual bool sent() { return false; }
};

/// What a receive moves (requests/arrival.hpp).
class ReceivePayload : public Payload {
 public:
  /// The memory that MPI is given.
  virtual Outgoing message() const = 0;
  /// Whether the host can read what announced() needs of the `bytes` bytes that MPI has delivered. The first call may
  /// start a copy to the host; it is to be called again until it returns true.
  virtual bool is_readable(std::int64_t) { return true; }
  /// To be called once, after is_readable(): what `bytes` delivered bytes are or stand for.
  virtual Announced announced(std::int64_t bytes) { return {bytes}; }
  /// To be called in place of announced() if a message of `bytes` bytes was truncated: releases the sender if what has
  /// come of it is the RTS of a short one, or a compact one. Returns whether it is.
  virtual bool truncated(std::int64_t) { return false; }
  /// To be called after announced(), with the bytes that it has returned: starts to unpack or fetch them into the
  /// user's buffer.
  virtual void start_unpack(std::int64_t bytes) = 0;
  /// Whether MPI has received into host memory what is for the memory of a GPU, so that an offer would be quicker.
  virtual bool prefers_offers() const { return false; }
  /// Whether start_unpack() is wanted even if no bytes have come.
  virtual bool always_unpacks() const { return false; }
};

/// The buffers of a call that MPI reads and writes at any time until it is complete: a collective, a file access.
class CallPayload : public Payload {
 public:
  /// Starts bringing the user's data to where MPI takes it, before the call.
  virtual void start_pack() {}
  /// Starts bringing what MPI has delivered to the user's buffers, after the call: the first `bytes` bytes of a file
  /// access, all data of a collective.
  virtual void start_unpack(std::int64_t) {}
};

}  // namespace gpudt::interpose
