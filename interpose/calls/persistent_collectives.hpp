// Persistent collectives that GPUs do if all processes agree at the start.
#pragma once

#include <mpi.h>

#include <memory>

#include "interpose/collectives/persistent_offer.hpp"

namespace gpudt::interpose {

/// Makes each start of `request`, a staged persistent collective, publish `offer`.
void persistent_offers(MPI_Request request, std::unique_ptr<PersistentOffer> offer);

}  // namespace gpudt::interpose
