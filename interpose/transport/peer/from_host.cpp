#include "interpose/transport/peer/from_host.hpp"

#include "interpose/mpi/workarounds.hpp"
#include "interpose/transport/peer/state.hpp"

namespace gpudt::interpose {

using namespace peer;

bool receiver_wants_offer(int dest, int tag, MPI_Comm comm) {
  const int rank = world_rank_of(comm, dest);
  if (!is_process(rank) || rank == world->rank) return false;
  // A stale mark, or that of another envelope, only makes an offer that a receive can take anywhere.
  const FromHostSlot slot(envelope_of(tag, comm));
  const LockGuard lock(world->mutex);
  Segment* const receiver = reach(rank);
  return receiver != nullptr && (*receiver)->from_host[slot.index].load(std::memory_order_relaxed) == slot.mark;
}

void publish_wish_for_offers(int source, int tag, MPI_Comm comm) {
  const int rank = world_rank_of(comm, source);
  if (tag < 0 || !is_process(rank) || rank == world->rank) return;  // negative tags are those of hidden messages
  const FromHostSlot slot({context_of(comm), source, tag});
  const LockGuard lock(world->mutex);
  if (reach(rank) == nullptr || world->from_host[slot.index].passes()) return;
  (*world->own)->from_host[slot.index].store(slot.mark, std::memory_order_relaxed);
}

void peer::note_host_data(const Envelope& envelope, bool to_gpu) {
  const FromHostSlot slot(envelope);
  const LockGuard lock(world->mutex);
  if (to_gpu) return world->from_host[slot.index].worked();
  world->from_host[slot.index].failed();
  std::uint32_t mark = slot.mark;
  (*world->own)->from_host[slot.index].compare_exchange_strong(mark, 0);  // leaves another envelope's
}

}  // namespace gpudt::interpose
