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

}  // namespace gpudt::interpose
