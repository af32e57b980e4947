// The order in which collectives on one communicator go to MPI, which has to be the same in all of its processes.
//
// A process that offers a nonblocking call to GPUs (board_call.hpp) does not know whether all others do. Until it does,
// MPI is given neither that call, which it may have to do after all, nor a later collective on the communicator:
// nonblocking ones wait here, and the engine starts them in their order; blocking ones return when they have waited
// for those before them. A process that declines never waits: MPI gets its call at once.
//
// Starts of persistent collectives have no order, neither among themselves nor with other calls (MPI-4.1 section 6.13):
// MPI matches them by their initialisations. One that is offered waits by itself, and nothing waits for it.
#pragma once

#include <mpi.h>

#include <functional>
#include <memory>

#include "interpose/collectives/board_call.hpp"
#include "interpose/requests/call_buffers.hpp"
#include "interpose/support/errors.hpp"

namespace gpudt::interpose {

/// Gives a call to MPI, as the call says: at once, or late.
using StartInMpi = std::function<int(const Call&)>;

/// Whether calls on `comm` wait. Costs one atomic load if none does on any communicator.
bool collectives_wait(MPI_Comm comm);
/// Returns when none does: before a blocking collective on `comm`, or whatever else is collective over it. (Within the
/// engine, where nothing advances, at once.)
void settle_collectives(MPI_Comm comm);

/// A nonblocking call that waits. `offered` (or null) is told of. May throw std::bad_alloc.
int start_waiting(const Call& call, MPI_Comm comm, std::unique_ptr<BoardCall> offered, StartInMpi start);

/// A nonblocking call: waits if it must, else `start(call)`.
template <class Start>
int start_in_order(const Call& call, MPI_Comm comm, std::unique_ptr<BoardCall> offered, const Start& start) {
  if (!offered && !collectives_wait(comm)) return start(call);
  return start_waiting(call, comm, std::move(offered), start);
}

/// A start of a persistent collective that this process offers; `start(call)` gives it to MPI late if GPUs do not do
/// it: call.late->inner is the persistent request, which `keep` holds. May throw std::bad_alloc.
int start_offered(const Call& call, const ErrorOwner& owner, std::unique_ptr<BoardCall> offered, StartInMpi start,
                  std::shared_ptr<void> keep);
/// Returns when no such start on `comm` may have to be given to MPI any more: before the handle is freed.
void settle_starts(MPI_Comm comm);

/// MPI_Type_free and MPI_Op_free, which a program may call as soon as a nonblocking call has returned: as long as calls
/// wait that were made before, the handle stays. False if that is not so: nothing has been done.
bool free_type_later(MPI_Datatype* type);
bool free_op_later(MPI_Op* op);

}  // namespace gpudt::interpose
