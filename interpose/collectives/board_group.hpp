// The boards (transport/peer/board.hpp) of the processes of one communicator: what each has to do with a reduction, and
// how far it is. They are one step in which a process waits for all others, without a message.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "interpose/collectives/comm_state.hpp"
#include "interpose/support/engine.hpp"
#include "interpose/transport/peer/board.hpp"
#include "interpose/transport/peer/state.hpp"

namespace gpudt::interpose {

struct BoardGroup {
  std::vector<int> world_ranks;      ///< by rank in the communicator
  std::vector<peer::Board*> boards;  ///< likewise; none: there can be no reductions by boards, as all processes know
  int rank = 0;                      ///< this process's
  int own_board = -1;
  std::uint64_t call = 0;  ///< the number of the latest one

  bool usable() const { return !boards.empty(); }
  peer::Board& own() const { return *boards[static_cast<std::size_t>(rank)]; }

  /// What this process gives and takes in the next call, to be filled before it tells of that.
  peer::Blocks& next_blocks() const { return own().blocks[(call + 1) % 2]; }
  /// The same of a process that has told of this call.
  const peer::Blocks& blocks_of(std::size_t other) const { return boards[other]->blocks[call % 2]; }
  /// Tells all what this process has to do with the next call.
  void tell(const peer::Contribution& mine);
  /// This process reads nothing more of the call.
  void leave() { own().left.store(call, std::memory_order_release); }
  /// Returns when all have told, with everybody's contribution in `all`, which has room for them, by rank.
  void read(std::vector<peer::Contribution>& all) const;
  /// Whether all of `ranks` have had success with what `outcomes` says (mapped or done); returns when all have said.
  bool all_succeed(const std::vector<int>& ranks, std::atomic<std::uint64_t> peer::Board::*outcomes) const;
};

/// The boards of an intracommunicator whose processes are all on this node. Collective when asked first: they exchange
/// which boards they use.
BoardGroup& boards_of(CommState& state, MPI_Comm comm);

/// Returns when `condition()` holds; drives MPI's progress and the engine meanwhile. Nothing but the condition throws.
template <class Condition>
void wait_for_others(Condition condition) {
  constexpr unsigned polls_before_progress = 16;
  for (unsigned polls = 1; !condition(); ++polls) {
    if (polls % polls_before_progress != 0) continue;
    if (peer::world != nullptr) peer::progress_mpi();
    if (engine_progress_logged() == 0) std::this_thread::yield();
  }
}

}  // namespace gpudt::interpose
