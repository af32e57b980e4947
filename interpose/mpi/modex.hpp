// A number that each process with gpudt adds to what the MPI library exchanges in MPI_Init ("modex": the addresses of
// all processes). Afterwards each process knows which others have gpudt, also on other nodes, and waits for no process
// that lacks it.
#pragma once

namespace gpudt::interpose {

/// To be called before MPI_Init: lets MPI_Init send `what`, a positive number, to all processes, if that is possible.
/// To be called again after MPI_Init with 0, which withdraws a number that was not sent.
void modex_offer(int what);
/// After MPI_Init: the number that the process of this rank in MPI_COMM_WORLD has sent; 0: none, or unknown. All
/// processes that have sent one get the same answer at all times. Thread-safe. Throws std::bad_alloc.
int modex_offered(int world_rank);

}  // namespace gpudt::interpose
