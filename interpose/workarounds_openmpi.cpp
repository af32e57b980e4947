// What Open MPI 4 and 5 need.
#include "interpose/workarounds.hpp"

#include <dlfcn.h>

#include <cstddef>

namespace gpudt::interpose {
namespace {

/// MPI_Testsome as Open MPI has it inside: an error is returned, but no handler called and no failed request freed.
using SilentTestsome = int (*)(std::size_t, MPI_Request*, int*, int*, MPI_Status*);

/// The fourth of Open MPI's functions for requests (ompi/request/request.h, the same since version 1.3): MPI_Testsome
/// is this and then the error handler.
SilentTestsome find_testsome() {
  constexpr std::size_t test_some = 3;
  auto* const functions = static_cast<const SilentTestsome*>(dlsym(RTLD_DEFAULT, "ompi_request_functions"));
  return functions == nullptr ? nullptr : functions[test_some];
}

}  // namespace

int wait_all(int count, MPI_Request* requests, MPI_Status* statuses) {
  return PMPI_Waitall(count, requests, statuses);
}

int test_some(int count, MPI_Request* requests, int* done, int* indices, MPI_Status* statuses) {
  static const SilentTestsome testsome = find_testsome();
  if (testsome == nullptr) return PMPI_Testsome(count, requests, done, indices, statuses);
  return testsome(static_cast<std::size_t>(count), requests, done, indices, statuses);
}

int probe(int source, int tag, MPI_Comm comm, MPI_Status* status) {
  return PMPI_Probe(source, tag, comm, status);
}

int iprobe(int source, int tag, MPI_Comm comm, int* flag, MPI_Status* status) {
  return PMPI_Iprobe(source, tag, comm, flag, status);
}

int mprobe(int source, int tag, MPI_Comm comm, MPI_Message* message, MPI_Status* status) {
  return PMPI_Mprobe(source, tag, comm, message, status);
}

int improbe(int source, int tag, MPI_Comm comm, int* flag, MPI_Message* message, MPI_Status* status) {
  return PMPI_Improbe(source, tag, comm, flag, message, status);
}

bool all_receives_are_known() {
  return OMPI_MAJOR_VERSION <= 4;
}

}  // namespace gpudt::interpose
