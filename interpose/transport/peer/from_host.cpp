#include "interpose/transport/peer/from_host.hpp"

#include "interpose/mpi/workarounds.hpp"
#include "interpose/transport/peer/state.hpp"

namespace gpudt::interpose {

using namespace peer;

bool peer_seeks_offer(int dest, int tag, MPI_Comm comm) {
  const int rank = world_rank_of(comm, dest);
  if (!is_process(rank) || rank == world->rank) return false;
  const FromHostSlot slot(envelope_of(tag, comm));
  const LockGuard lock(world->mutex);
  Segment* const receiver = reach(rank);
  return receiver != nullptr && (*receiver)->from_host[slot.index].load(std::memory_order_relaxed) == slot.mark;
}

void peer_seek_offers(std::int64_t bytes, int source, int tag, MPI_Comm comm) {
  if (bytes < least_from_host || !peer_checks() || comm == MPI_COMM_NULL) return;
  const FromHostSlot slot({context_of(comm), source, tag});
  (*world->own)->from_host[slot.index].store(slot.mark, std::memory_order_relaxed);
}

void peer::seek_no_offers(const Envelope& envelope) {
  const FromHostSlot slot(envelope);
  std::uint32_t mark = slot.mark;
  (*world->own)->from_host[slot.index].compare_exchange_strong(mark, 0);
}

}  // namespace gpudt::interpose
