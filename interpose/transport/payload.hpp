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

  void* room() const { return const_cast<void*>(data); }  ///< of a receive
};

/// What a receive gets.
struct Announced {
  std::int64_t bytes;
  int error = MPI_SUCCESS;  ///< MPI_ERR_TRUNCATE: the message was longer
  bool fetched = false;     ///< the message comes by peer transfer: MPI has brought its RTS
};

/// What an operation moves. All functions of it and of those below may throw device::Error and MpiError.
class Payload {
 public:
  Payload() = default;
  Payload(const Payload&) = delete;
  Payload& operator=(const Payload&) = delete;
  virtual ~Payload() = default;
  /// A persistent operation is about to be started.
  virtual void restart() {}
  /// True when what has been started last is done.
  virtual bool done() = 0;
  /// Returns when done() is true.
  virtual void wait() {
    const Timed timed(Clock::transfer);
    wait_until([this] { return done(); }, for_message);
  }
  /// The operation has failed: nothing may touch the user's buffers any more, nor keep another process waiting.
  virtual void abandon() {}
  /// The operation is over; a persistent one may be started again. For the report.
  virtual void ended() {}
};

/// What a send moves.
class SendPayload : public Payload {
 public:
  /// Starts bringing the user's data to where MPI takes it.
  virtual void start_pack() {}
  /// What MPI is given once that is done.
  virtual Outgoing message() const = 0;
  /// MPI has been given message(), or has refused it.
  virtual void given() {}
  /// MPI has cancelled message(): no process receives it.
  virtual void recalled() {}
  /// MPI has sent message(). True if the operation is over only when done() says so again.
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
  /// After is_readable(), once: what `bytes` bytes that MPI has delivered stand for.
  virtual Announced announced(std::int64_t bytes) { return {bytes}; }
  /// In place of announced(), if the receive has failed with MPI_ERR_TRUNCATE, of a message of `bytes` bytes: if it was
  /// the RTS of a short message, its sender is released.
  virtual void truncated(std::int64_t) {}
  /// To be called after announced(), with the bytes that it has returned: starts to unpack or fetch them into the
  /// user's buffer.
  virtual void start_unpack(std::int64_t bytes) = 0;
  /// Whether start_unpack() is wanted even if no bytes have come.
  virtual bool always_unpacks() const { return false; }
};

/// The buffers of a call that MPI reads and writes in their own good time: a collective, an access to a file.
class CallPayload : public Payload {
 public:
  /// Starts bringing the user's data to where MPI takes it, before the call.
  virtual void start_pack() {}
  /// Starts bringing what MPI has delivered to the user's buffers, after the call: of a file access the first `bytes`
  /// bytes, else all.
  virtual void start_unpack(std::int64_t) {}
};

}  // namespace gpudt::interpose
