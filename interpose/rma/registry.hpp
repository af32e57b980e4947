// The windows that gpudt serves itself, by their handles.
#pragma once

#include <mpi.h>

#include <memory>

#include "interpose/rma/served.hpp"

namespace gpudt::interpose {

/// Null for a window that MPI serves. Costs one atomic load if there are no others.
std::shared_ptr<ServedWindow> served_window(MPI_Win win);

/// From now on `window` is found under its handle and driven by the engine.
void registry_add(MPI_Win win, std::shared_ptr<ServedWindow> window);
/// Returns when the engine no longer drives it.
void registry_remove(MPI_Win win);
/// At MPI_Finalize: lets go of windows that the program has not freed.
void registry_clear();

}  // namespace gpudt::interpose
