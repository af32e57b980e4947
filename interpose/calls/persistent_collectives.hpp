// Persistent collectives whose starts are offered to GPUs.
#pragma once

#include <mpi.h>

#include <memory>

#include "interpose/collectives/persistent_offer.hpp"

namespace gpudt::interpose {

/// Of a persistent collective of ours that has not been started.
void persistent_offers(MPI_Request request, std::unique_ptr<PersistentOffer> offer);

}  // namespace gpudt::interpose
