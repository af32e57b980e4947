// What the processes of a window that is being made ask each other before they make it.
#pragma once

#include <mpi.h>

namespace gpudt::interpose {

/// What a process says; of all processes, the largest of each.
struct WindowVote {
  int wants;    ///< 1: it has memory that gpudt alone can serve
  int cannot;   ///< 1: gpudt is off here
  int is_mpis;  ///< 1: the window is MPI's in any case, if no process wants it served
};

/// Collective over the processes of `comm`, an intracommunicator, that have gpudt; the same answer in all. Returns when
/// all processes have called it: if some lack gpudt, never. Unless `all_answer` says that none does, a line about
/// `call` tells of a long wait, once in a process. All zero if MPI fails.
WindowVote vote_on_window(const char* call, MPI_Comm comm, WindowVote mine, bool all_answer);

}  // namespace gpudt::interpose
