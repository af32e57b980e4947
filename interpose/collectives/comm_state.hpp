// What collectives between GPUs keep with a communicator, the same in all of its processes: whether all of them have
// the library, and how many calls pass before they ask each other again.
#pragma once

#include <mpi.h>

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
void collectives_stop();

/// Between collectives_start() and collectives_stop(), if this process answers what others ask.
bool collectives_ask();
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

struct CommState {
  bool together = false;    ///< all can be asked, and are on this node
  bool over_nodes = false;  ///< all can be asked, on several nodes
  bool spoilt = false;      ///< here: messages of a call that failed may still come
  int short_with_root = 0;  ///< blocking calls of short blocks to or from a root, while there are no boards
  std::vector<AskBackoff> backoff = {};
  std::shared_ptr<BoardGroup> boards = {};  ///< made by the first call that asks (boards_of())

  AskBackoff& backoff_for(std::string_view call, int length);
};

/// Of an intracommunicator or another one, while collectives_ask(). Throws std::bad_alloc if there is no memory, which
/// the caller must not take for an answer: others have none such.
CommState& comm_state_of(MPI_Comm comm);
/// Null: nothing has been kept with it.
CommState* comm_state_if_any(MPI_Comm comm);

}  // namespace gpudt::interpose
