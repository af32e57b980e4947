// Receives into device memory over a CUDA-aware MPI from processes that share no memory with this one. The message may
// be an RTS (transport/peer/peer.hpp), since such processes send long noncontiguous messages in fragments. The host
// must read the RTS, so the first bytes of every message with the length of an RTS are copied to the host.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "device/device.hpp"
#include "interpose/transport/device_buffer.hpp"
#include "interpose/transport/payload.hpp"

namespace gpudt::interpose {

class ReceiveWithRoom;
class RendezvousReceiver;

/// A copy on the host of the first bytes of what MPI has received into device memory.
class HeadCopy {
 public:
  /// Memory is taken now, so that no RTS is lost for want of it. May throw device::Error.
  explicit HeadCopy(int ordinal);
  /// True if the first bytes of the message at device address `data` are on the host, or `bytes` is no length of an
  /// RTS. The first call starts the copy, further calls poll it. May throw device::Error.
  bool is_copied(const void* data, std::int64_t bytes);
  /// After is_copied() has returned true, once for each message. Null if it is no RTS of a process that shares no
  /// memory with this one: then it is ordinary data. May throw device::Error and MpiError.
  std::unique_ptr<RendezvousReceiver> recognise(std::int64_t bytes);
  /// Gives up a copy that has been started.
  void reset();

 private:
  int ordinal_;
  device::Staging memory_;
  device::Transfer copying_;  // after memory_
  bool started_ = false;
};

/// The copy for a receive into `operand`; none if no RTS may come, or has no room there. May throw device::Error.
std::optional<HeadCopy> head_copy_for(const DeviceBuffer& operand);

/// A receive into contiguous device memory that MPI is given itself.
class DirectReceive : public ReceivePayload {
 public:
  /// May throw device::Error.
  DirectReceive(const DeviceBuffer& operand, const Outgoing& program);
  ~DirectReceive() override;
  Outgoing message() const override { return given_; }
  /// Waits for the program's work on the default stream, after which MPI may write to the buffer.
  void restart() override;
  bool is_readable(std::int64_t bytes) override;
  Announced announced(std::int64_t bytes) override;
  /// Fetches the message of an RTS into the program's buffer.
  void start_unpack(std::int64_t bytes) override;
  bool done() override;
  void abandon() override;
  void each_reported(VisitReported visit) const override { report_visit(operand_.reported, visit); }

 private:
  DeviceBuffer operand_;
  const Outgoing given_;
  std::optional<HeadCopy> head_;
  std::unique_ptr<RendezvousReceiver> receiver_;
};

/// The payload of a receive of `program` into host memory; null unless MPI is to be given more room (peer_wants_room(),
/// also for `lasts`). May throw std::bad_alloc.
std::shared_ptr<ReceiveWithRoom> receive_with_room(const Outgoing& program, bool lasts = false);

/// The payload of a nonblocking or persistent receive of `program` that is not staged, `operand` being what resolve()
/// has made of it; null if MPI can have the request itself. Then peer_truncated_in() handles a truncated RTS.
/// May throw device::Error and std::bad_alloc.
std::shared_ptr<ReceivePayload> unstaged_receive(const DeviceBuffer& operand, const Outgoing& program,
                                                 bool lasts = false);

}  // namespace gpudt::interpose
