// What the processes of one communicator publish about its collectives (shared/board.hpp): their buffers, how
// far each process is, or that GPUs cannot do the call. Only await_room() waits for other processes.
#pragma once

#include <mpi.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/mutex.hpp"
#include "interpose/collectives/comm_state.hpp"
#include "interpose/engine/engine.hpp"
#include "interpose/shared/board.hpp"
#include "interpose/transport/peer/state.hpp"

namespace gpudt::interpose {

class ExchangePlans;  // exchange_plan.hpp

/// Calls are numbered from 1 on, in the order in which all processes make them. One thread at a time makes calls; other
/// threads may meanwhile read what is published, and leave calls.
class BoardGroup {
 public:
  /// Adds a record with that key, which must not be in use. If there is no free record, this process declines all
  /// calls, and the others see that. Takes a board for the first call, unless this process has `most_boards` boards
  /// already. May throw std::bad_alloc before others can see anything.
  explicit BoardGroup(const Members& members, std::uint64_t key, std::size_t most_boards = peer::board_count);
  ~BoardGroup();
  BoardGroup(const BoardGroup&) = delete;
  BoardGroup& operator=(const BoardGroup&) = delete;

  int rank() const { return rank_; }
  std::size_t size() const { return world_ranks_.size(); }
  int world_rank(std::size_t rank) const { return world_ranks_[rank]; }
  /// The segment of process `rank`, which must have published a call.
  const peer::Segment& segment(std::size_t rank) const { return *segments_[rank]; }
  /// For device::export_memory() of memory that processes of the group are to map.
  device::Importers importers() const {
    return segments_.size() == size() ? importers_ : device::all_importers;  // not all numbers are known yet
  }
  /// The tag of messages to process `rank`, which must have published a call: it differs between communicators
  /// (hidden_tag()).
  int message_tag(std::size_t rank) const;

  // --- what this process publishes about its next call ---

  /// Whether the call can be published; a call can be declined at any time.
  bool has_room() { return room() == Room::now; }
  /// has_room(), but waits while the answer depends on other processes, which may be in MPI_Init or may have to leave
  /// earlier calls.
  bool await_room();
  /// Publishes the call and returns its number. There must be room. If there is no memory for the layouts, publishes
  /// that kernels cannot do the call (Contribution::on_gpu).
  std::uint64_t tell(const peer::Contribution& mine, const peer::PublishedBlocks& blocks = {});
  /// This process leaves the call to MPI.
  void decline();
  /// Leaves this call and all later ones to MPI.
  void decline_all();
  /// Whether another process is known to have declined the call. There must be room.
  bool others_decline();
  void set_outcome(std::uint64_t call, std::atomic<std::uint64_t> peer::Slot::*outcome, bool failed) {
    peer::Board& board = *board_of(static_cast<std::size_t>(rank_));
    (board.slot_of(call).*outcome).store(peer::Slot::outcome(call, failed), std::memory_order_release);
  }
  /// For the thread that makes the calls.
  ExchangePlans& plans() { return *plans_; }
  /// This process reads nothing more of a call that it has published.
  void leave(std::uint64_t call);

  // --- what others publish about a call that this process has published and not left ---

  /// Whether process `other` has published or declined the call.
  bool has_told(std::size_t other, std::uint64_t call) {
    const peer::CallRecord* const record = record_of(other);
    return record != nullptr && record->told.load(std::memory_order_acquire) >= call;
  }
  /// What process `other` has published; null if it has declined. Only after has_told().
  const peer::Slot* told_by(std::size_t other, std::uint64_t call) const {
    peer::Board* const board = board_of(other);
    if (board == nullptr) return nullptr;
    const peer::Slot& slot = board->slot_of(call);
    return slot.call.load(std::memory_order_acquire) == call ? &slot : nullptr;
  }
  /// The layouts that process `other` has published, and unused bytes behind them.
  std::span<const std::byte> layouts_by(std::size_t other, std::uint64_t call) const {
    return board_of(other)->layouts_of(call);
  }
  /// Whether a process that has not declined has succeeded; no value if that is not known yet.
  std::optional<bool> outcome_of(std::size_t other, std::uint64_t call,
                                 std::atomic<std::uint64_t> peer::Slot::*outcome) const {
    const std::uint64_t found = (board_of(other)->slot_of(call).*outcome).load(std::memory_order_acquire);
    if (!peer::Slot::has(found, call)) return std::nullopt;
    return found == peer::Slot::outcome(call, /*failed=*/false);
  }

 private:
  enum class Room {
    later,  ///< depends on other processes
    now,
    none,
  };
  Room room();
  Room reach_others();
  Room room_in_slot();
  peer::CallRecord* record_of(std::size_t other) {
    peer::CallRecord* const found = records_found_[other].load(std::memory_order_acquire);
    return found != nullptr ? found : look_for_record(other);
  }
  peer::CallRecord* look_for_record(std::size_t other);
  /// The board of a process whose record has been found; null: it has none.
  peer::Board* board_of(std::size_t other) const {
    const int board = records_found_[other].load(std::memory_order_acquire)->board.load(std::memory_order_acquire);
    return board < 0 ? nullptr : &(*segments_[other])->boards[board];
  }

  const std::unique_ptr<ExchangePlans> plans_;
  const std::vector<int> world_ranks_;  ///< by rank in the communicator
  const int rank_;
  const std::uint64_t key_;
  const std::size_t most_boards_;
  peer::CallRecord* own_ = nullptr;                            ///< null: there is none
  int board_ = -1;                                             ///< negative: not taken
  bool hopeless_ = false;                                      ///< some process declines all calls
  std::vector<peer::Segment*> segments_;                       ///< by rank; null: not mapped yet
  device::Importers importers_ = device::no_importers;         ///< the processes of segments_
  std::vector<std::atomic<peer::CallRecord*>> records_found_;  ///< by rank; null: not there yet

  Mutex mutex_;
  std::uint64_t told_ GUARDED_BY(mutex_) = 0;
  /// Of the calls in the slots of this process's board: Contribution::content.
  std::array<std::uint64_t, peer::slot_count> content_ GUARDED_BY(mutex_) = {};
  std::vector<std::uint64_t> not_left_ GUARDED_BY(mutex_);  ///< calls that this process has published, ascending
};

/// The boards of an intracommunicator whose processes are all on this node.
inline const std::shared_ptr<BoardGroup>& boards_of(CommState& state) {
  if (!state.boards) state.boards = std::make_shared<BoardGroup>(state.members, state.members.key);
  return state.boards;
}
/// Whether this process may publish its next call, a nonblocking one: there may be data for GPUs, there is room, and
/// no other process is known to have declined.
bool may_offer(BoardGroup& group);

}  // namespace gpudt::interpose
