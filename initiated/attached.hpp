// Where the memory of the program's MPI windows is for this process's GPU, as libgpudt-pmpi tells.
#pragma once

#include <mpi.h>

#include <string>
#include <vector>

#include "initiated/kernel_world.hpp"
#include "initiated/wire.hpp"

namespace gpudt::initiated {

/// The flavor of a window (MPI_WIN_CREATE_FLAVOR), if its memory can be that of GPUs. `who` begins an error's text.
/// Throws Error for MPI_Win_allocate and _allocate_shared.
int flavor_of(MPI_Win window, const std::string& who);

/// Of a window of MPI_Win_create: each process's memory, whose address is null where this GPU does not reach it. Not
/// collective. Throws Error for a window that has no device memory at all.
WiredMemory addresses_of(MPI_Win window, int processes, const std::string& who);

/// Of a dynamic window: what each process has attached of GPUs' memory up to now, as far as `device` reaches it, in the
/// order and form of WindowRegions. Collective. Throws Error if there is memory that `device` does not reach.
std::vector<std::vector<WindowRegion>> regions_of(MPI_Win window, int processes, int device, const std::string& who);

/// What to do about memory that is not reached: the end of an error's text.
std::string reach_remedy();

}  // namespace gpudt::initiated
