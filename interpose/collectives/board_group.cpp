#include "interpose/collectives/board_group.hpp"

#include <algorithm>
#include <bitset>
#include <new>
#include <utility>

#include "base/never_destroyed.hpp"
#include "device/reduction.hpp"
#include "interpose/mpi/workarounds.hpp"
#include "interpose/transport/device_buffer.hpp"

namespace gpudt::interpose {
namespace {

using peer::Board;
using peer::Slot;

/// A board whose communicator has gone; others may still read what it says.
struct Retired {
  int index;
  std::vector<std::pair<const Board*, std::uint64_t>> readers;  ///< each with the last call that it has to leave
};

/// Of this process.
struct OwnBoards {
  Mutex mutex;
  std::bitset<peer::board_count> taken GUARDED_BY(mutex);
  std::bitset<peer::board_count> made GUARDED_BY(mutex);  ///< have memory
  std::vector<Retired> retired GUARDED_BY(mutex);
  std::vector<BoardGroup*> exchanging GUARDED_BY(mutex);
};
auto& own_boards = never_destroyed<OwnBoards>();

void put_back_what_all_have_left() REQUIRES(own_boards.mutex) {
  std::erase_if(own_boards.retired, [](const Retired& board) REQUIRES(own_boards.mutex) {
    const bool all_have_left = std::all_of(board.readers.begin(), board.readers.end(), [](const auto& reader) {
      return reader.first->left.load(std::memory_order_acquire) >= reader.second;
    });
    if (all_have_left) own_boards.taken.reset(static_cast<std::size_t>(board.index));
    return all_have_left;
  });
}

/// Or -1.
int take_board(std::size_t most_taken) {
  const LockGuard lock(own_boards.mutex);
  put_back_what_all_have_left();
  if (own_boards.taken.count() >= most_taken) return -1;
  for (std::size_t index = 0; index < own_boards.taken.size(); ++index) {
    if (own_boards.taken.test(index)) continue;
    const int board = static_cast<int>(index);
    if (!own_boards.made.test(index) && !peer::world->own->make_board(board)) return -1;
    own_boards.made.set(index);
    own_boards.taken.set(index);
    return board;
  }
  return -1;
}

}  // namespace

BoardGroup::BoardGroup(MPI_Comm comm, bool waits, std::size_t most_taken)
    : world_ranks_(peer::world_ranks(comm)), offers_(world_ranks_.size()) {
  boards_.reserve(size());
  bases_.reserve(size());
  {
    const LockGuard lock(mutex_);
    not_left_.reserve(peer::slot_count);
  }
  PMPI_Comm_rank(comm, &rank_);
  segments_ = peer::segments_of(world_ranks_);
  {
    const LockGuard lock(own_boards.mutex);
    own_boards.exchanging.push_back(this);
  }
  if (!segments_.empty() && size() <= device::Reduction::most_ranks) index_ = take_board(most_taken);
  if (index_ >= 0) {
    own_ = &(*segments_[static_cast<std::size_t>(rank_)])->boards[index_];
    base_ = own_->told.load(std::memory_order_relaxed);
  }
  mine_ = {index_, static_cast<std::int64_t>(base_)};
  // Nonblocking collectives of Open MPI 4.1 may hang where there are threads.
  const int code = waits ? PMPI_Allgather(&mine_, 2, MPI_INT64_T, offers_.data(), 2, MPI_INT64_T, comm)
                         : PMPI_Iallgather(&mine_, 2, MPI_INT64_T, offers_.data(), 2, MPI_INT64_T, comm, &exchange_);
  if (waits || code != MPI_SUCCESS) learn(code);
}

// Without memory the board stays taken.
BoardGroup::~BoardGroup() {
  if (!known_.load(std::memory_order_acquire)) learn(PMPI_Wait(&exchange_, MPI_STATUS_IGNORE));
  if (own_ == nullptr) return;
  const LockGuard lock(own_boards.mutex);
  if (!usable()) {  // nobody reads it
    own_boards.taken.reset(static_cast<std::size_t>(index_));
    return;
  }
  try {
    Retired retired{index_, {}};
    const LockGuard own(mutex_);
    for (std::size_t other = 0; other < size(); ++other)
      retired.readers.emplace_back(boards_[other], bases_[other] + told_);
    own_boards.retired.push_back(std::move(retired));
  } catch (const std::bad_alloc&) {
  }
}

bool BoardGroup::known() {
  if (known_.load(std::memory_order_acquire)) return true;
  if (testing_.exchange(true, std::memory_order_acquire)) return false;  // by another thread, or within this very test
  // In MPICH the end of the exchange may be that of its communicator, and so of what is kept with it.
  const std::shared_ptr<BoardGroup> keep = shared_from_this();
  if (!known_.load(std::memory_order_acquire)) {
    int ended = 0;
    const int code = PMPI_Test(&exchange_, &ended, MPI_STATUS_IGNORE);
    if (ended != 0 || code != MPI_SUCCESS) learn(code);
  }
  testing_.store(false, std::memory_order_release);
  return known_.load(std::memory_order_acquire);
}

/// The exchange has ended with `code`.
void BoardGroup::learn(int code) {
  const bool all_have =
      std::all_of(offers_.begin(), offers_.end(), [](const Offer& offer) { return offer.board >= 0; });
  for (std::size_t rank = 0; code == MPI_SUCCESS && all_have && rank < size(); ++rank) {
    boards_.push_back(&(*segments_[rank])->boards[offers_[rank].board]);
    bases_.push_back(static_cast<std::uint64_t>(offers_[rank].base));
  }
  const LockGuard lock(own_boards.mutex);
  std::erase(own_boards.exchanging, this);
  known_.store(true, std::memory_order_release);
}

/// A process uses a board for one communicator after the other, and has told more with each.
int BoardGroup::message_tag(std::size_t rank) const {
  const Offer& offer = offers_[rank];
  return hidden_tag(static_cast<std::uint64_t>(offer.base) * peer::board_count +
                    static_cast<std::uint64_t>(offer.board));
}

Slot& BoardGroup::next_slot() {
  const LockGuard lock(mutex_);
  return own_->slot_of(base_ + told_ + 1);
}

bool BoardGroup::has_room() {
  if (own_ == nullptr) return false;
  const std::uint64_t occupant = next_slot().call.load(std::memory_order_relaxed);
  if (occupant <= base_) return true;  // of another communicator, whose processes have left it
  if (!known() || !usable()) return false;
  for (std::size_t other = 0; other < size(); ++other)
    if (boards_[other]->left.load(std::memory_order_acquire) < bases_[other] + (occupant - base_)) return false;
  return true;
}

peer::Blocks& BoardGroup::next_blocks() {
  return next_slot().blocks;
}

std::uint64_t BoardGroup::tell(const peer::Contribution& mine) {
  const LockGuard lock(mutex_);
  const std::uint64_t number = base_ + ++told_;
  Slot& slot = own_->slot_of(number);
  slot.contribution = mine;
  slot.call.store(number, std::memory_order_release);
  not_left_.push_back(told_);
  own_->told.store(number, std::memory_order_release);
  return told_;
}

void BoardGroup::decline() {
  const LockGuard lock(mutex_);
  ++told_;
  if (own_ == nullptr) return;
  own_->told.store(base_ + told_, std::memory_order_release);
  if (not_left_.empty()) own_->left.store(base_ + told_, std::memory_order_release);
}

void BoardGroup::set_outcome(std::uint64_t call, std::atomic<std::uint64_t> Slot::*outcome, bool failed) {
  const std::uint64_t number = base_ + call;
  (own_->slot_of(number).*outcome).store(Slot::outcome(number, failed), std::memory_order_release);
}

void BoardGroup::leave(std::uint64_t call) {
  const LockGuard lock(mutex_);
  std::erase(not_left_, call);
  const std::uint64_t left = not_left_.empty() ? told_ : not_left_.front() - 1;
  own_->left.store(base_ + left, std::memory_order_release);
}

bool BoardGroup::has_told(std::size_t other, std::uint64_t call) const {
  return boards_[other]->told.load(std::memory_order_acquire) >= bases_[other] + call;
}

const Slot* BoardGroup::told_by(std::size_t other, std::uint64_t call) const {
  const std::uint64_t number = bases_[other] + call;
  const Slot& slot = boards_[other]->slot_of(number);
  return slot.call.load(std::memory_order_acquire) == number ? &slot : nullptr;
}

std::optional<bool> BoardGroup::outcome_of(std::size_t other, std::uint64_t call,
                                           std::atomic<std::uint64_t> Slot::*outcome) const {
  const std::uint64_t number = bases_[other] + call;
  const std::uint64_t found = (boards_[other]->slot_of(number).*outcome).load(std::memory_order_acquire);
  if (!Slot::has(found, number)) return std::nullopt;
  return found == Slot::outcome(number, /*failed=*/false);
}

const std::shared_ptr<BoardGroup>& boards_of(CommState& state, MPI_Comm comm) {
  if (!state.boards) state.boards = std::make_shared<BoardGroup>(comm, /*waits=*/false);
  return state.boards;
}

const std::shared_ptr<BoardGroup>& known_boards_of(CommState& state, MPI_Comm comm) {
  if (!state.boards) state.boards = std::make_shared<BoardGroup>(comm, /*waits=*/true);
  wait_for_others([&] { return state.boards->known(); });
  return state.boards;
}

// With an order to keep, the buffers of a call that MPI is given late would be marked late.
bool may_offer(BoardGroup& group) {
  return active.load(std::memory_order_acquire) && device::in_use() && !device::keeps_order() && group.has_room();
}

void end_exchange(MPI_Comm comm) {
  const CommState* const state = collectives_ask() ? comm_state_if_any(comm) : nullptr;
  if (state == nullptr || !state->boards) return;
  wait_for_others([&] { return state->boards->known(); });
}

void board_groups_stop() {
  const auto exchanging = [] {
    const LockGuard lock(own_boards.mutex);
    return own_boards.exchanging.empty() ? nullptr : own_boards.exchanging.back();
  };
  while (BoardGroup* const group = exchanging()) wait_for_others([&] { return group->known(); });
}

}  // namespace gpudt::interpose
