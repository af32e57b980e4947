// What the processes of one communicator tell each other of its calls (transport/peer/board.hpp): what each has to do
// with a collective, and how far it is, or that GPUs cannot do it. Nothing here waits for another process, but
// await_room().
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/mutex.hpp"
#include "interpose/collectives/comm_state.hpp"
#include "interpose/support/engine.hpp"
#include "interpose/transport/peer/board.hpp"
#include "interpose/transport/peer/state.hpp"

namespace gpudt::interpose {

/// Calls are numbered from 1 on, in the order in which all processes make them. One thread at a time makes calls;
/// others may look at what is told meanwhile, and leave calls.
class BoardGroup {
 public:
  /// Adds a record with that key, which is not in use; without one this process declines all calls, as the others know.
  /// Takes a board when it first has room for a call, but none if it has `most_boards` already. May throw
  /// std::bad_alloc before others can see anything of it.
  explicit BoardGroup(const Members& members, std::uint64_t key, std::size_t most_boards = peer::board_count);
  ~BoardGroup();
  BoardGroup(const BoardGroup&) = delete;
  BoardGroup& operator=(const BoardGroup&) = delete;

  int rank() const { return rank_; }
  std::size_t size() const { return world_ranks_.size(); }
  int world_rank(std::size_t rank) const { return world_ranks_[rank]; }
  /// What tells the messages to process `rank` from those on other communicators (hidden_tag()). Of one that has told.
  int message_tag(std::size_t rank) const;

  // --- what this process tells of its next call ---

  /// Whether anything can be told, but that the call is declined.
  bool has_room() { return room() == Room::now; }
  /// The same once it is known: other processes may be in MPI_Init, or have to leave earlier calls.
  bool await_room();
  /// Returns the number of the call. If there is room.
  std::uint64_t tell(const peer::Contribution& mine, std::span<const peer::Block> given = {},
                     std::span<const peer::Block> taken = {});
  /// It cannot be done by GPUs.
  void decline();
  /// Nor can any later one.
  void decline_all();
  /// Whether another process is known to have declined it. If there is room.
  bool others_decline();
  void set_outcome(std::uint64_t call, std::atomic<std::uint64_t> peer::Slot::*outcome, bool failed);
  /// This process reads nothing more of a call that it has told of.
  void leave(std::uint64_t call);

  // --- what others tell of a call that this process has told of, and not left ---

  bool has_told(std::size_t other, std::uint64_t call);
  /// After that; null: it has declined.
  const peer::Slot* told_by(std::size_t other, std::uint64_t call) const;
  /// Whether a process that has not declined has had success, once it is known.
  std::optional<bool> outcome_of(std::size_t other, std::uint64_t call,
                                 std::atomic<std::uint64_t> peer::Slot::*outcome) const;

 private:
  enum class Room {
    later,  ///< it hangs on other processes
    now,
    none,
  };
  Room room();
  Room reach_others();
  Room room_in_slot();
  peer::CallRecord* record_of(std::size_t other);
  peer::Board* board_of(std::size_t other) const;

  const std::vector<int> world_ranks_;  ///< by rank in the communicator
  const int rank_;
  const std::uint64_t key_;
  const std::size_t most_boards_;
  peer::CallRecord* own_ = nullptr;                            ///< null: there is none
  int board_ = -1;                                             ///< negative: not taken
  bool hopeless_ = false;                                      ///< some process declines all
  std::vector<peer::Segment*> segments_;                       ///< by rank, as far as they have been reached
  std::vector<std::atomic<peer::CallRecord*>> records_found_;  ///< by rank; null: not there yet

  Mutex mutex_;
  std::uint64_t told_ GUARDED_BY(mutex_) = 0;
  std::vector<std::uint64_t> not_left_ GUARDED_BY(mutex_);  ///< that this process has told of, ascending
};

/// Of an intracommunicator whose processes are together.
const std::shared_ptr<BoardGroup>& boards_of(CommState& state);
/// Whether this process may offer its next call, a nonblocking one, to GPUs: there may be data for them, and room, and
/// nobody is known to have declined.
bool may_offer(BoardGroup& group);

/// Returns when `condition()` holds; drives MPI's progress and the engine meanwhile. Nothing but the condition throws.
template <class Condition>
void wait_for_others(Condition condition) {
  constexpr unsigned polls_before_progress = 64;  // some 2 us: over UCX, MPI's progress takes one
  for (unsigned polls = 1; !condition(); ++polls) {
    if (polls % polls_before_progress != 0) continue;
    if (peer::world != nullptr) peer::progress_mpi();
    if (engine_progress_logged() == 0) std::this_thread::yield();
  }
}

}  // namespace gpudt::interpose
