#include "interpose/transport/received_on_device.hpp"

#include <algorithm>
#include <cstring>

#include "interpose/support/report.hpp"
#include "interpose/transport/peer/peer.hpp"

namespace gpudt::interpose {
namespace {

constexpr std::size_t head_bytes = sizeof(peer::RendezvousRequest);

/// Whether an RTS may come into device memory, and has room there.
bool may_get_rts(const DeviceBuffer& operand) {
  return peer_takes_fragments() && operand.bytes() >= peer::shortest_rts;
}

}  // namespace

HeadCopy::HeadCopy(int ordinal)
    : ordinal_(ordinal), memory_(device::acquire(device::StagingKind::mapped, ordinal, head_bytes)) {}

bool HeadCopy::is_copied(const void* data, std::int64_t bytes) {
  if (peer::rts_index(bytes) < 0) return true;
  try {
    if (!started_) copying_ = device::copy(ordinal_, memory_.data(), data, head_bytes);
    started_ = true;
    return copying_.done();
  } catch (...) {
    reset();
    throw;
  }
}

void HeadCopy::reset() {
  started_ = false;
  copying_ = {};
}

std::optional<HeadCopy> head_copy_for(const DeviceBuffer& operand) {
  if (!may_get_rts(operand)) return {};
  return HeadCopy(operand.ordinal);
}

std::unique_ptr<RendezvousReceiver> HeadCopy::recognise(std::int64_t bytes) {
  if (peer::rts_index(bytes) < 0) return nullptr;
  started_ = false;
  peer::RendezvousRequest head;
  std::memcpy(&head, memory_.data(), sizeof head);
  return (head.flags & peer::rts_remote) != 0 ? interpose::recognise(memory_.data(), bytes) : nullptr;
}

DirectReceive::DirectReceive(const DeviceBuffer& operand, const Outgoing& program)
    : operand_(operand), given_(given_unstaged(operand, program)), head_(head_copy_for(operand)) {}

DirectReceive::~DirectReceive() = default;

void DirectReceive::restart() {
  report_begin(operand_.reported);
  operand_.mark_again();
  operand_.after.wait();
}

bool DirectReceive::is_readable(std::int64_t bytes) {
  return !head_ || bytes > operand_.bytes() || head_->is_copied(operand_.first(), bytes);
}

Announced DirectReceive::announced(std::int64_t bytes) {
  receiver_.reset();
  if (head_ && bytes <= operand_.bytes()) receiver_ = head_->recognise(bytes);
  return receiver_ ? receiver_->announced(operand_.bytes()) : Announced{std::min(bytes, operand_.bytes())};
}

void DirectReceive::start_unpack(std::int64_t bytes) {
  if (operand_.reported) operand_.reported->received(bytes);
  if (receiver_) receiver_->start(operand_);
}

bool DirectReceive::done() {
  return !receiver_ || receiver_->done();
}

void DirectReceive::abandon() {
  if (head_) head_->reset();
  receiver_.reset();
}

std::shared_ptr<ReceiveWithRoom> receive_with_room(const Outgoing& program, bool lasts) {
  if (!peer_checks() || program.count < 0 || program.type == MPI_DATATYPE_NULL) return nullptr;
  if (!peer_wants_room(program.count * datatype::size_of(program.type), lasts)) return nullptr;
  const datatype::TypeInfoRef info = datatype::type_info(program.type);
  if (!info) return nullptr;
  return std::make_shared<ReceiveWithRoom>(program.room(), program.count, info);
}

std::shared_ptr<ReceivePayload> unstaged_receive(const DeviceBuffer& operand, const Outgoing& program, bool lasts) {
  if (!operand.is_direct()) {
    if (auto receive = receive_with_room(program, lasts)) return receive;
    return peer_host_receive(program.room(), program.count, program.type);
  }
  if (!may_get_rts(operand)) return nullptr;
  return std::make_shared<DirectReceive>(operand, program);
}

}  // namespace gpudt::interpose
