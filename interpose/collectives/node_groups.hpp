// The processes of MPI_COMM_WORLD by node, if it spans several nodes, for reductions over nodes (node_reductions.hpp).
//
// Processes that have the same rank on their nodes are fellows. Fellows that are all leaders of their GPUs
// (board_call.hpp) reduce one slice of the elements among themselves.
//
// The communicators are made in MPI_Init, where no call of the program can be pending. Making one in a later call could
// hang: Open MPI lets it wait for communicators that MPI_Comm_idup or other threads are making, and these may wait for
// that call.
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
  CommState on_node;                 ///< the state of `node`, with its boards
  std::vector<int> node_of;          ///< by rank; nodes count from 0 on
  std::vector<int> rank_on_node;     ///< by rank: its rank in its node's `node`
  int own_node = 0;
  bool shared = false;  ///< also for other communicators of the same processes. Only if no process has
                        ///< MPI_THREAD_MULTIPLE, with which two of them may have reductions at the same time

  const std::shared_ptr<BoardGroup>& boards();
};

/// To be called in MPI_Init, if all processes of MPI_COMM_WORLD can take part and are on several nodes. Collective.
void node_groups_start();
/// To be called in MPI_Finalize.
void node_groups_stop();
/// The groups that a blocking collective on `comm` can use: if it has the processes of MPI_COMM_WORLD in the same
/// order. Null if there are none. All processes get the same answer.
NodeGroups* node_groups(MPI_Comm comm);

}  // namespace gpudt::interpose
