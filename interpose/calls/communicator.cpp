// MPI-4.1 section 7.4.3: communicators that are freed while operations on them are pending.
#include "interpose/collectives/call_order.hpp"
#include "interpose/requests/matched.hpp"
#include "interpose/requests/operation.hpp"
#include "interpose/requests/persistent.hpp"
#include "interpose/streams/enqueue.hpp"
#include "interpose/streams/free_handle.hpp"
#include "interpose/streams/program_stream.hpp"
#include "interpose/support/errors.hpp"
#include "interpose/support/export.hpp"

namespace gpudt::interpose {
namespace {

/// To be called before the program frees the handle: waits until MPI has been given all calls that need it, and lets
/// the remaining operations keep the error handler instead, since they may still fail.
void forget(MPI_Comm comm) {
  if (comm == MPI_COMM_NULL) return;  // MPI reports the error
  settle_collectives(comm);           // collectives that wait for their turn
  settle_starts(comm);                // and starts of persistent collectives
  persistent_forget_comm(comm);       // persistent requests, which may be started afterwards
  engine_forget_comm(comm);           // deferred sends, and operations under way
  matched_forget_comm(comm);          // messages from MPI_Mprobe
}

}  // namespace
}  // namespace gpudt::interpose

using namespace gpudt::interpose;

GPUDT_EXPORT int MPI_Comm_free(MPI_Comm* comm) {
  if (comm == nullptr) return PMPI_Comm_free(comm);  // MPI reports it
  return guarded(*comm, "MPI_Comm_free", [&] {
    const auto stream = find_stream_comm(*comm);
    const int failure = return_late_failure(stream.get());
    detach_stream(*comm);
    const auto free = [](MPI_Comm* unused) {
      forget(*unused);
      return PMPI_Comm_free(unused);
    };
    const int code = stream ? free_handle(comm, MPI_COMM_NULL, free) : free(comm);
    return failure != MPI_SUCCESS ? failure : code;
  });
}
GPUDT_EXPORT int MPI_Comm_disconnect(MPI_Comm* comm) {
  if (comm == nullptr) return PMPI_Comm_disconnect(comm);
  return guarded(*comm, "MPI_Comm_disconnect", [&] {
    const auto stream = find_stream_comm(*comm);
    const int failure = return_late_failure(stream.get());
    detach_stream(*comm);
    if (stream) wait_until([&] { return stream->calls.load() == 0; });
    forget(*comm);
    const int code = PMPI_Comm_disconnect(comm);
    return failure != MPI_SUCCESS ? failure : code;
  });
}
