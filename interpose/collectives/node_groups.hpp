// The processes of MPI_COMM_WORLD by node, if it spans several: what reductions over nodes (node_reductions.hpp) need.
//
// Processes of one rank on their nodes are fellows: those that are leaders of their GPUs (board_call.hpp) on every node
// each reduce a slice of the elements among themselves.
//
// The communicators are made in MPI_Init, where nothing of the program's can be pending. To make one later, in a call
// of the program's, might never end: Open MPI lets it wait for others that are being made, by MPI_Comm_idup or by other
// threads, which may wait for that call.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "interpose/collectives/board_group.hpp"
#include "interpose/collectives/comm_state.hpp"

namespace gpudt::interpose {

struct NodeGroups {
  MPI_Comm node = MPI_COMM_NULL;     ///< the processes of this node, by rank
  MPI_Comm fellows = MPI_COMM_NULL;  ///< the processes of this one's rank on their nodes, by node
  CommState on_node;                 ///< of `node`, for its boards
  std::vector<int> node_of;          ///< by rank; nodes count from 0 on
  std::vector<int> rank_on_node;     ///< by rank: its rank in its node's `node`
  int own_node = 0;
  bool shared = false;  ///< by communicators of the same processes: no process has MPI_THREAD_MULTIPLE, with which
                        ///< reductions on two of them may be under way at a time

  const std::shared_ptr<BoardGroup>& boards();
};

/// In MPI_Init, if all processes of MPI_COMM_WORLD can be asked, on several nodes. Collective over it.
void node_groups_start();
/// In MPI_Finalize.
void node_groups_stop();
/// If `comm` has the processes of MPI_COMM_WORLD in the same order, for a blocking collective of it; null if there are
/// no groups that it can use, as all its processes know.
NodeGroups* node_groups(MPI_Comm comm);

}  // namespace gpudt::interpose
