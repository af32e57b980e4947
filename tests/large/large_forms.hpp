// What the generated functions (generate_large_forms.py) need: arrays of counts and displacements in the width of the
// large forms.
#pragma once

#include <mpi.h>

#include <mutex>
#include <set>
#include <type_traits>
#include <vector>

namespace gpudt::test {

/// The same numbers; for the life of the process, since MPI may look at those of a pending operation.
template <class Wide>
const Wide* widened(const int* numbers, int count) {
  if (numbers == nullptr) return nullptr;
  static std::mutex mutex;
  static auto& all = *new std::set<std::vector<Wide>>;
  std::vector<Wide> wide(numbers, numbers + count);
  wide.push_back(0);  // so that an array of none has an address
  const std::lock_guard<std::mutex> lock(mutex);
  return all.insert(std::move(wide)).first->data();
}

inline int shares(MPI_Comm comm) {
  int size = 0;
  if (comm != MPI_COMM_NULL) PMPI_Comm_size(comm, &size);
  return size;
}

inline int peers(MPI_Comm comm) {
  int inter = 0, size = 0;
  if (comm == MPI_COMM_NULL) return size;
  PMPI_Comm_test_inter(comm, &inter);
  inter != 0 ? PMPI_Comm_remote_size(comm, &size) : PMPI_Comm_size(comm, &size);
  return size;
}

/// None where the arrays mean nothing.
inline int peers_of_root(MPI_Comm comm, int root) {
  int inter = 0, rank = 0;
  if (comm == MPI_COMM_NULL) return 0;
  PMPI_Comm_test_inter(comm, &inter);
  PMPI_Comm_rank(comm, &rank);
  return (inter != 0 ? root == MPI_ROOT : root == rank) ? peers(comm) : 0;
}

struct Neighbours {
  int out_of;
  int into;
};

inline Neighbours neighbours(MPI_Comm comm) {
  int topology = MPI_UNDEFINED, rank = 0, count = 0, in = 0, out = 0, weighted = 0;
  if (comm == MPI_COMM_NULL) return {0, 0};
  PMPI_Topo_test(comm, &topology);
  PMPI_Comm_rank(comm, &rank);
  if (topology == MPI_CART) PMPI_Cartdim_get(comm, &count);
  if (topology == MPI_CART) return {2 * count, 2 * count};
  if (topology == MPI_GRAPH) PMPI_Graph_neighbors_count(comm, rank, &count);
  if (topology == MPI_GRAPH) return {count, count};
  if (topology == MPI_DIST_GRAPH) PMPI_Dist_graph_neighbors_count(comm, &in, &out, &weighted);
  return {out, in};
}

}  // namespace gpudt::test
