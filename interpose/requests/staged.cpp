#include "interpose/requests/staged.hpp"

#include <algorithm>
#include <utility>

#include "device/timeline.hpp"
#include "interpose/support/report.hpp"
#include "interpose/transport/peer/peer.hpp"

namespace gpudt::interpose {

device::Staging acquire_staging(DeviceBuffer& operand, std::int64_t bytes) {
  const auto size = static_cast<std::size_t>(bytes);
  if (operand.protocol == Protocol::device_staging) {
    if (device::Staging staging = device::try_acquire(device::StagingKind::device, operand.ordinal, size))
      return staging;
    operand.protocol = Protocol::mapped_staging;
  }
  return device::acquire(device::StagingKind::mapped, operand.ordinal, size);
}

Staged::Staged(const DeviceBuffer& operand, std::optional<std::int64_t> receive_room)
    : operand_(operand),
      room_(std::max(operand.bytes(), receive_room.value_or(0))),
      staging_(acquire_staging(operand_, room_)) {
  if (receive_room && operand_.protocol == Protocol::device_staging) head_ = head_copy_for(operand_);
  device::mark(device::Point::staged);
}

Staged::~Staged() = default;

Outgoing Staged::message() const {
  if (room_ > operand_.bytes()) return {staging_.data(), static_cast<int>(room_), MPI_BYTE};
  return {staging_.data(), static_cast<int>(operand_.count), operand_.packed_type()};
}

bool Staged::is_readable(std::int64_t bytes) {
  return !head_ || head_->is_copied(staging_.data(), bytes);
}

Announced Staged::announced(std::int64_t bytes) {
  device::mark(device::Point::arrived);
  receiver_.reset();
  receiver_started_ = false;
  // MPICH 5 may tell a length that has not come.
  const bool may_be_rts = bytes <= room_ && peer_may_be_rts(bytes) && peer_checks_hidden();
  if (may_be_rts && operand_.protocol == Protocol::mapped_staging)
    receiver_ = RendezvousReceiver::recognise(staging_.data(), bytes);
  else if (may_be_rts && head_)
    receiver_ = head_->recognise(bytes);
  // MPICH 5 returns no error, and the whole length, if the program's error handler has been told of a truncation.
  const bool too_long = bytes > operand_.bytes() && room_ > operand_.bytes();
  if (!receiver_) return {std::min(bytes, operand_.bytes()), too_long ? MPI_ERR_TRUNCATE : MPI_SUCCESS};
  device::mark(device::Point::recognised);
  return receiver_->announced(operand_.bytes());
}

void Staged::truncated(std::int64_t bytes) {
  if (operand_.protocol == Protocol::mapped_staging)
    RendezvousReceiver::release_short(staging_.data(), bytes, operand_.bytes());
}

bool Staged::done() {
  if (!is_fetched() || !transfer_.done()) return false;
  moving_.reset();
  return true;
}

/// What an RTS stands for has come. Into a divided operand it comes by way of the staging memory.
bool Staged::is_fetched() {
  if (!receiver_) return true;
  if (!start_receiver() || !receiver_->done()) return false;
  if (fetching_ != 0) start(device::Direction::unpack, std::exchange(fetching_, 0));
  return true;
}

void Staged::abandon() {
  if (head_) head_->reset();
  receiver_.reset();
  fetching_ = 0;
  transfer_ = {};
  moving_.reset();
}

void Staged::restart() {
  report_begin(operand_.reported);
  operand_.mark_again();
}

void Staged::ended() {
  report_end(operand_.reported);
}

void Staged::start_pack() {
  start(device::Direction::pack, operand_.bytes());
}

void Staged::start_unpack(std::int64_t bytes) {
  if (operand_.reported) operand_.reported->received(bytes);
  if (!receiver_) return start(device::Direction::unpack, bytes);
  if (operand_.division) fetching_ = bytes;
  start_receiver();
}

/// Not before the program's own work is over: another process may be asked to write to the buffer.
bool Staged::start_receiver() {
  if (receiver_started_ || !operand_.after.reached()) return receiver_started_;
  receiver_started_ = true;  // also if it fails: then it is not tried again
  if (operand_.division)
    receiver_->start(datatype::decode(operand_.packed_type()), operand_.count, staging_.data());
  else
    receiver_->start(operand_, staging_.data());
  return true;
}

void Staged::start(device::Direction direction, std::int64_t bytes) {
  device::mark(direction == device::Direction::pack ? device::Point::pack_started : device::Point::unpack_started);
  const bool on_device = operand_.protocol == Protocol::device_staging;
  moving_.emplace(direction == device::Direction::pack ? "pack" : "unpack", bytes);
  transfer_ = OperandTransfer(direction, operand_, 0, bytes, staging_.data(),
                              on_device ? device::MemoryKind::device : device::MemoryKind::pinned);
}

void Staged::wait() {
  const Timed timed(Clock::transfer);
  if (receiver_)
    wait_with_progress(*this);
  else
    transfer_.wait();
  moving_.reset();
}

}  // namespace gpudt::interpose
