#include "interpose/transport/staged_receive.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <utility>

#include "interpose/support/points.hpp"
#include "interpose/support/report.hpp"
#include "interpose/transport/peer/peer.hpp"
#include "interpose/transport/staged.hpp"

namespace gpudt::interpose {

namespace {

/// Longest receive, in bytes, that takes pinned memory at once unless it fits own_: that costs little, and an ordinary
/// message is unpacked sooner.
constexpr std::int64_t most_pinned_in_advance = 64 << 10;

/// Whether the last message to a receive of about `bytes` bytes was an ordinary one that filled more than half of it.
/// The next one is then received into pinned memory, from which the GPU unpacks it by itself.
std::atomic<bool>& last_was_ordinary(std::int64_t bytes) {
  static std::array<std::atomic<bool>, 64> by_length{};
  return by_length[static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(bytes))) % by_length.size()];
}

/// Bytes that MPI is given, enough for an RTS.
std::int64_t room_for(const DeviceBuffer& operand, std::int64_t receive_room) {
  const bool on_host = operand.protocol == Protocol::mapped_staging;
  const std::int64_t least = on_host && peer_wants_room(operand.bytes()) ? peer::longest_rts : 0;
  return std::max({operand.bytes(), receive_room, least});
}

}  // namespace

StagedReceive::StagedReceive(const DeviceBuffer& operand, std::int64_t least_room)
    : operand_(operand), room_(room_for(operand, least_room)) {
  acquire_memory();
  if (operand_.protocol == Protocol::device_staging) head_ = head_copy_for(operand_);
  mark(point::staged);
}

StagedReceive::~StagedReceive() = default;

/// MPI must have room for an ordinary message of that length, but mostly an RTS comes instead.
void StagedReceive::acquire_memory() {
  const auto bytes = static_cast<std::size_t>(room_);
  const bool on_host = operand_.protocol == Protocol::mapped_staging && peer_checks();
  const bool fits_own = bytes <= own_.size();
  may_be_pageable_ = on_host && (fits_own || room_ > most_pinned_in_advance);
  if (may_be_pageable_ && last_was_ordinary(room_).load(std::memory_order_relaxed))
    staging_ = device::try_acquire(operand_.staging_kind(), operand_.ordinal, bytes);
  if (staging_ || (may_be_pageable_ && fits_own)) return;
  if (may_be_pageable_) lazy_ = LazyRoom::of(bytes);
  if (!lazy_) staging_ = acquire_staging(operand_, room_);
}

void* StagedReceive::data() const {
  if (staging_) return staging_.data();
  return lazy_ ? lazy_.data() : own_.data();
}

Outgoing StagedReceive::message() const {
  if (room_ > operand_.bytes()) return {data(), static_cast<int>(room_), MPI_BYTE};
  return {data(), static_cast<int>(operand_.count), operand_.packed_type()};
}

bool StagedReceive::is_readable(std::int64_t bytes) {
  return !head_ || head_->is_copied(data(), bytes);
}

Announced StagedReceive::announced(std::int64_t bytes) {
  mark(point::arrived);
  receiver_.reset();
  receiver_started_ = false;
  // MPICH 5 may return more bytes than it has delivered.
  const bool may_be_rts = bytes <= room_ && peer_may_be_rts(bytes) && peer_checks_hidden();
  if (may_be_rts && operand_.protocol == Protocol::mapped_staging)
    receiver_ = recognise(data(), bytes);
  else if (may_be_rts && head_)
    receiver_ = head_->recognise(bytes);
  if (may_be_pageable_)
    last_was_ordinary(room_).store(!receiver_ && bytes > operand_.bytes() / 2, std::memory_order_relaxed);
  // After MPICH 5 has called the program's error handler for a truncation, it returns no error, and the whole length.
  const bool too_long = bytes > operand_.bytes() && room_ > operand_.bytes();
  if (!receiver_) return {std::min(bytes, operand_.bytes()), too_long ? MPI_ERR_TRUNCATE : MPI_SUCCESS};
  mark(point::recognised);
  return receiver_->announced(operand_.bytes());
}

/// MPI does not return how much it has written.
void StagedReceive::note_all_written() {
  if (lazy_) lazy_.note_written(static_cast<std::size_t>(room_));
}

bool StagedReceive::truncated(std::int64_t bytes) {
  note_all_written();
  return operand_.protocol == Protocol::mapped_staging &&
         RendezvousReceiver::release_named(data(), bytes, operand_.bytes());
}

bool StagedReceive::done() {
  if (!is_fetched() || !transfer_.done()) return false;
  moving_.reset();
  return true;
}

/// Whether the message of an RTS has been fetched. For a divided operand it comes to the staging memory first.
bool StagedReceive::is_fetched() {
  if (!receiver_) return true;
  if (!start_receiver() || !receiver_->done()) return false;
  if (fetching_ != 0) unpack(std::exchange(fetching_, 0));
  return true;
}

void StagedReceive::abandon() {
  note_all_written();
  if (head_) head_->reset();
  receiver_.reset();
  fetching_ = 0;
  transfer_ = {};
  moving_.reset();
}

void StagedReceive::restart() {
  report_begin(operand_.reported);
  operand_.mark_again();
}

void StagedReceive::start_unpack(std::int64_t bytes) {
  if (operand_.reported) operand_.reported->received(bytes);
  if (!receiver_) return unpack(bytes);
  if (operand_.division) fetching_ = bytes;
  start_receiver();
}

/// Starts the fetch once the program's own work is over: another process may be asked to write to the buffer.
bool StagedReceive::start_receiver() {
  if (receiver_started_ || !operand_.after.reached()) return receiver_started_;
  receiver_started_ = true;  // also if it fails: then it is not tried again
  if (operand_.division) report_went(operand_.reported, {went_staged, "the buffer lies in several memories"});
  if (operand_.division)
    receiver_->start(datatype::decode(operand_.packed_type()), operand_.count, data());
  else
    receiver_->start(operand_);
  return true;
}

void StagedReceive::unpack(std::int64_t bytes) {
  mark(point::unpack_started);
  moving_.emplace("unpack", bytes);
  if (lazy_) lazy_.note_written(static_cast<std::size_t>(bytes));
  const device::MemoryKind kind = staging_ ? staging_.memory_kind() : device::MemoryKind::host;
  transfer_ = OperandTransfer(device::Direction::unpack, operand_, 0, bytes, data(), kind);
}

}  // namespace gpudt::interpose
