// Between which processes an exchange moves blocks: all of a communicator, or neighbours in a topology.
#pragma once

#include <mpi.h>

#include "interpose/collectives/block_messages.hpp"
#include "interpose/collectives/peer_exchange.hpp"
#include "interpose/requests/call_buffers.hpp"
#include "interpose/transport/device_buffer.hpp"

namespace gpudt::interpose {

/// The role of a receive buffer. `alias`: the data to be sent lie in it.
inline Role out_or_inout(const void* other, bool alias = false) {
  return alias || other == MPI_IN_PLACE ? Role::inout : Role::out;
}

/// The blocks of a process in an exchange: for all peers, or for its neighbours in a topology.
struct Partners : Blocks {
  Among among;
  Absent absent;
  bool one_block = false;  ///< the same block is sent to all

  /// The role of the receive buffer. Blocks of absent neighbours must keep their values, so that they are packed, too.
  Role receiving(const void* sendbuf, bool alias) const {
    return absent.none() ? out_or_inout(sendbuf, alias) : Role::inout;
  }
};
using FindPartners = Partners (*)(MPI_Comm);

inline Partners peers(MPI_Comm comm) {
  const int count = comm == MPI_COMM_NULL ? 0 : peers_of(comm);
  return {{count, count}, Among::all, {}};
}

inline Partners all_neighbours(MPI_Comm comm) {
  return {neighbours(comm), Among::neighbours,
          active.load(std::memory_order_acquire) ? absent_neighbours(comm) : Absent()};
}

/// The partners for operations that send one block to all.
template <FindPartners find>
Partners one_block_to(MPI_Comm comm) {
  Partners partners = find(comm);
  partners.out_of = 1;
  partners.one_block = true;
  return partners;
}

/// What all processes know alike about the blocks: neighbours know only each other's.
inline Known known_among(const Partners& partners, const Known& known) {
  return partners.among == Among::all ? known : varying;
}

}  // namespace gpudt::interpose
