// What MPICH 4 does wrongly.
#include "interpose/workarounds.hpp"

#include <algorithm>
#include <vector>

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

}  // namespace

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

/// MPICH has no such function. It calls the handler of MPI_COMM_WORLD, whatever communicator a request belongs to.
int test_some(int count, MPI_Request* requests, int* done, int* indices, MPI_Status* statuses) {
  return PMPI_Testsome(count, requests, done, indices, statuses);
}

}  // namespace gpudt::interpose
