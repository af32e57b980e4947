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
  /// `least_room`: bytes that MPI is given if the operand is shorter; then this, not MPI, tells that a message is too
  /// long (rts_room()). A receive to which an RTS may come gets pageable memory: a short one the object's own, a long
  /// one such of which only what comes takes pages. May throw device::Error.
  explicit StagedReceive(const DeviceBuffer& operand, std::int64_t least_room = 0);
  ~StagedReceive() override;
  void restart() override;
  Outgoing message() const override;
  bool is_readable(std::int64_t bytes) override;
  Announced announced(std::int64_t bytes) override;
  void truncated(std::int64_t bytes) override;
  /// Bytes of the message beyond the first `bytes` stay untouched in the user's buffer.
  void start_unpack(std::int64_t bytes) override;
  bool done() override;
  void abandon() override;
  void ended() override;
  const DeviceBuffer& operand() const { return operand_; }

 private:
  void acquire_memory();
  void* data() const;
  void note_all_written();
  void unpack(std::int64_t bytes);
  bool is_fetched();
  bool start_receiver();
  bool is_unpacked();
  void unpack_next();

  DeviceBuffer operand_;
  const std::int64_t room_;  ///< bytes that MPI is given: of staging_, else of lazy_, else of own_
  bool may_be_pageable_ = false;
  device::Staging staging_;
  LazyRoom lazy_;
  mutable std::array<std::byte, 1024> own_;  ///< for an RTS, and messages as short
  std::optional<HeadCopy> head_;             ///< of staging_, if that is device memory and RTS messages may come there
  OperandTransfer transfer_;                 // after staging_: it must end before the memory goes back
  /// A part of an ordinary message on its way from pageable memory to the operand.
  struct Piece {
    device::Staging staging;
    OperandTransfer transfer;
  };
  std::vector<Piece> pieces_;                     ///< oldest first
  std::int64_t unpacked_ = 0, to_unpack_ = 0;     ///< bytes: from pageable memory to pieces_, and in all
  std::unique_ptr<RendezvousReceiver> receiver_;  ///< of the message that the latest RTS stands for
  std::int64_t fetching_ = 0;          ///< divided: bytes that it brings to the staging memory, to be unpacked then
  bool receiver_started_ = false;      ///< it has been started
  std::optional<NvtxMessage> moving_;  ///< being unpacked
};

}  // namespace gpudt::interpose
