#include "interpose/transport/staged.hpp"

#include "base/recycled.hpp"
#include "interpose/support/points.hpp"
#include "interpose/support/report.hpp"
#include "interpose/transport/protocol.hpp"

namespace gpudt::interpose {

Staged::Staged(const DeviceBuffer& operand) : operand_(operand), staging_(acquire_staging(operand_, operand.bytes())) {
  mark(point::staged);
}

void Staged::restart() {
  report_begin(operand_.reported);
  operand_.mark_again();
}

void Staged::start_unpack(std::int64_t bytes) {
  if (operand_.reported) operand_.reported->received(bytes);
  start(device::Direction::unpack, bytes);
}

void Staged::start(device::Direction direction, std::int64_t bytes) {
  const bool packs = direction == device::Direction::pack;
  mark(packs ? point::pack_started : point::unpack_started);
  moving_.emplace(packs ? "pack" : "unpack", bytes);
  transfer_ = OperandTransfer(direction, operand_, 0, bytes, staging_.data(), staging_.memory_kind());
}

bool Staged::done() {
  if (!transfer_.done()) return false;
  moving_.reset();
  return true;
}

void Staged::wait() {
  const Timed timed(Clock::transfer);
  transfer_.wait();
  moving_.reset();
}

void Staged::abandon() {
  transfer_ = {};
  moving_.reset();
}

std::shared_ptr<SendPayload> make_packed(const DeviceBuffer& operand, const Destination&, Message&, Route&) {
  return make_recycled<StagedSend>(operand);
}

}  // namespace gpudt::interpose
