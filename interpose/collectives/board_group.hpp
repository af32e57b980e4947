// The boards (transport/peer/board.hpp) of the processes of one communicator: what each has to do with a collective,
// and how far it is. Nothing here waits for another process.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
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
class BoardGroup : public std::enable_shared_from_this<BoardGroup> {
 public:
  /// Takes a board, and exchanges with the other processes which boards they use: collective over `comm`, an
  /// intracommunicator. Returns when that is over if it `waits`, as in all processes, else at once. Without a board,
  /// this process declines all calls. Takes none if it has `most_taken` already. May throw std::bad_alloc before
  /// anything has been exchanged.
  BoardGroup(MPI_Comm comm, bool waits, std::size_t most_taken = peer::board_count);
  /// Waits for the exchange, which is over as a rule.
  ~BoardGroup();
  BoardGroup(const BoardGroup&) = delete;
  BoardGroup& operator=(const BoardGroup&) = delete;

  int rank() const { return rank_; }
  std::size_t size() const { return world_ranks_.size(); }
  int world_rank(std::size_t rank) const { return world_ranks_[rank]; }
  /// Whether the exchange is over. It advances in MPI's progress.
  bool known();
  /// Once it is over: whether all have a board. Otherwise no call can be done by boards, as all processes know.
  bool usable() const { return !boards_.empty(); }
  /// What tells the messages to process `rank` from those on other communicators (hidden_tag()). Of a usable group.
  int message_tag(std::size_t rank) const;

  // --- what this process tells of its next call ---

  /// Whether something can be told, but that the call is declined.
  bool has_room();
  /// What it gives and takes, to be filled if there is room.
  peer::Blocks& next_blocks();
  /// Returns the number of the call. If there is room.
  std::uint64_t tell(const peer::Contribution& mine);
  /// It cannot be done by GPUs.
  void decline();
  void set_outcome(std::uint64_t call, std::atomic<std::uint64_t> peer::Slot::*outcome, bool failed);
  /// This process reads nothing more of a call that it has told of.
  void leave(std::uint64_t call);

  // --- what others tell, if the group is usable and the call has not been left ---

  bool has_told(std::size_t other, std::uint64_t call) const;
  /// After that; null: it has declined.
  const peer::Slot* told_by(std::size_t other, std::uint64_t call) const;
  /// Whether a process that has not declined has had success, once it is known.
  std::optional<bool> outcome_of(std::size_t other, std::uint64_t call,
                                 std::atomic<std::uint64_t> peer::Slot::*outcome) const;

 private:
  /// What each process tells the others of its board.
  struct Offer {
    std::int64_t board;  ///< negative: none
    std::int64_t base;   ///< the latest call that the board has told of, of other communicators'
  };
  void learn(int code);
  peer::Slot& next_slot();

  std::vector<int> world_ranks_;  ///< by rank in the communicator
  std::vector<peer::Segment*> segments_;
  int rank_ = 0;
  int index_ = -1;              ///< of this process's board; negative: it has none
  peer::Board* own_ = nullptr;  ///< likewise
  std::uint64_t base_ = 0;

  Offer mine_{};
  std::vector<Offer> offers_;
  MPI_Request exchange_ = MPI_REQUEST_NULL;
  std::atomic<bool> known_{false};
  std::atomic<bool> testing_{false};

  std::vector<peer::Board*> boards_;  ///< by rank; none: not usable, or not known
  std::vector<std::uint64_t> bases_;  ///< likewise

  Mutex mutex_;
  std::uint64_t told_ GUARDED_BY(mutex_) = 0;
  std::vector<std::uint64_t> not_left_ GUARDED_BY(mutex_);  ///< that this process has told of, ascending
};

/// The boards of an intracommunicator. Collective when asked first.
const std::shared_ptr<BoardGroup>& boards_of(CommState& state, MPI_Comm comm);
/// The same, for a blocking call: the exchange is over.
const std::shared_ptr<BoardGroup>& known_boards_of(CommState& state, MPI_Comm comm);
/// Whether this process may offer its next call, a nonblocking one, to GPUs: there may be data for them, and room.
bool may_offer(BoardGroup& group);
/// Before `comm` is freed: the exchange, if there is one, is over.
void end_exchange(MPI_Comm comm);
/// In MPI_Finalize: waits for the exchanges that have not ended.
void board_groups_stop();

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
