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

/// Tags of messages that no receive or probe of the program's can meet, and for which nothing need be agreed on
/// beforehand, as a communicator would be: processes without the library may be part of the job, and no other
/// communicator's making waits for this one's. Open MPI's own messages have tags from -7 on downwards.
enum HiddenTag : int { control_tag = -3, part_tag = -4, collective_tag = -5 };
/// Whether the MPI library has a way for them, the same in all processes; once it is initialized. Only then may the
/// others be called.
bool has_hidden_messages();
/// As PMPI_Isend and PMPI_Irecv, with such a tag; the source may be MPI_ANY_SOURCE. They call no error handler.
int hidden_send(const void* data, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm, MPI_Request* request);
int hidden_receive(void* data, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm, MPI_Request* request);

/// PMPI_Probe, PMPI_Iprobe, PMPI_Mprobe and PMPI_Improbe; what is pending advances in them.
int probe(int source, int tag, MPI_Comm comm, MPI_Status* status);
int iprobe(int source, int tag, MPI_Comm comm, int* flag, MPI_Status* status);
int mprobe(int source, int tag, MPI_Comm comm, MPI_Message* message, MPI_Status* status);
int improbe(int source, int tag, MPI_Comm comm, int* flag, MPI_Message* message, MPI_Status* status);

}  // namespace gpudt::interpose
