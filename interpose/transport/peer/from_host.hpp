// Long messages from host memory into a GPU's. By MPI all data come to host memory before the GPU can copy the first
// byte. So a process that has received such a message publishes its envelope, and the next blocking send with this
// envelope offers its data, which come in fragments through the sender's segment while the GPU copies earlier ones. If
// a receive into host memory gets the offer, the envelope is withdrawn for a while.
//
// Nonblocking sends are not offered: MPI may be able to move their data while the sender does not call it.
#pragma once

#include <mpi.h>

#include <cstdint>

#include "interpose/shared/shared_segment.hpp"
#include "interpose/transport/peer/peer.hpp"

namespace gpudt::interpose {

/// Shorter messages from host memory are left to MPI, in bytes.
inline constexpr std::int64_t least_from_host = 32 << 10;

/// Whether `dest` has published the envelope of such a message of this process. `bytes`: those on the host; negative:
/// not known. Arguments that MPI will reject give false.
bool peer_seeks_offer(int dest, int tag, MPI_Comm comm);
inline bool peer_wants_from_host(std::int64_t bytes, int dest, int tag, MPI_Comm comm) {
  return bytes >= least_from_host && peer_checks() && peer_seeks_offer(dest, tag, comm);
}

/// Publishes the envelope of an ordinary message of at least least_from_host bytes that was received into a GPU's
/// memory, where peer_checks().
void peer_seek_offers(int source, int tag, MPI_Comm comm);

namespace peer {

/// An offer from host memory has come to a receive into a GPU's memory, or not: then the envelope is withdrawn, and the
/// more often that happens, the later it is published again.
void note_host_data(const Envelope& envelope, bool to_gpu);

}  // namespace peer

}  // namespace gpudt::interpose
