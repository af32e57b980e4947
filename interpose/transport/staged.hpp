// A device buffer's staging memory: what MPI sends from, or reads and writes, in the buffer's place. Receives have
// staging memory of their own (staged_receive.hpp).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "device/device.hpp"
#include "interpose/support/nvtx.hpp"
#include "interpose/transport/device_buffer.hpp"
#include "interpose/transport/payload.hpp"

namespace gpudt::interpose {

/// Staging memory with the operand it stands for.
class Staged : public CallPayload {
 public:
  /// Acquires the staging memory; may throw device::Error.
  explicit Staged(const DeviceBuffer& operand);
  void restart() override;
  void start_pack() override { start(device::Direction::pack, operand_.bytes()); }
  /// Bytes beyond the first `bytes` stay untouched in the user's buffer.
  void start_unpack(std::int64_t bytes) override;
  bool done() override;
  void wait() override;
  void abandon() override;
  void each_reported(VisitReported visit) const override { report_visit(operand_.reported, visit); }
  Outgoing message() const { return {data(), static_cast<int>(operand_.count), operand_.packed_type()}; }
  void* data() const { return staging_.data(); }
  const DeviceBuffer& operand() const { return operand_; }

 private:
  void start(device::Direction direction, std::int64_t bytes);

  DeviceBuffer operand_;
  device::Staging staging_;
  OperandTransfer transfer_;           // after staging_: it must end before the memory goes back
  std::optional<NvtxMessage> moving_;  ///< the pack or unpack under way
};

class StagedSend : public SendPayload {
 public:
  explicit StagedSend(const DeviceBuffer& operand) : staged_(operand) {}
  void restart() override { staged_.restart(); }
  void start_pack() override { staged_.start_pack(); }
  bool done() override { return staged_.done(); }
  void wait() override { staged_.wait(); }
  Outgoing message() const override { return staged_.message(); }
  void abandon() override { staged_.abandon(); }
  void each_reported(VisitReported visit) const override { staged_.each_reported(visit); }
  const DeviceBuffer& operand() const { return staged_.operand(); }

 private:
  Staged staged_;
};

}  // namespace gpudt::interpose
