// Persistent operations on device buffers (MPI-4.1 section 3.9).
//
// The user's handle is MPI's persistent request on the staging memory, but the user's MPI_Start never starts it
// directly: each start creates an operation (requests/operation.hpp) that starts the real one when its data is packed,
// and unpacks when it has completed. The completion calls exchange the handle for the started operation's generalized
// request and back.
#pragma once

#include <mpi.h>

#include <memory>
#include <vector>

#include "interpose/requests/operation.hpp"

namespace gpudt::interpose {

/// Makes a persistent request of ours from `real`, a persistent request of MPI's on the payload's memory, which is also
/// the handle for the user. Each start starts `real`; Operation::Kind::fill: a collective, whose inputs are packed
/// before.
void persistent_adopt(Operation::Kind kind, std::shared_ptr<Payload> payload, MPI_Comm comm, MPI_Request real);

/// What `request`, a persistent one of ours, moves; null if it is none.
std::shared_ptr<Payload> persistent_payload(MPI_Request request);
/// It has been started, and its completion has not been told yet.
bool persistent_active(MPI_Request request);

/// Persistent requests of ours that exist.
int persistent_count();

/// Exchanges our persistent requests for what MPI is to see: the generalized request of a started one,
/// MPI_REQUEST_NULL for an inactive one. `mine[i]` tells whether requests[i] was exchanged.
void persistent_exchange(std::vector<MPI_Request>& requests, std::vector<bool>& mine);

/// The started operation of `request` has completed and its generalized request is gone: inactive again.
void persistent_completed(MPI_Request request);

/// The handle `comm` is about to become invalid.
void persistent_forget_comm(MPI_Comm comm);

/// At MPI_Finalize: lets go of the persistent requests that the program has not freed.
void persistent_stop();

}  // namespace gpudt::interpose
