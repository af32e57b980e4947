// What collectives that go as messages (collectives/peer_exchange.hpp) send and receive.
#pragma once

#include <mpi.h>

namespace gpudt::interpose {

/// As MPI_Isend and MPI_Irecv on the program's communicator, whose error handler hears of errors, but unseen by the
/// program's own receives and probes (HiddenTag). `buf` is device memory, `call` the collective's name.
int send_for_collective(const char* call, const void* buf, int count, MPI_Datatype type, int dest, MPI_Comm comm,
                        MPI_Request* request);
int receive_for_collective(const char* call, void* buf, int count, MPI_Datatype type, int source, MPI_Comm comm,
                           MPI_Request* request);

}  // namespace gpudt::interpose
