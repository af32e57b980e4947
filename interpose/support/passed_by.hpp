// Programs that take MPI's functions from the handle of the MPI library, by dlsym(): ctypes, Julia's MPI.jl and
// numba-mpi do. What they call does not come through this library, wherever it is preloaded.
#pragma once

namespace gpudt::interpose {

/// What is said where that is the likely cause.
#define GPUDT_PASSED_BY \
  "a function that dlsym() takes from the MPI library's own handle, as ctypes and Julia's MPI.jl do, passes it by"

/// The program's MPI_Init has come through this library, or what is called is not expected to.
void note_init();
bool init_noted();

/// MPI is being initialized. If MPI_Init has not come here, in a process that has a GPU's runtime, the first rank says
/// so.
void warn_if_passed_by();

/// Before MPI is initialized only the launchers' variables tell; without any, every process is the first.
bool is_first_rank();

}  // namespace gpudt::interpose
