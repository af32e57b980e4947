// The order in which collectives on one communicator go to MPI. It must be the same in all processes.
//
// A process that has published a nonblocking call (board_call.hpp) does not know yet whether GPUs will do it. Until it
// knows, MPI gets neither this call, which MPI may have to do after all, nor a later collective on the communicator.
// Later nonblocking calls wait here, and the engine starts them in order. Later blocking calls wait for the calls
// before them. A process that declines never waits: MPI gets its call at once.
//
// Starts of persistent collectives have no order, neither among themselves nor with other calls (MPI-4.1 section 6.13),
// because MPI matches them by their initialisations. A published start waits by itself, and no other call waits for it.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>

#include "interpose/collectives/board_call.hpp"
#include "interpose/requests/call_buffers.hpp"
#include "interpose/support/errors.hpp"

namespace gpudt::interpose {

/// Gives a call to MPI, either at once or after others (Call::late).
using StartInMpi = std::function<int(const Call&)>;

namespace detail {
extern std::atomic<std::size_t> collectives_waiting;  ///< calls, on all communicators
bool collectives_wait_on(MPI_Comm comm);
void settle_waiting(MPI_Comm comm);
}  // namespace detail

/// Whether calls on `comm` wait. Costs one atomic load if no call waits on any communicator.
inline bool collectives_wait(MPI_Comm comm) {
  return detail::collectives_waiting.load(std::memory_order_acquire) != 0 && detail::collectives_wait_on(comm);
}
/// Waits until no call on `comm` waits. To be called before a blocking collective on `comm`, and before other functions
/// that are collective over it. Returns at once inside the engine, where nothing can advance.
inline void settle_collectives(MPI_Comm comm) {
  if (collectives_wait(comm)) detail::settle_waiting(comm);
}

/// Queues a nonblocking call. Publishes `offered`, unless it is null. May throw std::bad_alloc.
int start_waiting(const Call& call, MPI_Comm comm, std::unique_ptr<BoardCall> offered, StartInMpi start);

/// Starts a nonblocking call: queues it if it must wait, else calls `start(call)`.
template <class Start>
int start_in_order(const Call& call, MPI_Comm comm, std::unique_ptr<BoardCall> offered, const Start& start) {
  if (!offered && !collectives_wait(comm)) return start(call);
  return start_waiting(call, comm, std::move(offered), start);
}

/// Starts a persistent collective that this process publishes. If GPUs do not do it, `start(call)` gives it to MPI
/// later: call.late->inner is the persistent request, which `keep` keeps alive. May throw std::bad_alloc.
int start_offered(const Call& call, const ErrorOwner& owner, std::unique_ptr<BoardCall> offered, StartInMpi start,
                  std::shared_ptr<void> keep);
/// Waits until GPUs or MPI have all starts of persistent collectives on `comm`. To be called before the communicator is
/// freed.
void settle_starts(MPI_Comm comm);

/// For MPI_Type_free and MPI_Op_free, which a program may call as soon as a nonblocking call has returned. If earlier
/// calls still wait, these functions free the handle after them and return true; else they do nothing.
bool free_type_later(MPI_Datatype* type);
bool free_op_later(MPI_Op* op);

}  // namespace gpudt::interpose
