// The arguments of one-sided calls.
#pragma once

#include <mpi.h>

#include <limits>

namespace gpudt::interpose {

/// The origin's side of an access: the program's (buffer, count, datatype).
struct Origin {
  const void* buffer;
  int count;
  MPI_Datatype type;
};

/// The target's side.
struct Target {
  int rank;
  MPI_Aint displacement;
  int count;
  MPI_Datatype type;
};

/// Stands for every rank of a window.
inline constexpr int all_ranks = std::numeric_limits<int>::min();

/// To be called in MPI_Finalize: drops accesses to windows that the program has neither synchronised nor freed.
void one_sided_stop();

}  // namespace gpudt::interpose
