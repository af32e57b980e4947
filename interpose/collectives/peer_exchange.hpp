// Collectives of blocks in device memory, between the GPUs of one node: by kernels that fetch the blocks
// (board_exchange.hpp), or, of long blocks in blocking calls, as messages (transport/peer/peer.hpp). Both take a
// fraction of what MPI's own collectives on staged data do.
//
// All processes must agree on each call, since none knows where the others' data are. They are asked (by boards in
// memory that they share, board_group.hpp) only if all processes have the library (announced on the node before
// MPI_Init) and if the block length, where all processes know it, is long enough. After a call that did not go this
// way, which all know, more and more calls pass without a question, so that programs that keep their data on the host,
// or send little, are hardly asked. (What one process alone finds wrong, or has no room for, is its answer: that it
// asks must not depend on it.) A process that can take neither way declines, and waits for nobody. Nonblocking calls
// are always asked about: a process that does not decline leaves the call to the engine (call_order.hpp).
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

/// The shape of a collective, on which depends how long blocks must be.
enum class Flow {
  from_root,  ///< each process gets one block
  to_root,    ///< each process gives one block
  other,
};

/// What all processes know of the blocks: how many elements there are in so many.
struct Known {
  std::int64_t elements;
  MPI_Datatype type = {};
  int blocks = 1;
  bool varies = false;    ///< no process knows the elements of others
  bool distinct = false;  ///< each block goes to one process alone

  std::int64_t bytes() const;
};
/// Of operations with a root that has a block for, or from, each process.
inline Known distinct(std::int64_t elements, MPI_Datatype type) {
  return {.elements = elements, .type = type, .distinct = true};
}
inline constexpr Known varying = {.elements = 0, .varies = true};

namespace collective_messages {

/// Whether all processes of `comm` are asked about this call, or about the starts of the request that it makes.
bool asked(const Call& call, MPI_Comm comm, Flow flow, const Known& known);
/// Whether this process cannot have data for GPUs.
bool surely_on_host();
/// Asks. What the call returns, if the blocks have gone so.
/// `listed`: the blocks are all that this process gives and takes.
std::optional<int> exchange(const Call& call, MPI_Comm comm, Flow flow, const Known& known, BlockMessages blocks,
                            bool listed);

/// Of a nonblocking call that is asked about: the boards on which this process may offer it; null: it has declined.
std::shared_ptr<BoardGroup> offers(MPI_Comm comm);
/// The same after its blocks have been listed: what is to be told, unless this process has declined.
std::unique_ptr<BoardCall> offer(const char* call, const std::shared_ptr<BoardGroup>& group, BlockMessages blocks,
                                 bool listed);
/// The same for the starts of a persistent call; empty: its blocks are not for GPUs.
PrepareOffer to_offer(const char* call, BlockMessages blocks);

}  // namespace collective_messages

/// Runs the call by kernels or as messages if all processes agree: what it returns; else nothing has been done.
/// `list(blocks)` lists what is given and taken, and returns false of arguments that are MPI's to refuse, or that only
/// MPI can serve.
template <class List>
std::optional<int> as_messages(const Call& call, MPI_Comm comm, Flow flow, const Known& known, List list) {
  if (!collective_messages::asked(call, comm, flow, known)) return std::nullopt;
  BlockMessages blocks;
  const bool listed = !collective_messages::surely_on_host() && list(blocks);
  return collective_messages::exchange(call, comm, flow, known, std::move(blocks), listed);
}

/// Of a nonblocking call: what this process is to tell of it; null if it is not asked about, or this process has
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

/// Of a persistent call that is asked about: how to offer its starts; empty: its blocks are not for GPUs.
template <class List>
PrepareOffer exchange_to_offer(const Call& call, List list) {
  BlockMessages blocks;
  return list(blocks) ? collective_messages::to_offer(call.name, std::move(blocks)) : PrepareOffer();
}

}  // namespace gpudt::interpose
