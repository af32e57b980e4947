// The agreement of the processes that make a window: whether MPI or gpudt serves it.
#pragma once

#include <mpi.h>

namespace gpudt::interpose {

/// What a process contributes; the result has the largest value of each member.
struct WindowVote {
  int wants;    ///< 1: the process has memory that only gpudt can serve
  int cannot;   ///< 1: gpudt is off in the process
  int is_mpis;  ///< 1: MPI serves the window unless a process wants gpudt to
};

/// Collective over `comm`, an intracommunicator; all processes get the same answer. Does not return if a process lacks
/// gpudt. Unless `all_answer` says that all have it, a process logs a long wait in `call` once. All members are zero if
/// MPI fails.
WindowVote vote_on_window(const char* call, MPI_Comm comm, WindowVote mine, bool all_answer);

}  // namespace gpudt::interpose
