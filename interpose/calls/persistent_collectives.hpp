// Persistent collectives: those that GPUs do if all processes agree at the start, and those in streams.
#pragma once

#include <mpi.h>

#include <memory>

#include "interpose/collectives/persistent_offer.hpp"

namespace gpudt::interpose {

/// Makes each start of `request`, a staged persistent collective, publish `offer`.
void persistent_offers(MPI_Request request, std::unique_ptr<PersistentOffer> offer);

/// Lets the starts of `request`, a persistent collective, be enqueued, if `comm` has a stream. May throw
/// std::bad_alloc.
void persistent_in_stream(MPI_Comm comm, MPI_Request request);

}  // namespace gpudt::interpose
