// MPI-4.1 section 12.4.3: the memory allocation kinds that MPI calls take, as info objects name them.
#pragma once

namespace gpudt::interpose {

/// To be called when device buffers are handled from now on, with a GPU: MPI_INFO_ENV and the info of communicators,
/// windows, files and sessions name CUDA's kinds. `world`: between MPI_Init and MPI_Finalize.
void memory_kinds_start(bool world);
/// To be called while MPI still works: only what MPI itself says is left.
void memory_kinds_stop();

}  // namespace gpudt::interpose
