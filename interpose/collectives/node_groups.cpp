#include "interpose/collectives/node_groups.hpp"

#include <algorithm>
#include <memory>
#include <utility>

namespace gpudt::interpose {
namespace {

/// The groups of MPI_COMM_WORLD; null: it is on one node, or a process cannot take part.
NodeGroups* world_groups = nullptr;

void free_comm(MPI_Comm& comm) {
  if (comm != MPI_COMM_NULL) PMPI_Comm_free(&comm);
}

/// Numbers the nodes in the order of their lowest ranks, which `heads_by_rank` names.
void place(NodeGroups& groups, const std::vector<int>& heads_by_rank) {
  std::vector<int> heads;
  for (const int head : heads_by_rank) {
    auto at = std::find(heads.begin(), heads.end(), head);
    if (at == heads.end()) at = heads.insert(at, head);
    const auto node = static_cast<int>(at - heads.begin());
    groups.rank_on_node.push_back(static_cast<int>(std::count(groups.node_of.begin(), groups.node_of.end(), node)));
    groups.node_of.push_back(node);
  }
}

}  // namespace

void node_groups_start() {
  int rank = 0, size = 0;
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  PMPI_Comm_size(MPI_COMM_WORLD, &size);
  auto groups = std::make_unique<NodeGroups>();
  std::vector<int> heads(static_cast<std::size_t>(size));
  PMPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &groups->node);
  int head = rank;
  PMPI_Bcast(&head, 1, MPI_INT, 0, groups->node);
  PMPI_Allgather(&head, 1, MPI_INT, heads.data(), 1, MPI_INT, MPI_COMM_WORLD);
  place(*groups, heads);
  const auto own = static_cast<std::size_t>(rank);
  groups->own_node = groups->node_of[own];
  int level = MPI_THREAD_SINGLE, most = MPI_THREAD_SINGLE;
  PMPI_Query_thread(&level);
  PMPI_Allreduce(&level, &most, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  groups->shared = most != MPI_THREAD_MULTIPLE;
  PMPI_Comm_split(MPI_COMM_WORLD, groups->rank_on_node[own], groups->own_node, &groups->fellows);
  for (const MPI_Comm comm : {groups->node, groups->fellows}) PMPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  world_groups = groups.release();
}

void node_groups_stop() {
  if (world_groups == nullptr) return;
  free_comm(world_groups->fellows);
  free_comm(world_groups->node);
  delete std::exchange(world_groups, nullptr);
}

NodeGroups* node_groups(MPI_Comm comm) {
  if (world_groups == nullptr || (comm != MPI_COMM_WORLD && !world_groups->shared)) return nullptr;
  int likeness = MPI_UNEQUAL;
  PMPI_Comm_compare(comm, MPI_COMM_WORLD, &likeness);
  if (likeness != MPI_IDENT && likeness != MPI_CONGRUENT) return nullptr;
  return world_groups;
}

const std::shared_ptr<BoardGroup>& NodeGroups::boards() {
  if (!on_node.boards) on_node.members = members_of(node, peer::world_ranks(node));
  return boards_of(on_node);
}

}  // namespace gpudt::interpose
