#include "interpose/transport/internode/message_ends.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "datatype/reference.hpp"
#include "interpose/support/errors.hpp"
#include "interpose/support/points.hpp"

namespace gpudt::interpose::peer {

// --- the sender's end ------------------------------------------------------------------------------------------------

MessageOutflow::MessageOutflow(Remote& remote, int rank, int index, Descriptor& descriptor, DeviceBuffer operand)
    : remote_(remote),
      rank_(rank),
      id_{index, descriptor.generation},
      descriptor_(descriptor),
      operand_(std::move(operand)),
      kind_(operand_.staging_kind()),
      fragment_bytes_(fragment_size(descriptor.bytes, kind_)) {
  descriptor_.fragment_bytes = fragment_bytes_;
  remote_.under_way.fetch_add(1);
}

MessageOutflow::~MessageOutflow() {
  const std::int64_t wanted = descriptor_.wanted_bytes.load(std::memory_order_acquire);
  if (!turn_ended_ && wanted >= 0) remote_.give_up_turn(Remote::Way::out, rank_, id_, wanted - given_, fragment_bytes_);
  remote_.under_way.fetch_sub(1);
}

bool MessageOutflow::step() {
  const std::int64_t wanted = descriptor_.wanted_bytes.load(std::memory_order_acquire);
  reap();
  while (begin(wanted < 0 ? descriptor_.bytes : wanted)) {
  }
  if (wanted >= 0) send(wanted);
  return wanted >= 0 && reaped_ == wanted && turn_ended_;
}

/// Starts to pack the next part; false if there is none, or no room for it.
bool MessageOutflow::begin(std::int64_t limit) {
  if (begun_ >= limit || parts_.size() >= parts_in_flight) return false;
  const std::int64_t end = std::min(begun_ + fragment_bytes_, descriptor_.bytes);
  Part part{end - begun_, {}, {}, {}};
  if (!find_staging(part)) return false;
  mark(point::part_pack_started);
  part.packing =
      device::start(device::Direction::pack, operand_.ordinal, operand_.info->layout(), operand_.count, operand_.buffer,
                    begun_, end, part.staging.data(), part.staging.memory_kind(), operand_.after);
  parts_.push_back(std::move(part));
  begun_ = end;
  return true;
}

/// One part's memory is kept to the end; more is taken if there is some. To wait for other messages' memory would be to
/// wait for receives that may be posted later.
bool MessageOutflow::find_staging(Part& part) {
  const auto bytes = static_cast<std::size_t>(fragment_bytes_);
  part.staging = std::move(spare_);
  if (!part.staging && begun_ == 0)
    part.staging = kind_ == device::StagingKind::mapped ? device::acquire_packed(operand_.ordinal, bytes)
                                                        : device::acquire(kind_, operand_.ordinal, bytes);
  if (!part.staging) part.staging = device::try_acquire(kind_, operand_.ordinal, bytes);
  return bool{part.staging};
}

void MessageOutflow::send(std::int64_t wanted) {
  if (turn_ended_ || !remote_.has_turn(Remote::Way::out, rank_, id_)) return;
  while (send_next(wanted)) {
  }
  if (given_ < wanted) return;
  turn_ended_ = true;
  remote_.end_turn(Remote::Way::out, rank_);
}

/// Sends the next part; false if it is not packed yet.
bool MessageOutflow::send_next(std::int64_t wanted) {
  if (given_ == wanted || given_parts_ == parts_.size()) return false;
  Part& part = parts_[given_parts_];
  if (!part.packing.done()) return false;
  mark(point::part_packed);
  part.bytes = std::min(part.bytes, wanted - given_);
  mark(point::part_given);
  part.sending = remote_.send(rank_, std::move(part.staging), part.bytes);
  given_ += part.bytes;
  ++given_parts_;
  return true;
}

void MessageOutflow::reap() {
  for (; given_parts_ != 0; --given_parts_) {
    Part& part = parts_.front();
    const MpiTransfer::State state = part.sending->state.load(std::memory_order_acquire);
    if (state == MpiTransfer::State::under_way) return;
    if (state == MpiTransfer::State::failed) throw MpiError(MPI_ERR_OTHER, "a part of a message is not sent");
    mark(point::part_sent);
    reaped_ += part.bytes;
    spare_ = std::move(part.sending->staging);
    parts_.pop_front();
  }
}

// --- the receiver's end ----------------------------------------------------------------------------------------------

MessageInflow::MessageInflow(Remote& remote, int rank, const MessageId& id, std::int64_t fragment_bytes,
                             const Target& target)
    : remote_(remote), rank_(rank), id_(id), target_(target), fragment_bytes_(fragment_bytes) {
  const datatype::Shape shape = target.layout->shape(target.count);
  if (target.direct || (target.ordinal < 0 && shape.kind == datatype::ShapeKind::contiguous))
    direct_ = static_cast<std::byte*>(target.user) + shape.offset;
  else if (target.bytes > 0)
    make_ring();
  remote_.want(rank_, id_, target_.bytes);
  remote_.under_way.fetch_add(1);  // nothing fails from here on
  remote_.say_all();
}

/// Has slots for parts that arrive while others are unpacked; fewer if there is less memory, at last in pinned memory.
void MessageInflow::make_ring() {
  ring_parts_ = std::min<std::int64_t>(2 * parts_in_flight, (target_.bytes + fragment_bytes_ - 1) / fragment_bytes_);
  const auto bytes = [&] { return static_cast<std::size_t>(std::min(ring_parts_ * fragment_bytes_, target_.bytes)); };
  if (target_.ordinal < 0) return room_.resize(bytes());
  while (ring_parts_ > 1) {
    ring_ = device::try_acquire(target_.staging, target_.ordinal, bytes());
    if (ring_) return;
    ring_parts_ /= 2;
  }
  ring_ = device::try_acquire(target_.staging, target_.ordinal, bytes());
  if (!ring_) ring_ = device::acquire_packed(target_.ordinal, bytes());
}

/// Fragments are still to come only after a failure.
MessageInflow::~MessageInflow() {
  if (asked_ < target_.bytes)
    remote_.give_up_turn(Remote::Way::in, rank_, id_, target_.bytes - asked_, fragment_bytes_);
  for (; !coming_.empty(); coming_.pop_front())
    while (coming_.front().receiving->state.load(std::memory_order_acquire) == MpiTransfer::State::under_way)
      remote_.advance();
  remote_.under_way.fetch_sub(1);
}

bool MessageInflow::step() {
  ask();
  take_arrived();
  try {
    for (; !unpacking_.empty() && unpacking_.front().done(); unpacking_.pop_front()) mark(point::part_unpacked);
  } catch (const std::exception&) {
    note_failure();
  }
  if (taken_ < target_.bytes || !unpacking_.empty()) return false;
  if (failure_) std::rethrow_exception(failure_);
  return true;
}

/// Gives MPI the memory for the next parts.
void MessageInflow::ask() {
  if (asked_ == target_.bytes || !remote_.has_turn(Remote::Way::in, rank_, id_)) return;
  while (asked_ < target_.bytes && coming_.size() < parts_in_flight && has_slot()) {
    const std::int64_t end = std::min(asked_ + fragment_bytes_, target_.bytes);
    std::byte* const data = room_for(asked_);
    mark(point::part_posted);
    coming_.push_back({asked_, end, data, remote_.receive(rank_, data, end - asked_)});
    asked_ = end;
  }
  if (asked_ == target_.bytes) remote_.end_turn(Remote::Way::in, rank_);
}

bool MessageInflow::has_slot() const {
  return direct_ != nullptr || static_cast<std::int64_t>(coming_.size() + unpacking_.size()) < ring_parts_;
}

/// Memory for the part that begins at byte `begin`.
std::byte* MessageInflow::room_for(std::int64_t begin) const {
  if (direct_ != nullptr) return direct_ + begin;
  auto* const ring = target_.ordinal < 0 ? const_cast<std::byte*>(room_.data()) : static_cast<std::byte*>(ring_.data());
  return ring + begin / fragment_bytes_ % ring_parts_ * fragment_bytes_;
}

void MessageInflow::take_arrived() {
  for (; !coming_.empty(); coming_.pop_front()) {
    if (coming_.front().receiving->state.load(std::memory_order_acquire) == MpiTransfer::State::under_way) return;
    take(coming_.front());
  }
}

void MessageInflow::take(const Part& part) {
  mark(point::part_arrived);
  taken_ = part.end;
  try {
    if (part.receiving->state.load() == MpiTransfer::State::failed || part.receiving->bytes != part.end - part.begin)
      throw MpiError(MPI_ERR_OTHER, "peer transfer: the sender has given a message up");
    if (!failure_) unpack(part);
  } catch (const std::exception&) {
    note_failure();
  }
}

void MessageInflow::unpack(const Part& part) {
  if (direct_ != nullptr) return;
  mark(point::part_unpack_started);
  if (target_.ordinal < 0)
    datatype::unpack(*target_.layout, target_.count, target_.user, part.begin, part.end, part.data);
  else
    unpacking_.push_back(device::start(device::Direction::unpack, target_.ordinal, *target_.layout, target_.count,
                                       target_.user, part.begin, part.end, part.data, ring_.memory_kind()));
}

void MessageInflow::note_failure() {
  if (!failure_) failure_ = std::current_exception();
  unpacking_.clear();
}

}  // namespace gpudt::interpose::peer
