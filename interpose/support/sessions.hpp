// MPI that is initialized by sessions alone (MPI-4.1 section 11.3), without MPI_Init: there are no MPI_COMM_WORLD and
// no MPI_COMM_SELF then.
#pragma once

#include <mpi.h>

namespace gpudt::interpose {

/// Whether the library has been started by a session, and MPI_Init has not been called.
bool sessions_alone();
/// Opens a session of the library's own, which lasts until leave_sessions(), as the program's may end at any time. An
/// MPI error code.
int enter_sessions();
/// MPI_Init has been called. Communicators that are there stay.
void enter_world();
/// Ends the library's own session, if there is one. All communicators that were made of it have been freed.
void leave_sessions();
/// While sessions_alone(): a communicator of this process alone, which returns errors. `tag` as bare_self() has it.
MPI_Comm self_of_session(int tag);

}  // namespace gpudt::interpose
