// The point-to-point messages that are equivalent to one process's part of a collective that moves data (MPI-4.1
// chapters 6 and 8). Only intracommunicators.
//
// The list_ functions return false if MPI would refuse the arguments; MPI then gets the call.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <vector>

#include "interpose/mpi/workarounds.hpp"
#include "interpose/requests/call_buffers.hpp"

namespace gpudt::interpose {

/// A block of `count` elements of `type` that goes to, or comes from, process `rank` of the communicator.
struct BlockMessage {
  const void* buffer;
  std::int64_t count;
  MPI_Datatype type;
  int rank;
  Located located{};  ///< where the buffer lies, if this has been looked up
};

/// The blocks that a process sends and receives. Between two processes blocks keep their order.
struct BlockMessages {
  std::vector<BlockMessage> given, taken;
};

enum class Among { all, neighbours };

/// This process's rank in a communicator, and the number of processes.
struct CommRank {
  int rank = 0, size = 0;
  explicit CommRank(MPI_Comm comm) {
    PMPI_Comm_rank(comm, &rank);
    PMPI_Comm_size(comm, &size);
  }
  /// For turns 0, 1, ...: the ranks to send to, and to receive from. Each process begins with the next one, so that not
  /// all send to one process at a time, and ends with itself.
  int after(int turn) const { return (rank + 1 + turn) % size; }
  int before(int turn) const { return (rank + size - 1 - turn) % size; }
  bool names(int root) const { return root >= 0 && root < size; }
};

// --- blocks of a buffer argument: functions of a block's index and of the rank that it is for ------------------------

/// The address of the element that is `elements` elements behind the one at `address`.
inline const void* element_of(const void* address, std::int64_t elements, MPI_Datatype type) {
  MPI_Aint lb = 0, extent = 0;
  if (type != MPI_DATATYPE_NULL) PMPI_Type_get_extent(type, &lb, &extent);
  return shifted(address, elements * extent);
}

template <class Count>
auto same_block(const void* address, Count count, MPI_Datatype type) {
  return [=](int, int rank) { return BlockMessage{address, count, type, rank}; };
}

template <class Count>
auto equal_blocks(const void* address, Count count, MPI_Datatype type) {
  return [=](int i, int rank) {
    return BlockMessage{element_of(address, i * std::int64_t{count}, type), count, type, rank};
  };
}

/// The blocks of a v form. With null arrays a count is -1, which MPI refuses.
template <class Count, class Displacement>
auto v_blocks(const void* address, const Count* counts, const Displacement* displs, MPI_Datatype type) {
  return [=](int i, int rank) {
    if (counts == nullptr || displs == nullptr) return BlockMessage{address, -1, type, rank};
    return BlockMessage{element_of(address, displs[i], type), counts[i], type, rank};
  };
}

template <class Count, class Displacement>
auto w_blocks(const void* address, const Count* counts, const Displacement* displs, const MPI_Datatype* types) {
  return [=](int i, int rank) {
    if (counts == nullptr || displs == nullptr || types == nullptr) return BlockMessage{address, -1, MPI_BYTE, rank};
    return BlockMessage{shifted(address, displs[i]), counts[i], types[i], rank};
  };
}

// --- operations ------------------------------------------------------------------------------------------------------

/// Whether the block that a process sends to itself lies where the process receives it, which MPI refuses.
inline bool is_refused(const BlockMessage& given, const BlockMessage& taken) {
  return refuses_all_aliases && given.buffer == taken.buffer && given.buffer != MPI_BOTTOM && given.count > 0 &&
         taken.count > 0;
}

/// One block between the root and each process. `own`: also between the root and itself.
template <class AtRoot, class Here>
bool list_rooted(std::vector<BlockMessage>& roots, std::vector<BlockMessage>& others, MPI_Comm comm, int root, bool own,
                 AtRoot at_root, Here here) {
  const CommRank comm_rank(comm);
  if (!comm_rank.names(root)) return false;
  for (int turn = 0; comm_rank.rank == root && turn < comm_rank.size; ++turn)
    if (const int rank = comm_rank.after(turn); rank != root || own) roots.push_back(at_root(rank, rank));
  if (comm_rank.rank != root || own) others.push_back(here(0, root));
  return comm_rank.rank != root || !own || !is_refused(roots.back(), others.back());
}

template <class AtRoot, class Here>
bool list_from_root(BlockMessages& blocks, MPI_Comm comm, int root, bool own, AtRoot give, Here take) {
  return list_rooted(blocks.given, blocks.taken, comm, root, own, give, take);
}

template <class Here, class AtRoot>
bool list_to_root(BlockMessages& blocks, MPI_Comm comm, int root, bool own, Here give, AtRoot take) {
  return list_rooted(blocks.taken, blocks.given, comm, root, own, take, give);
}

/// True if both neighbours in a grid dimension are the same process; then only MPI can tell the two blocks apart.
inline bool ambiguous(MPI_Comm comm, const Edges& edges) {
  int topology = MPI_UNDEFINED;
  PMPI_Topo_test(comm, &topology);
  if (topology != MPI_CART) return false;
  for (std::size_t at = 0; at < edges.out_of.size(); at += 2)
    if (edges.out_of[at] != MPI_PROC_NULL && edges.out_of[at] == edges.out_of[at + 1]) return true;
  return false;
}

template <class Give, class Take>
bool list_among_neighbours(BlockMessages& blocks, MPI_Comm comm, Give give, Take take) {
  const Edges with = edges(comm);
  if (ambiguous(comm, with)) return false;
  const auto list = [](std::vector<BlockMessage>& blocks, const std::vector<int>& ranks, auto block) {
    blocks.reserve(ranks.size());
    for (std::size_t at = 0; at < ranks.size(); ++at)
      if (ranks[at] != MPI_PROC_NULL) blocks.push_back(block(static_cast<int>(at), ranks[at]));
  };
  list(blocks.given, with.out_of, give);
  list(blocks.taken, with.into, take);
  return true;
}

/// A block from each process to each. `own`: also to itself.
template <class Give, class Take>
bool list_exchange(BlockMessages& blocks, MPI_Comm comm, Among among, bool own, Give give, Take take) {
  if (among == Among::neighbours) return list_among_neighbours(blocks, comm, give, take);
  const CommRank comm_rank(comm);
  const int others = own ? comm_rank.size : comm_rank.size - 1;
  for (auto* const side : {&blocks.given, &blocks.taken}) side->reserve(static_cast<std::size_t>(others));
  for (int turn = 0; turn < others; ++turn) {
    const int to = comm_rank.after(turn), from = comm_rank.before(turn);
    blocks.given.push_back(give(to, to));
    blocks.taken.push_back(take(from, from));
  }
  return !own || !is_refused(blocks.given.back(), blocks.taken.back());
}

/// The same block from each process to all. With MPI_IN_PLACE it lies where the others receive it.
template <class Count, class Take>
bool list_gathering(BlockMessages& blocks, MPI_Comm comm, Among among, const void* sendbuf, Count sendcount,
                    MPI_Datatype sendtype, Take take) {
  if (sendbuf != MPI_IN_PLACE)
    return list_exchange(blocks, comm, among, /*own=*/true, same_block(sendbuf, sendcount, sendtype), take);
  if (among == Among::neighbours) return false;  // nothing lies in place there
  const int here = CommRank(comm).rank;
  const auto give = [&](int, int rank) {
    BlockMessage block = take(here, here);
    block.rank = rank;
    return block;
  };
  return list_exchange(blocks, comm, among, /*own=*/false, give, take);
}

}  // namespace gpudt::interpose
