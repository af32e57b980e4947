// Programs that initialize MPI only by sessions (MPI-4.1 section 11.3), without MPI_Init: they have neither
// MPI_COMM_WORLD nor MPI_COMM_SELF.
#pragma once

#include <mpi.h>

namespace gpudt::interpose {

/// Whether the library has been started by a session, and MPI_Init has not been called.
bool sessions_alone();
/// Opens a session of the library's own, since the program's sessions may end at any time. leave_sessions() ends it.
/// Returns an MPI error code.
int enter_sessions();
/// To be called when MPI_Init has been called. Existing communicators stay.
void enter_world();
/// Ends the library's own session, if there is one. All communicators made from it must have been freed.
void leave_sessions();
/// While sessions_alone(): makes a communicator of only this process, which returns errors. `tag`: as for bare_self().
MPI_Comm self_of_session(int tag);

}  // namespace gpudt::interpose
