// Programs that take MPI's functions from the handle of the MPI library, by dlsym(), as ctypes, Julia's MPI.jl and
// numba-mpi do. Their calls bypass this library, even if it is preloaded.
#pragma once

namespace gpudt::interpose {

/// Text for messages: the likely reason why calls bypass this library.
#define GPUDT_PASSED_BY \
  "a function that dlsym() takes from the MPI library's own handle, as ctypes and Julia's MPI.jl do, passes it by"

/// To be called when MPI_Init has come through this library: prevents the warning.
void note_init();
bool init_noted();
/// The same where every call goes to MPI on purpose, since this library was built for another one.
void note_other_mpi();
bool other_mpi_noted();

/// To be called while MPI is being initialized. If MPI_Init has not come through this library, in a process that has a
/// GPU runtime, the first rank logs a warning.
void warn_if_passed_by();

/// Whether this is the first rank. Before MPI is initialized the launcher's variables decide; without any, every
/// process counts as the first.
bool is_first_rank();

}  // namespace gpudt::interpose
