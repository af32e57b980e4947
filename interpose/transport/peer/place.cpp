// What a message needs to be offered: a protocol, a descriptor, and an RTS that no probe confuses with another message.
#include <optional>

#include "interpose/support/early_start.hpp"
#include "interpose/support/report.hpp"
#include "interpose/transport/peer/descriptors.hpp"
#include "interpose/transport/peer/peer.hpp"
#include "interpose/transport/peer/short_rts.hpp"
#include "interpose/transport/peer/state.hpp"

namespace gpudt::interpose {

using namespace peer;

namespace {

/// The longest message that is not packed to be fetched where the last one was wanted in fragments: if this one is
/// fetched after all, by fragments it takes little more time.
constexpr std::int64_t longest_not_packed = 256 << 10;
/// Number of free descriptors below which short messages are not offered: that of a truncated one may never be free
/// again (docs/limits.md), and longer messages must still find some.
constexpr std::size_t least_free_for_short = descriptors_at_a_time / 2;

/// Publishes to the receiver, before the RTS, that it may get one. Written once: all senders read that line.
void announce_offers(const Segment& receiver) {
  if (receiver->offered.load(std::memory_order_relaxed) == 0) receiver->offered.store(1);
}

/// The descriptor that describes the operand already; negative if there is none, or if only others can have the compact
/// RTS that may be sent.
int preferred_descriptor(const DeviceBuffer& operand, int rank, bool compact) REQUIRES(world->mutex) {
  const int index = descriptor_for(operand, rank);
  return index >= 0 && compact && !may_be_compact(rank, index) ? -1 : index;
}

}  // namespace

std::optional<RendezvousSender::Place> RendezvousSender::place_for(const DeviceBuffer& operand, const Destination& to,
                                                                   Message& message, Route& route) {
  const auto not_offered = [&](const char* why) {
    route.not_offered = why;
    return std::nullopt;
  };
  if (!may_offer(to.comm)) return not_offered("there are no peer transfers");
  constexpr const char* too_early = "its stream has not come to it yet";
  const bool early = EarlyStart::is_active();
  // Refused now, it would be counted twice.
  if (early && has_short_length(message.bytes) && is_plain(message.bytes)) return not_offered(too_early);
  // A probe finds the RTS of a short message like an ordinary message of that length.
  if (has_short_length(message.bytes)) peer_sends_plain(message.bytes, to.rank, to.tag, to.comm);
  const int rank = world_rank_of(to.comm, to.rank);
  const Envelope envelope = envelope_of(to.tag, to.comm);
  const Traffic traffic{to.tag, message.bytes};
  UniqueLock lock(world->mutex);
  look_at(rank, route);
  route.backing_off = route.receiver == Receiver::sharing && !message.on_host &&
                      (early ? would_abstain(rank, traffic) : abstains(rank, traffic));
  const Protocol protocol = choose_known(operand, rank, envelope, message, route);
  if (!row_of(protocol).recognise) return std::nullopt;
  const bool remote = protocol == Protocol::pipelined;
  // Messages to a process on another node take turns, which it would keep until its stream comes to it.
  if (early && remote) return not_offered(too_early);
  if (message.bytes < least_offered) {
    reclaim_descriptors();
    if (free_descriptors() < least_free_for_short) return not_offered("as many are under way as short ones may be");
  }
  if (remote) {
    lock.unlock();  // MPI may be called
    if (!is_met(rank)) return not_offered("it is not known yet whether the receiver looks for RTS messages");
    lock.lock();
  }
  if (message.on_host && !has_room_for_host_data()) return not_offered("no shared memory is left for fragments");
  const bool compacts = !remote && !has_short_length(message.bytes) && sends_compact(rank);
  const int preferred = message.on_host ? -1 : preferred_descriptor(operand, rank, compacts);
  int index = take_descriptor(rank, envelope, remote, must_be_compact(message.bytes), preferred);
  if (index < 0 && remote) {
    lock.unlock();
    receive_control_messages();  // which may free descriptors
    lock.lock();
    index = take_descriptor(rank, envelope, remote, must_be_compact(message.bytes), preferred);
  }
  if (index < 0) {
    if (!message.on_host) report_fallback(Fallback::no_room);
    return not_offered(free_descriptors() == 0 ? "as many are under way as can be"
                                               : "others are under way that are as long as RTS messages would be");
  }
  if (!message.on_host) note_index(index, operand, rank);
  (*world->own)->descriptor(index).compact = compacts && may_be_compact(rank, index) ? 1 : 0;
  if (!remote) announce_offers(*reach(rank));
  PeerProcess& neighbour = world->neighbours[static_cast<std::size_t>(rank)];
  const bool by_peer = protocol == Protocol::peer && rank != world->rank,
             refused = by_peer && has_refused(rank, traffic);
  const bool fetched = by_peer && !neighbour.shares_gpu && !refused;
  const bool wanted_in_fragments = by_peer && !world->forced && message.bytes <= longest_not_packed && refused &&
                                   !std::exchange(neighbour.packs_next, false) && world->chunks->usable();
  return Place{rank, index, remote, fetched, wanted_in_fragments};
}

}  // namespace gpudt::interpose
