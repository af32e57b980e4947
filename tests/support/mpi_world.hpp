// The processes of a test program: those of MPI_COMM_WORLD or, with GPUDT_TEST_SESSION=1 in the environment, those of
// "mpi://WORLD" in a session, without MPI_Init. Then there is no MPI_COMM_WORLD.
#pragma once

#include <mpi.h>

namespace gpudt::test {

/// `threads`: with MPI_THREAD_MULTIPLE. Ends the program where MPI has no sessions and one is wanted.
void begin_world(int* argc, char*** argv, bool threads);
/// All of them; returns errors in a session.
MPI_Comm world();
/// Whether these are the processes of a session.
bool in_session();
void end_world();

}  // namespace gpudt::test
