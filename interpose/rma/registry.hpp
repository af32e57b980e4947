// The windows that gpudt serves itself, by their handles.
#pragma once

#include <mpi.h>

#include <memory>

#include "interpose/rma/served.hpp"

namespace gpudt::interpose {

/// Null for a window that MPI serves. Costs one atomic load if there are no others.
std::shared_ptr<ServedWindow> served_window(MPI_Win win);

/// Adds a window: served_window() finds it, and the engine advances it.
void registry_add(MPI_Win win, std::shared_ptr<ServedWindow> window);
/// Removes a window, and returns when the engine no longer uses it.
void registry_remove(MPI_Win win);
/// To be called in MPI_Finalize: drops windows that the program has not freed.
void registry_clear();

}  // namespace gpudt::interpose
