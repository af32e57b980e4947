#include "interpose/collectives/board_group.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "interpose/collectives/call_records.hpp"
#include "interpose/collectives/exchange_plan.hpp"
#include "interpose/job/presence.hpp"
#include "interpose/mpi/workarounds.hpp"
#include "interpose/transport/device_buffer.hpp"

namespace gpudt::interpose {

using peer::Board;
using peer::CallRecord;
using peer::Slot;
using peer::Started;

BoardGroup::BoardGroup(const Members& members, std::uint64_t key, std::size_t most_boards)
    : plans_(std::make_unique<ExchangePlans>()),
      world_ranks_(members.world_ranks),
      rank_(members.rank),
      key_(key),
      most_boards_(most_boards),
      records_found_(world_ranks_.size()) {
  segments_.reserve(size());
  {
    const LockGuard lock(mutex_);
    not_left_.reserve(peer::slot_count);
  }
  if (collectives_take_part()) own_ = add_record(key);
  records_found_[static_cast<std::size_t>(rank_)].store(own_, std::memory_order_relaxed);
}

BoardGroup::~BoardGroup() {
  if (!collectives_take_part()) return;
  Holding holding{key_, own_, board_, world_ranks_};
  holding.others.erase(holding.others.begin() + rank_);
  put_back(std::move(holding), /*at_once=*/board_ >= 0);
}

int BoardGroup::message_tag(std::size_t rank) const {
  return hidden_tag(records_found_[rank].load(std::memory_order_acquire)->serial);
}

CallRecord* BoardGroup::look_for_record(std::size_t other) {
  CallRecord* const found = find_record(*segments_[other], key_);
  if (found != nullptr) records_found_[other].store(found, std::memory_order_release);
  return found;
}

BoardGroup::Room BoardGroup::reach_others() {
  while (segments_.size() < size()) {
    const int next = world_ranks_[segments_.size()];
    const Started started = presence_started(next);
    if (started == Started::not_yet) return Room::later;
    peer::Segment* const segment = started == Started::on ? peer::reach_sender(next) : nullptr;
    if (segment == nullptr) {
      hopeless_ = true;
      return Room::none;
    }
    segments_.push_back(segment);
    importers_ |= device::Importers::process((*segment)->number);
  }
  return Room::now;
}

/// Whether all have left the call whose slot is to be used.
BoardGroup::Room BoardGroup::room_in_slot() {
  std::uint64_t occupant = 0;
  {
    const LockGuard lock(mutex_);
    occupant = board_of(static_cast<std::size_t>(rank_))->slot_of(told_ + 1).call.load(std::memory_order_relaxed);
  }
  for (std::size_t other = 0; occupant != 0 && other < size(); ++other) {
    const CallRecord* const record = record_of(other);
    if (record == nullptr || record->left.load(std::memory_order_acquire) < occupant) return Room::later;
  }
  return Room::now;
}

BoardGroup::Room BoardGroup::room() {
  if (own_ == nullptr || hopeless_) return Room::none;
  if (const Room reached = reach_others(); reached != Room::now) return reached;
  if (board_ < 0) {
    board_ = take_board(most_boards_);
    if (board_ < 0) return Room::none;
    own_->board.store(board_, std::memory_order_release);
  }
  return room_in_slot();
}

bool BoardGroup::await_room() {
  Room found = Room::later;
  wait_until([&] { return (found = room()) != Room::later; }, for_others);
  return found == Room::now;
}

std::uint64_t BoardGroup::tell(const peer::Contribution& mine, const peer::PublishedBlocks& blocks) {
  const LockGuard lock(mutex_);
  Board& board = *board_of(static_cast<std::size_t>(rank_));
  Slot& slot = board.slot_of(++told_);
  // What is repeated stays in the caches of those who read it.
  if (std::memcmp(&slot.contribution, &mine, sizeof mine) != 0) slot.contribution = mine;
  std::uint64_t& content = content_[told_ % peer::slot_count];
  if (mine.content == 0 || content != mine.content) {
    content = mine.content;
    std::copy(blocks.given.begin(), blocks.given.end(), slot.blocks.given);
    std::copy(blocks.taken.begin(), blocks.taken.end(), slot.blocks.taken);
    if (blocks.layouts.empty() || has_room_for_layouts(board_, told_, blocks.layouts.size()))
      std::copy(blocks.layouts.begin(), blocks.layouts.end(), board.layouts_of(told_));
    else
      slot.contribution.on_gpu = content = 0;
  }
  slot.call.store(told_, std::memory_order_release);
  not_left_.push_back(told_);
  own_->told.store(told_, std::memory_order_release);
  return told_;
}

void BoardGroup::decline() {
  const LockGuard lock(mutex_);
  ++told_;
  if (own_ == nullptr) return;
  own_->told.store(told_, std::memory_order_release);
  if (not_left_.empty()) own_->left.store(told_, std::memory_order_release);
}

void BoardGroup::decline_all() {
  if (own_ == nullptr) return;
  own_->left.store(peer::all_calls, std::memory_order_release);
  own_->told.store(peer::all_calls, std::memory_order_release);
}

bool BoardGroup::others_decline() {
  std::uint64_t next = 0;
  {
    const LockGuard lock(mutex_);
    next = told_ + 1;
  }
  for (std::size_t other = 0; other < size(); ++other)
    if (has_told(other, next) && told_by(other, next) == nullptr) return true;
  return false;
}

void BoardGroup::leave(std::uint64_t call) {
  const LockGuard lock(mutex_);
  std::erase(not_left_, call);
  const std::uint64_t left = not_left_.empty() ? told_ : not_left_.front() - 1;
  own_->left.store(left, std::memory_order_release);
}

// Not if the default stream's order is kept: buffers of a call that MPI is given later would be marked too late.
bool may_offer(BoardGroup& group) {
  return active.load(std::memory_order_acquire) && device::in_use() && !device::keeps_order() && group.has_room() &&
         !group.others_decline();
}

}  // namespace gpudt::interpose
