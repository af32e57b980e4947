// What collectives that go as messages (collectives/peer_exchange.hpp) send and receive.
#pragma once

#include <mpi.h>

namespace gpudt::interpose {

/// How the hidden messages between two processes are sent (mpi/workarounds.hpp).
struct HiddenWay {
  MPI_Comm comm;
  int peer;  ///< the other process's rank there
  int tag;
};

/// As MPI_Isend and MPI_Irecv, but unseen by the program's own receives and probes. The error handler of `comm`, the
/// program's communicator, hears of errors. `buf` is device memory, `call` the collective's name.
int send_for_collective(const char* call, const void* buf, int count, MPI_Datatype type, const HiddenWay& way,
                        MPI_Comm comm, MPI_Request* request);
int receive_for_collective(const char* call, void* buf, int count, MPI_Datatype type, const HiddenWay& way,
                           MPI_Comm comm, MPI_Request* request);

}  // namespace gpudt::interpose
