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

/// Whether no process has left MPI_Init before all others had entered it. To be called after it; the same in all.
bool init_waits_for_all();

/// Messages between processes of MPI_COMM_WORLD that no receive or probe of the program's can meet, and for which
/// nothing need be agreed on beforehand, as a communicator would be: processes without the library may be part of the
/// job. They have tags of their own, 0 to hidden_tags - 1, and keep their order by process and tag.
inline constexpr int hidden_tags = 2;
/// Whether the MPI library has a way for them. Only then may the others be called.
bool has_hidden_messages();
/// As PMPI_Isend does, starts to send `bytes` bytes to a rank of MPI_COMM_WORLD. Calls no error handler.
int hidden_send(const void* data, std::int64_t bytes, int rank, int tag, MPI_Request* request);
/// As PMPI_Irecv does; `rank` may be MPI_ANY_SOURCE.
int hidden_receive(void* data, std::int64_t bytes, int rank, int tag, MPI_Request* request);

/// PMPI_Probe, PMPI_Iprobe, PMPI_Mprobe and PMPI_Improbe; what is pending advances in them.
int probe(int source, int tag, MPI_Comm comm, MPI_Status* status);
int iprobe(int source, int tag, MPI_Comm comm, int* flag, MPI_Status* status);
int mprobe(int source, int tag, MPI_Comm comm, MPI_Message* message, MPI_Status* status);
int improbe(int source, int tag, MPI_Comm comm, int* flag, MPI_Message* message, MPI_Status* status);

}  // namespace gpudt::interpose
