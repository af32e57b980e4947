// What MPICH 4 does wrongly.
#include "interpose/mpi/workarounds.hpp"

#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "interpose/support/engine.hpp"

namespace gpudt::interpose {
namespace {

/// The status of MPI_REQUEST_NULL (MPI-4.1 section 3.7.3).
MPI_Status empty_status() {
  MPI_Status status{};
  status.MPI_SOURCE = MPI_ANY_SOURCE;
  status.MPI_TAG = MPI_ANY_TAG;
  status.MPI_ERROR = MPI_SUCCESS;
  return status;
}

/// Calls `look(&flag)` until it has found a message or failed, and drives the engine in between.
template <class Look>
int until_found(Look look) {
  while (true) {
    int flag = 0;
    const int code = look(&flag);
    if (code != MPI_SUCCESS || flag != 0) return code;
    if (engine_progress() == 0) sched_yield();
  }
}

}  // namespace

std::int64_t received_bytes(const MPI_Status& status) {
  MPI_Count bytes = 0;
  PMPI_Get_elements_x(&status, MPI_BYTE, &bytes);
  return bytes;
}

/// An assertion in MPICH's MPI_Waitall fails if some requests are null and a generalized one is not complete yet.
int wait_all(int count, MPI_Request* requests, MPI_Status* statuses) {
  const bool some_null = count > 0 && std::find(requests, requests + count, MPI_REQUEST_NULL) != requests + count;
  if (!some_null) return PMPI_Waitall(count, requests, statuses);
  std::vector<int> places;
  std::vector<MPI_Request> waited;
  for (int i = 0; i < count; ++i) {
    if (requests[i] == MPI_REQUEST_NULL) continue;
    places.push_back(i);
    waited.push_back(requests[i]);
  }
  const bool wanted = statuses != MPI_STATUSES_IGNORE;
  std::vector<MPI_Status> seen(wanted ? waited.size() : 0);
  const int code =
      PMPI_Waitall(static_cast<int>(waited.size()), waited.data(), wanted ? seen.data() : MPI_STATUSES_IGNORE);
  if (wanted) std::fill_n(statuses, count, empty_status());
  for (std::size_t i = 0; i < places.size(); ++i) {
    requests[places[i]] = waited[i];
    if (wanted) statuses[places[i]] = seen[i];
  }
  return code;
}

/// MPICH has no such function: it frees requests that have failed, and calls the handler of MPI_COMM_WORLD, whatever
/// communicator they belong to. For the time of the call that handler is one that returns. It is put back unless
/// another thread has changed it meanwhile.
int test_some(int count, MPI_Request* requests, int* done, int* indices, MPI_Status* statuses) {
  MPI_Errhandler before = MPI_ERRHANDLER_NULL, after = MPI_ERRHANDLER_NULL;
  PMPI_Comm_get_errhandler(MPI_COMM_WORLD, &before);
  PMPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  const int code = PMPI_Testsome(count, requests, done, indices, statuses);
  PMPI_Comm_get_errhandler(MPI_COMM_WORLD, &after);
  if (after == MPI_ERRORS_RETURN) PMPI_Comm_set_errhandler(MPI_COMM_WORLD, before);
  for (MPI_Errhandler* const handler : {&before, &after}) PMPI_Errhandler_free(handler);
  int error_class = MPI_SUCCESS;
  PMPI_Error_class(code, &error_class);
  return error_class == MPI_ERR_IN_STATUS ? MPI_ERR_IN_STATUS : code;
}

// On a communicator of one process MPICH's probes look again and again, or once, and make no progress.

int probe(int source, int tag, MPI_Comm comm, MPI_Status* status) {
  return until_found([&](int* flag) { return PMPI_Iprobe(source, tag, comm, flag, status); });
}

int iprobe(int source, int tag, MPI_Comm comm, int* flag, MPI_Status* status) {
  engine_progress();
  return PMPI_Iprobe(source, tag, comm, flag, status);
}

int mprobe(int source, int tag, MPI_Comm comm, MPI_Message* message, MPI_Status* status) {
  return until_found([&](int* flag) { return PMPI_Improbe(source, tag, comm, flag, message, status); });
}

int improbe(int source, int tag, MPI_Comm comm, int* flag, MPI_Message* message, MPI_Status* status) {
  engine_progress();
  return PMPI_Improbe(source, tag, comm, flag, message, status);
}

/// Not known; nor needed where not all receives are.
bool init_waits_for_all() {
  return false;
}

bool all_receives_are_known() {
  return false;
}

bool find_contexts(MPI_Comm) {
  return false;
}

std::int64_t widest_received_in_parts() {
  return std::numeric_limits<std::int64_t>::max();
}

bool find_request_contexts(MPI_Comm) {
  return false;
}

std::uint32_t context_of(MPI_Comm) {
  return local_context;
}

MPI_Comm request_comm(MPI_Request) {
  return MPI_COMM_NULL;
}

bool request_has_comm(MPI_Request, MPI_Comm) {
  return false;
}

bool has_hidden_messages() {
  return false;
}

int hidden_send(const void*, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request*) {
  return MPI_ERR_OTHER;
}

int hidden_receive(void*, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request*) {
  return MPI_ERR_OTHER;
}

}  // namespace gpudt::interpose
