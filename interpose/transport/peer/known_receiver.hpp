// What the sender of a message knows of its receiver, and the protocol that it chooses.
#pragma once

#include "interpose/transport/device_buffer.hpp"
#include "interpose/transport/peer/state.hpp"
#include "interpose/transport/protocol.hpp"

namespace gpudt::interpose::peer {

/// Whether messages on `comm` may be offered at all.
bool may_offer(MPI_Comm comm);
/// Enters what is known of process `rank` into `route`.
void look_at(int rank, Route& route) REQUIRES(world->mutex);
/// Whether fragments of one more message from host memory would have all the chunks that they can use.
bool has_room_for_host_data();
/// Whether process `rank`, which shares no memory with this one, is known to look for RTS messages; if not, says hello,
/// so that later messages can be offered. May call MPI.
bool is_met(int rank);
/// The protocol of a message to process `rank`, of which `route` tells, if there is a descriptor for it.
Protocol choose_known(const DeviceBuffer& operand, int rank, const Envelope& envelope, Message& message, Route& route)
    REQUIRES(world->mutex);

}  // namespace gpudt::interpose::peer
