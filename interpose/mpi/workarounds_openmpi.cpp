// What Open MPI 4 and 5 need.
#include "interpose/mpi/workarounds.hpp"

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

/// The layer of Open MPI that sends and receives messages: a table of functions, whose first eleven have stood in
/// this order since version 1.3 (ompi/mca/pml/pml.h). Unlike MPI's own functions they take negative tags, which
/// wildcards do not match.
struct Messaging {
  void* managing[6];
  void* receive_init;
  int (*receive)(void*, std::size_t, MPI_Datatype, int source, int tag, MPI_Comm, MPI_Request*);
  void* blocking_receive;
  void* send_init;
  int (*send)(const void*, std::size_t, MPI_Datatype, int dest, int tag, int mode, MPI_Comm, MPI_Request*);
};

constexpr int standard_mode = 4;

const Messaging* messaging() {
  static const auto* const found = static_cast<const Messaging*>(dlsym(RTLD_DEFAULT, "mca_pml"));
  return found;
}

}  // namespace

bool init_waits_for_all() {
  const auto* const asynchronous = static_cast<const bool*>(dlsym(RTLD_DEFAULT, "ompi_async_mpi_init"));
  return asynchronous != nullptr && !*asynchronous;
}

bool has_hidden_messages() {
  return all_receives_are_known() && messaging() != nullptr && messaging()->send != nullptr;
}

int hidden_send(const void* data, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm,
                MPI_Request* request) {
  const int code =
      messaging()->send(data, static_cast<std::size_t>(count), type, dest, tag, standard_mode, comm, request);
  return code == 0 ? MPI_SUCCESS : MPI_ERR_OTHER;
}

int hidden_receive(void* data, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm, MPI_Request* request) {
  const int code = messaging()->receive(data, static_cast<std::size_t>(count), type, source, tag, comm, request);
  return code == 0 ? MPI_SUCCESS : MPI_ERR_OTHER;
}

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
