// MPI-4.1 section 7.4.3: communicators that go while operations on them are pending.
#include "interpose/collectives/call_order.hpp"
#include "interpose/requests/matched.hpp"
#include "interpose/requests/operation.hpp"
#include "interpose/requests/persistent.hpp"
#include "interpose/support/errors.hpp"
#include "interpose/support/export.hpp"

namespace gpudt::interpose {
namespace {

/// A communicator's pending operations outlive its handle: deferred sends go out first, and
/// what may still fail keeps the error handler.
void forget(MPI_Comm comm) {
  if (comm == MPI_COMM_NULL) return;  // an error, which is MPI's to report
  settle_collectives(comm);           // what waits needs the handle
  settle_starts(comm);
  persistent_forget_comm(comm);  // what is started from here on does not need the handle
  engine_forget_comm(comm);
  matched_forget_comm(comm);
}

}  // namespace
}  // namespace gpudt::interpose

using namespace gpudt::interpose;

GPUDT_EXPORT int MPI_Comm_free(MPI_Comm* comm) {
  return guarded(*comm, "MPI_Comm_free", [&] {
    forget(*comm);
    return PMPI_Comm_free(comm);
  });
}
GPUDT_EXPORT int MPI_Comm_disconnect(MPI_Comm* comm) {
  return guarded(*comm, "MPI_Comm_disconnect", [&] {
    forget(*comm);
    return PMPI_Comm_disconnect(comm);
  });
}
