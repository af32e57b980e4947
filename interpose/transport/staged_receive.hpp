// Staging memory for a receive into device memory. An ordinary message is unpacked from there; mostly an RTS comes
// instead, and the message is fetched from its sender.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "device/device.hpp"
#include "interpose/support/nvtx.hpp"
#include "interpose/transport/device_buffer.hpp"
#include "interpose/transport/lazy_room.hpp"
#include "interpose/transport/payload.hpp"
#include "interpose/transport/received_on_device.hpp"

namespace gpudt::interpose {

class StagedReceive : public ReceivePayload {
 public:
  /// `least_room`: bytes that MPI is given if the operand is shorter (rts_room()); then this object, not MPI, detects a
  /// message that is too long. A receive to which an RTS may come gets pageable memory: in this object if it is short,
  /// a LazyRoom if it is long. May throw device::Error.
  explicit StagedReceive(const DeviceBuffer& operand, std::int64_t least_room = 0);
  ~StagedReceive() override;
  void restart() override;
  Outgoing message() const override;
  bool is_readable(std::int64_t bytes) override;
  Announced announced(std::int64_t bytes) override;
  bool truncated(std::int64_t bytes) override;
  /// Bytes of the message beyond the first `bytes` stay untouched in the user's buffer.
  void start_unpack(std::int64_t bytes) override;
  bool done() override;
  void abandon() override;
  bool prefers_offers() const override { return operand_.protocol == Protocol::mapped_staging && !operand_.division; }
  void each_reported(VisitReported visit) const override { report_visit(operand_.reported, visit); }
  const DeviceBuffer& operand() const { return operand_; }

 private:
  void acquire_memory();
  void* data() const;
  void note_all_written();
  void unpack(std::int64_t bytes);
  bool is_fetched();
  bool start_receiver();

  DeviceBuffer operand_;
  const std::int64_t room_;  ///< bytes that MPI is given: in staging_, lazy_ or own_, the first that is there
  bool may_be_pageable_ = false;
  device::Staging staging_;
  LazyRoom lazy_;
  mutable std::array<std::byte, 1024> own_;  ///< for an RTS, and messages as short
  std::optional<HeadCopy> head_;  ///< copies from staging_, if that is device memory and an RTS may come there
  OperandTransfer transfer_;      // after the memory, which stays until it ends
  std::unique_ptr<RendezvousReceiver> receiver_;  ///< of the message that the latest RTS stands for
  std::int64_t fetching_ = 0;          ///< divided operand: bytes that receiver_ brings to the staging memory
  bool receiver_started_ = false;      ///< also if the start has failed
  std::optional<NvtxMessage> moving_;  ///< the unpack under way
};

}  // namespace gpudt::interpose
