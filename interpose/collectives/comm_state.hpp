// What collectives between GPUs keep with a communicator, the same in all its processes: whether all of them have the
// library, and how many calls go to MPI before GPUs are considered again.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/backoff.hpp"
#include "interpose/transport/protocol.hpp"

namespace gpudt::interpose {

/// To be called before MPI_Init. Announces this process to its node (presence.hpp), and whether it can take part in
/// collectives between GPUs; the latter also to other nodes, where possible (mpi/modex.hpp).
void collectives_announce(ForcedProtocol forced);
/// To be called in MPI_Init, after presence_start(), also if there is no GPU: a process that has announced itself must
/// answer the others.
void collectives_start();
/// To be called at the end of MPI_Init, also if gpudt is off. Announces to the node whether this process takes part;
/// processes with data for GPUs wait for that.
void collectives_tell_started() noexcept;
void collectives_stop();

namespace detail {
extern std::atomic<bool> collectives_asking;
extern ForcedProtocol announced_protocol;
}  // namespace detail

/// Whether this process answers others: between collectives_start() and collectives_stop(), if it has announced itself.
inline bool collectives_ask() {
  return detail::collectives_asking.load(std::memory_order_relaxed);
}
/// Whether it may publish calls; if not, it declines all, and others know that (presence_started()).
bool collectives_take_part();
/// The protocol that GPUDT_PROTOCOL forces; no value if the fastest is to be chosen.
inline ForcedProtocol collectives_forced() {
  return detail::announced_protocol;
}

/// Back-off: how many similar calls go to MPI before GPUs are considered again. The number doubles each time, and is
/// even, so that of two alternating calls each gets its turn.
struct AskBackoff : Backoff<2, 1024> {
  AskBackoff(std::string_view call_name, int block_length) : call(call_name), length(block_length) {}
  /// To be called after a call that GPUs could not do. Does nothing if GPUDT_PROTOCOL=peer.
  void failed() {
    if (collectives_forced() != Protocol::peer) Backoff::failed();
  }

  std::string_view call;
  int length;  ///< of a block: number of bits of its length in bytes; negative: not known
};

class BoardGroup;  // board_group.hpp

/// The processes of a communicator, and the key of their records of its calls.
struct Members {
  std::vector<int> world_ranks = {};  ///< by rank
  int rank = 0;                       ///< this process's
  std::uint64_t key = 0;              ///< the same in all of them

  /// The key of persistent request number `request` of the communicator, counted from 1 among those that GPUs may do.
  std::uint64_t key_of_request(std::uint64_t request) const;
};
/// To be called once for an intracommunicator whose context is the same in all processes: the key counts these calls.
Members members_of(MPI_Comm comm, std::vector<int> world_ranks);

struct CommState {
  bool together = false;       ///< all processes can take part, and are on this node
  bool over_nodes = false;     ///< all processes can take part, on several nodes
  bool spoilt = false;         ///< a call failed in this process, and messages of it may still arrive
  Members members = {};        ///< if `together`
  std::uint64_t requests = 0;  ///< persistent requests that GPUs may do
  std::vector<AskBackoff> backoff = {};
  std::shared_ptr<BoardGroup> boards = {};  ///< made by the first call that GPUs may do (boards_of())

  AskBackoff& backoff_for(std::string_view call, int length);
};

/// The state of any communicator. To be called while collectives_ask(), in each call of a collective function, whatever
/// its arguments. Throws std::bad_alloc; the caller must then fail rather than choose a way, since the other processes
/// do not know of it.
CommState& comm_state_of(MPI_Comm comm);
/// Null if the communicator has no state yet.
CommState* comm_state_if_any(MPI_Comm comm);

}  // namespace gpudt::interpose
