// The data of an MPI operation, independent of the transport.
#pragma once

#include <mpi.h>

#include <cstdint>

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

/// What an operation moves: how it gets ready for MPI, and back into device memory. All may throw device::Error
/// and MpiError.
class Payload {
 public:
  Payload() = default;
  Payload(const Payload&) = delete;
  Payload& operator=(const Payload&) = delete;
  virtual ~Payload() = default;
  /// A persistent operation is about to be started.
  virtual void restart() {}
  /// Starts bringing the user's data to where MPI takes it.
  virtual void start_pack() = 0;
  /// Starts bringing the first `bytes` bytes that MPI has delivered to the user's buffers.
  virtual void start_unpack(std::int64_t bytes) = 0;
  /// True when the pack or unpack started last is done.
  virtual bool done() = 0;
  /// Returns when done() is true.
  virtual void wait() = 0;
  /// The operation has failed: nothing may touch the user's buffers any more, nor keep another process waiting.
  virtual void abandon() {}
  /// The operation is over; a persistent one may be started again. For the report.
  virtual void ended() {}
  /// start_unpack() is wanted even if MPI has delivered nothing.
  virtual bool always_unpacks() const { return false; }
  /// Of sends, once they are packed.
  virtual Outgoing message() const { return {nullptr, 0, MPI_BYTE}; }
  /// MPI has been given message(), or has refused it.
  virtual void given() {}
  /// Of sends that need not be packed: make_mark() is to be called after given(), while MPI sends message().
  virtual bool marks_late() const { return false; }
  virtual void make_mark() {}
  /// Of receives, before announced(): whether the host can read what announced() needs of the `bytes` bytes that MPI
  /// has delivered. The first call may start a copy to the host; it is to be called again until it returns true.
  virtual bool is_readable(std::int64_t) { return true; }
  /// Of receives, before start_unpack(): what `bytes` bytes that MPI has delivered stand for.
  virtual Announced announced(std::int64_t bytes) { return {bytes}; }
  /// In place of announced(), of a receive that has failed with MPI_ERR_TRUNCATE, of a message of `bytes` bytes: if it
  /// was the RTS of a short message, its sender is released.
  virtual void truncated(std::int64_t) {}
};

}  // namespace gpudt::interpose
