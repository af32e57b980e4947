#include "interpose/transport/peer/known_receiver.hpp"

#include "interpose/transport/peer/peer.hpp"
#include "interpose/transport/peer/short_rts.hpp"

namespace gpudt::interpose {

namespace peer {

bool may_offer(MPI_Comm comm) {
  return comm != MPI_COMM_NULL && (peer_checks() || (peer_checks_hidden() && comm == hidden_comm()));
}

void look_at(int rank, Route& route) {
  const Segment* const segment = reach(rank);
  const bool sharing = rank == world->rank || checks(segment);
  const Receiver other = world->remote && is_process(rank) ? Receiver::remote : Receiver::unreachable;
  const auto on_own_gpu = [&]() REQUIRES(world->mutex) {
    return rank == world->rank || world->neighbours[static_cast<std::size_t>(rank)].shares_gpu;
  };
  route.process = rank;
  route.receiver = sharing ? Receiver::sharing : other;
  route.expects_short = sharing && expects_short(*segment) && (world->forced || !on_own_gpu());
}

bool has_room_for_host_data() {
  return world->chunks->usable() && world->from_host_under_way.load() < chunk_count / parts_in_flight;
}

bool is_met(int rank) {
  if (reach_remote(rank) != nullptr) return true;
  world->remote->greet(rank);
  return false;
}

namespace {

/// Where contexts are numbered: whether the receiver has numbered this communicator, too, as its probes need: mpi_f08
/// procedures and tools may make communicators past the library. (An RTS of a short message has the message's length.)
bool expects(const Segment& receiver, std::uint32_t context, std::int64_t bytes) {
  const ContextBit bit(context);
  return has_short_length(bytes) || context < first_made_context ||
         (receiver->contexts[bit.word].load(std::memory_order_relaxed) & bit.mask) != 0;
}

double packing_us(const DeviceBuffer& operand) {
  return device::expected_packing_us(operand.ordinal, operand.info->layout(), operand.count);
}

}  // namespace

Protocol choose_known(const DeviceBuffer& operand, int rank, const Envelope& envelope, Message& message, Route& route) {
  Protocol protocol = choose(message, route);
  if (protocol == Protocol::pipelined && operand.protocol == Protocol::device_staging) {
    message.packing_us = packing_us(operand);  // only for messages that need it, since it takes long
    protocol = choose(message, route);
  }
  const bool offers = row_of(protocol).recognise != nullptr && protocol != Protocol::pipelined;
  if (!offers || !hidden_messages_share_comm || expects(*reach(rank), envelope.context, message.bytes)) return protocol;
  route.not_offered = "the receiver does not know the communicator";
  return choose(message, route);
}

}  // namespace peer

using namespace peer;

Protocol expected_protocol(const DeviceBuffer& operand, const Destination& to, Message& message, Route& route) {
  if (!may_offer(to.comm)) {
    route.not_offered = "there are no peer transfers";
    return choose(message, route);
  }
  const int rank = world_rank_of(to.comm, to.rank);
  const Envelope envelope = envelope_of(to.tag, to.comm);
  const LockGuard lock(world->mutex);
  look_at(rank, route);
  route.backing_off = route.receiver == Receiver::sharing && would_abstain(rank, {to.tag, message.bytes});
  return choose_known(operand, rank, envelope, message, route);
}

}  // namespace gpudt::interpose
