// Sends, blocking and nonblocking (calls/sends.cpp); what calls that send and receive need of them.
#pragma once

#include <mpi.h>

#include "interpose/requests/operation.hpp"
#include "interpose/transport/device_buffer.hpp"
#include "interpose/transport/peer/peer.hpp"

namespace gpudt::interpose {

/// True if MPI will accept (peer, tag) for a send on `comm`. Otherwise MPI itself is to report the error, at once, not
/// when the deferred send is issued.
bool valid_target(MPI_Comm comm, int peer, int tag);
/// The same for a receive.
bool valid_source(MPI_Comm comm, int peer, int tag);

/// True of nearly all that programs send from host memory: MPI can have it as it is, and nothing is to go before it.
inline bool goes_as_it_is(const BufferPeek& peek) {
  return peek.bytes_on_host >= 0 && peer::rts_index(peek.bytes_on_host) < 0 && !engine_defers();
}

/// Whether MPI is to have host memory: the message may be an RTS, or MPI would read the data on the host
/// (mpi_takes_device_memory()).
template <class Pmpi>
bool needs_host_memory(Pmpi pmpi, int dest, MPI_Comm comm) {
  return is_buffered(pmpi) || peer_exchanges_rts(dest, comm);
}

/// MPI_Isend and its like, by `pmpi`. `owner`: who hears of errors; `located`: where `buf` lies, if that is known.
int send_nonblocking(NonblockingSend pmpi, const char* call, const void* buf, int count, MPI_Datatype type, int dest,
                     int tag, MPI_Comm comm, MPI_Request* request, const ErrorOwner& owner, Located located = {});

}  // namespace gpudt::interpose
