// Addresses of the memory of the program's MPI windows, as this process's GPU loads and stores it, from libgpudt-pmpi.
#pragma once

#include <mpi.h>

#include <string>
#include <vector>

#include "initiated/kernel_world.hpp"
#include "initiated/wire.hpp"

namespace gpudt::initiated {

/// MPI_WIN_FLAVOR_CREATE or _DYNAMIC. `who` begins an error's text.
/// Throws Error for MPI_Win_allocate and _allocate_shared.
int flavor_of(MPI_Win window, const std::string& who);

/// Each process's memory in a window of MPI_Win_create; the address is null where this GPU does not reach it. Not
/// collective. Throws Error for a window that has no device memory at all.
WiredMemory addresses_of(MPI_Win window, int processes, const std::string& who);

/// Device memory that each process has attached to a dynamic window, as `device` addresses it, sorted as WindowRegions
/// needs it. Collective. What `device` does not reach is left out; if it is to reach `all`, this throws Error.
std::vector<std::vector<WindowRegion>> regions_of(MPI_Win window, int processes, int device, bool all,
                                                  const std::string& who);

/// What to do about memory that is not reached: the end of an error's text.
std::string reach_remedy();

}  // namespace gpudt::initiated
