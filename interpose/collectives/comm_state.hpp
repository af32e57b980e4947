// What collectives between GPUs keep with a communicator, the same in all of its processes: whether all of them have
// the library, and how many calls pass before they ask each other again.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "interpose/support/protocol.hpp"

namespace gpudt::interpose {

/// To be called before MPI_Init. Tells the node that this process is there (presence.hpp), and whether it can be asked;
/// the latter to other nodes, too, where that is possible (mpi/modex.hpp).
void collectives_announce(ForcedProtocol forced);
/// In MPI_Init, after presence_start(), whatever has come of the GPU: who has announced that it can be asked will be.
void collectives_start();
/// At the end of MPI_Init, whatever has come of it: tells the node whether this process takes part, which others that
/// have data for GPUs wait for.
void collectives_tell_started() noexcept;
void collectives_stop();

/// Between collectives_start() and collectives_stop(), if this process answers what others ask.
bool collectives_ask();
/// Whether it may have anything but declined calls; others know it (presence_started()).
bool collectives_take_part();
/// What is offered in any case (GPUDT_PROTOCOL); nothing: what pays.
ForcedProtocol collectives_forced();

/// How many calls that look alike pass before all are asked again: each time twice as many, and always an even number,
/// so that calls that alternate are met in turn.
struct AskBackoff {
  std::string_view call;
  int length;  ///< of a block: bits of its bytes; negative: not known
  int passing = 0, left = 0;

  bool passes() { return left > 0 && left-- > 0; }
  /// After a call that not all agreed on. (Nothing if all is to be offered.)
  void grow();
  void reset() { passing = left = 0; }
};

class BoardGroup;  // board_group.hpp

/// The processes of a communicator, and what they tell each other's records of its calls by.
struct Members {
  std::vector<int> world_ranks = {};  ///< by rank
  int rank = 0;                       ///< this process's
  std::uint64_t key = 0;              ///< the same in all of them

  /// Of persistent request number `request`, from 1 on, of those whose starts are asked about.
  std::uint64_t key_of_request(std::uint64_t request) const;
};
/// Of an intracommunicator with a common context, once. All its processes look at the same communicators so.
Members members_of(MPI_Comm comm, std::vector<int> world_ranks);

struct CommState {
  bool together = false;       ///< all can be asked, and are on this node
  bool over_nodes = false;     ///< all can be asked, on several nodes
  bool spoilt = false;         ///< here: messages of a call that failed may still come
  Members members = {};        ///< if they are together
  std::uint64_t requests = 0;  ///< persistent ones whose starts are asked about
  std::vector<AskBackoff> backoff = {};
  std::shared_ptr<BoardGroup> boards = {};  ///< made by the first call that asks (boards_of())

  AskBackoff& backoff_for(std::string_view call, int length);
};

/// Of an intracommunicator or another one, while collectives_ask(), in each call of a collective function, whatever its
/// arguments. Throws std::bad_alloc if there is no memory, which
/// the caller must not take for an answer: others have none such.
CommState& comm_state_of(MPI_Comm comm);
/// Null: nothing has been kept with it.
CommState* comm_state_if_any(MPI_Comm comm);

}  // namespace gpudt::interpose
