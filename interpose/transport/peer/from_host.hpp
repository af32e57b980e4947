// A long message from host memory into GPU memory of the same node is pipelined: MPI alone would receive all of it in
// host memory before the GPU copies the first byte. A process that has received such a message publishes its envelope
// in its segment; later blocking sends with this envelope are offered, and their data are copied in fragments while the
// GPU copies earlier ones. If a receive into host memory gets the offer, the envelope is withdrawn for a while.
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

/// Whether `dest` has published the envelope (communicator, source, tag) of this message. False for arguments that MPI
/// will reject.
bool receiver_wants_offer(int dest, int tag, MPI_Comm comm);
/// Whether a send of `bytes` from host memory should be offered. Negative: their number is not known.
inline bool should_offer_from_host(std::int64_t bytes, int dest, int tag, MPI_Comm comm) {
  return bytes >= least_from_host && peer_checks() && receiver_wants_offer(dest, tag, comm);
}

/// Publishes the envelope of an ordinary message of at least least_from_host bytes that was received into a GPU's
/// memory. Requires peer_checks().
void publish_wish_for_offers(int source, int tag, MPI_Comm comm);

namespace peer {

/// Notes where an offer from host memory went. To a GPU: resets the back-off. To host memory: withdraws the envelope,
/// and skips the next 1, 2, 4 ... 64 publications of its slot.
void note_host_data(const Envelope& envelope, bool to_gpu);

}  // namespace peer

}  // namespace gpudt::interpose
