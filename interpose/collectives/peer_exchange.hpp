// Collectives that move blocks of device memory between the GPUs of one node, by kernels that fetch the blocks
// (board_exchange.hpp) or, for long blocks in blocking calls, as messages (transport/peer/peer.hpp). Both take a
// fraction of the time of MPI's own collectives on staged data.
//
// All processes must agree on each call, since none knows where the others' data lie. They agree by boards in shared
// memory (board_group.hpp). They do so only if all processes have the library (they announce it on the node before
// MPI_Init) and if blocks are long enough, where all processes know their length. After a call that GPUs could not do,
// the next 2, 4 ... 1024 similar calls go to MPI at once (AskBackoff), so that programs with data on the host rarely
// pay for this. Whether a process takes part in the agreement must not depend on what it alone knows, such as wrong
// arguments: that is what it publishes. A process whose data allow neither way declines, and does not wait. Nonblocking
// calls always take part; unless the process declines, the call goes to the engine (call_order.hpp).
#pragma once

#include <mpi.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include "interpose/collectives/block_messages.hpp"
#include "interpose/collectives/board_call.hpp"
#include "interpose/collectives/persistent_offer.hpp"
#include "interpose/requests/call_buffers.hpp"

namespace gpudt::interpose {

/// The shape of a collective. It determines how long blocks must be.
enum class Flow {
  from_root,  ///< each process receives one block
  to_root,    ///< each process sends one block
  other,
};

/// What all processes know about the blocks: `blocks` of them have `elements` elements together.
struct Known {
  std::int64_t elements;
  MPI_Datatype type = {};
  int blocks = 1;
  bool varies = false;    ///< no process knows how many elements others have
  bool distinct = false;  ///< each block goes to only one process

  std::int64_t bytes() const;
};
/// For operations whose root has a block for, or from, each process.
inline Known distinct(std::int64_t elements, MPI_Datatype type) {
  return {.elements = elements, .type = type, .distinct = true};
}
inline constexpr Known varying = {.elements = 0, .varies = true};

namespace collective_messages {

/// Whether the processes of `comm` agree by boards about this call, or about the starts of the request that it makes.
/// All processes get the same answer.
bool asked(const Call& call, MPI_Comm comm, Flow flow, const Known& known);
/// Whether this process certainly has no data for GPUs.
bool surely_on_host();
/// Agrees with the others and moves the blocks. Returns the call's result, or nothing if MPI has to do the call.
/// `listed`: `blocks` has all blocks that this process sends and receives.
std::optional<int> exchange(const Call& call, MPI_Comm comm, Flow flow, const Known& known, BlockMessages blocks,
                            bool listed);

/// The boards on which this process may publish a nonblocking call for which asked() is true; null: it has declined.
std::shared_ptr<BoardGroup> offers(MPI_Comm comm);
/// What this process publishes about such a call once its blocks are listed; null: it has declined.
std::unique_ptr<BoardCall> offer(const char* call, const std::shared_ptr<BoardGroup>& group, BlockMessages blocks,
                                 bool listed);
/// offer() for each start of a persistent call; empty if its blocks are not for GPUs.
PrepareOffer to_offer(const char* call, BlockMessages blocks);

}  // namespace collective_messages

/// Runs a blocking call by kernels or as messages if all processes agree, and returns its result; no value: nothing has
/// been done. `list(blocks)` lists what this process sends and receives. It returns false for arguments that MPI would
/// refuse, or that only MPI can serve.
template <class List>
std::optional<int> as_messages(const Call& call, MPI_Comm comm, Flow flow, const Known& known, List list) {
  if (!collective_messages::asked(call, comm, flow, known)) return std::nullopt;
  BlockMessages blocks;
  bool listed = false;
  try {
    listed = !collective_messages::surely_on_host() && list(blocks);
  } catch (const std::exception&) {  // declines, since the others wait for this process
    collective_messages::exchange(call, comm, flow, known, {}, /*listed=*/false);
    throw;
  }
  return collective_messages::exchange(call, comm, flow, known, std::move(blocks), listed);
}

/// What this process publishes about a nonblocking call; null: there is no agreement about it, or this process has
/// declined.
template <class List>
std::unique_ptr<BoardCall> offer_exchange(const Call& call, MPI_Comm comm, Flow flow, const Known& known, List list) {
  if (!collective_messages::asked(call, comm, flow, known)) return nullptr;
  const std::shared_ptr<BoardGroup> group = collective_messages::offers(comm);
  if (!group) return nullptr;
  BlockMessages blocks;
  bool listed = false;
  try {
    listed = list(blocks);
  } catch (const std::exception&) {
    group->decline();
    throw;
  }
  return collective_messages::offer(call.name, group, std::move(blocks), listed);
}

/// How to publish the starts of a persistent call for which asked() is true; empty: its blocks are not for GPUs.
template <class List>
PrepareOffer exchange_to_offer(const Call& call, List list) {
  BlockMessages blocks;
  return list(blocks) ? collective_messages::to_offer(call.name, std::move(blocks)) : PrepareOffer();
}

}  // namespace gpudt::interpose
