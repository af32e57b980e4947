// What some MPI library does wrongly, or not at all, done by other means; in all others the function itself. One
// implementation for each family of MPI libraries, workarounds_<family>.cpp; the build picks one.
#pragma once

#include <mpi.h>

#include <cstdint>

namespace gpudt::interpose {

/// Of a receive that has ended: the bytes that have come, MPI_UNDEFINED aside.
#ifdef OPEN_MPI
// What MPI_Get_elements tells of MPI_BYTE, at a tenth of its cost: every receive is asked.
inline std::int64_t received_bytes(const MPI_Status& status) {
  return static_cast<std::int64_t>(status._ucount);
}
#else
std::int64_t received_bytes(const MPI_Status& status);
#endif

/// PMPI_Waitall.
int wait_all(int count, MPI_Request* requests, MPI_Status* statuses);

/// PMPI_Testsome that calls no error handler and leaves failed requests alone, as far as the MPI library allows.
int test_some(int count, MPI_Request* requests, int* done, int* indices, MPI_Status* statuses);

/// Whether gpudt looks at what every receive of this MPI library brings, as peer transfers need.
bool all_receives_are_known();

/// PMPI_Probe, PMPI_Iprobe, PMPI_Mprobe and PMPI_Improbe; what is pending advances in them.
int probe(int source, int tag, MPI_Comm comm, MPI_Status* status);
int iprobe(int source, int tag, MPI_Comm comm, int* flag, MPI_Status* status);
int mprobe(int source, int tag, MPI_Comm comm, MPI_Message* message, MPI_Status* status);
int improbe(int source, int tag, MPI_Comm comm, int* flag, MPI_Message* message, MPI_Status* status);

}  // namespace gpudt::interpose
