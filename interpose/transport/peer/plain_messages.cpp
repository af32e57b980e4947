// Plain messages: those that are as long as an RTS, and go as the program sends them. A probe could not tell one from
// an RTS with its envelope that comes after it. So no RTS has the length of a plain message on its way to the same
// process. The sender counts what it sends of each length; the receiver counts what it receives, in the sender's
// segment or, where the two share no memory, by control message. As long as the counts differ the length is not used,
// so that a message whose receive nobody counts (past the library, on a communicator freed meanwhile, truncated) costs
// one length of 128.
//
// A plain message that comes after an RTS does no harm: MPI keeps their order, and the receive of the RTS marks the
// offer as matched.
//
// Messages as long as a compact RTS are not counted: programs send them more often, and receivers that do not check
// their receives could not count them. Such a length is not used again.
#include <optional>
#include <utility>

#include "interpose/engine/engine.hpp"
#include "interpose/transport/peer/descriptors.hpp"
#include "interpose/transport/peer/state.hpp"

namespace gpudt::interpose {

using namespace peer;

namespace {

/// The entry in which process `receiver` counts what it receives from the owner of `image`. If it has none, a free one
/// if `take`; null otherwise, or if none is free.
PlainReceived* find_entry(Image& image, int receiver, bool take) {
  const std::int32_t name = receiver + 1;
  for (int i = 0; i < plain_receivers; ++i) {
    PlainReceived& entry = image.plain_received[(receiver + i) % plain_receivers];
    std::int32_t owner = entry.receiver.load(std::memory_order_acquire);
    if (owner == 0 && (!take || entry.receiver.compare_exchange_strong(owner, name))) return take ? &entry : nullptr;
    if (owner == name) return &entry;
  }
  return nullptr;
}

void note_sent(std::int64_t bytes, int dest, int tag, MPI_Comm comm, bool persistent) {
  const int rank = world_rank_of(comm, dest);
  if (!is_process(rank)) return;
  const bool compact = rts_index(bytes) < 0;
  const int index = compact ? compact_rts.find(bytes) : rts_index(bytes);
  {
    const auto at = static_cast<std::size_t>(index);
    const LockGuard lock(world->mutex);
    auto& plain = world->neighbours[static_cast<std::size_t>(rank)].plain;
    if (!plain) plain = std::make_unique<PlainSent>();
    if (compact)
      plain->compact.set(at);
    else if (persistent)
      plain->persistent.set(at);
    else
      ++plain->messages[at];
  }
  // With one thread, sends to one process and communicator are in order without this.
  if (engine_within() || (compact && !peer_has_threads())) return;
  const Envelope envelope = envelope_of(tag, comm);
  wait_until([&] {
    const LockGuard lock(world->mutex);
    return !is_being_issued(rank, index, compact ? compact_rts.number : rts_lengths, envelope);
  });
}

/// The length of a plain message; -1 if it is none.
std::int64_t plain_bytes(int count, MPI_Datatype type) {
  // With more elements than an RTS has bytes the type need not be examined.
  if (!peer_checks() || count <= 0 || count > longest_rts || type == MPI_DATATYPE_NULL) return -1;
  const std::int64_t bytes = bytes_in(count, type);
  return is_plain(bytes) ? bytes : -1;
}

}  // namespace

namespace peer {

bool some_may_be_compact(int rank) {
  const auto& sent = world->neighbours[static_cast<std::size_t>(rank)].plain;
  return !sent || !sent->compact.all();
}

bool may_be_compact(int rank, int index) {
  const auto& sent = world->neighbours[static_cast<std::size_t>(rank)].plain;
  return !sent || !sent->compact.test(static_cast<std::size_t>(index % compact_rts.number));
}

bool is_being_issued(int rank, int first, int step, const Envelope& envelope) {
  Segment& own = *world->own;
  const int made = own->descriptors_made.load(std::memory_order_relaxed);
  for (int index = first; index < made; index += step) {
    const Descriptor& descriptor = own->descriptor(index);
    if (!world->idle.has(index) && descriptor.destination == rank && descriptor.envelope == envelope &&
        descriptor.issue.load() != Issue::issued && descriptor.state.load() != State::failed)
      return true;
  }
  return false;
}

bool plain_of_length_under_way(const PlainSent& sent, int rank, int index) {
  const auto at = static_cast<std::size_t>(index % rts_lengths);
  if (sent.persistent.test(at)) return true;
  const PlainReceived* const entry = find_entry(**world->own, rank, /*take=*/false);
  std::uint32_t received = entry == nullptr ? 0 : entry->messages[at].load(std::memory_order_acquire);
  if (world->remote) received += world->remote->plain_messages(rank, static_cast<int>(at));
  return sent.messages[at] != received;
}

}  // namespace peer

void peer_note_plain(std::int64_t bytes, int dest, int tag, MPI_Comm comm) {
  note_sent(bytes, dest, tag, comm, /*persistent=*/false);
}

void peer_sends_plain(int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm) {
  if (const auto bytes = plain_bytes(count, type); bytes >= 0) note_sent(bytes, dest, tag, comm, /*persistent=*/false);
}

void peer_sends_plain_again(int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm) {
  if (const auto bytes = plain_bytes(count, type); bytes >= 0) note_sent(bytes, dest, tag, comm, /*persistent=*/true);
}

void peer_note_received(std::int64_t bytes, int source, MPI_Comm comm) {
  const int index = rts_index(bytes);
  const int rank = world_rank_of(comm, source);
  if (!is_process(rank)) return;
  if (Segment* const segment = reach_sender(rank)) {
    PlainReceived* const entry = find_entry(**segment, world->rank, /*take=*/true);
    if (entry != nullptr) entry->messages[index].fetch_add(1, std::memory_order_release);
  } else if (world->remote) {
    world->remote->received_plain(rank, index);
  }
}

}  // namespace gpudt::interpose
