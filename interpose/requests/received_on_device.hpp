// What a CUDA-aware MPI has received into device memory from a process that shares no memory with this one. A long
// message that is not contiguous comes in fragments there, too, announced by an RTS (transport/peer/peer.hpp), which
// the host must see: of messages as long as an RTS, the first bytes are copied to it.
#pragma once

#include <cstdint>
#include <memory>

#include "device/device.hpp"
#include "interpose/transport/device_buffer.hpp"
#include "interpose/transport/payload.hpp"

namespace gpudt::interpose {

class RendezvousReceiver;

/// The first bytes of what has come to device memory, on the host.
class HeadCopy {
 public:
  /// Memory is taken now, so that no RTS is lost for want of it. May throw device::Error.
  explicit HeadCopy(int ordinal);
  /// Whether the copy is there, if a message of `bytes` bytes at `come` needs one. The first call starts it, and
  /// recognise() ends it. May throw device::Error.
  bool is_there(const void* come, std::int64_t bytes);
  /// Null if that message is what it looks like: no RTS, or none of a process that shares no memory with this one.
  std::unique_ptr<RendezvousReceiver> recognise(std::int64_t bytes);

 private:
  const int ordinal_;
  device::Staging memory_;
  device::Transfer copying_;  // after memory_
  bool started_ = false;
};

/// A receive into contiguous device memory that MPI is given itself.
class DirectReceive : public Payload {
 public:
  /// May throw device::Error.
  explicit DirectReceive(const DeviceBuffer& operand, const Outgoing& program);
  ~DirectReceive() override;
  /// The program's buffer.
  Outgoing message() const override { return given_; }
  /// The program's work on the default stream comes before MPI writes to the buffer.
  void restart() override;
  void start_pack() override {}
  bool is_readable(std::int64_t bytes) override;
  Announced announced(std::int64_t bytes) override;
  /// Fragments come to the program's buffer, too.
  void start_unpack(std::int64_t bytes) override;
  bool done() override;
  void wait() override;
  void abandon() override;
  void ended() override;

 private:
  DeviceBuffer operand_;
  const Outgoing given_;
  HeadCopy head_;
  std::unique_ptr<RendezvousReceiver> receiver_;
};

/// The payload of a nonblocking or persistent receive; null: no RTS can come to it, and MPI can have it unobserved. May
/// throw device::Error.
std::shared_ptr<Payload> direct_receive(const DeviceBuffer& operand, const Outgoing& program);

}  // namespace gpudt::interpose
