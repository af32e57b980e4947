// What the processes of a job tell each other while MPI is being initialized: with the addresses that the MPI library
// has them exchange there ("modex"), each process with gpudt sends a number of its own. So it is known afterwards, also
// of processes on other nodes, which of them have gpudt, and nobody waits for those that lack it.
#pragma once

namespace gpudt::interpose {

/// To be called before MPI_Init: this process tells all others `what`, which is positive. If it cannot, nobody sees
/// anything of it. To be called again after it, with 0: it is too late to tell anything.
void modex_offer(int what);
/// After MPI_Init: what the process of this rank in MPI_COMM_WORLD has told; 0: nothing, or it is not known. All
/// processes that have told something get the same answer, whenever they ask. Thread-safe. Throws std::bad_alloc.
int modex_offered(int world_rank);

}  // namespace gpudt::interpose
