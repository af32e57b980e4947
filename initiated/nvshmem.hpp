// A World over NVSHMEM, for GPUs of several nodes: Options::wire = nvshmem_wire. Link with libgpudt-initiated-nvshmem,
// NVSHMEM's libraries, and wire_nvshmem.o in place of wire_node.o.
#pragma once

#include "initiated/wire.hpp"

namespace gpudt::initiated {

/// Starts NVSHMEM by a unique id that MPI broadcasts; sets NVSHMEM_DISABLE_NVLS=1 and NCCL_NVLS_ENABLE=0 unless they
/// are set. One at a time in a process. May end after MPI_Finalize.
std::unique_ptr<Wire> nvshmem_wire(MPI_Comm comm, int process, int processes);

}  // namespace gpudt::initiated
