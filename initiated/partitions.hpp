// Partitioned communication (MPI-4.1, chapter 4) that kernels start: what a request is to a kernel, which partitions of
// both sides belong together, and when one may be written and has arrived; the same for kernels and for tests on host
// threads.
//
// A partition is put into the receiver's buffer, and behind it the number of the round is stored to its flag in the
// receiver's memory. Rounds count from 1; a request's start() begins the next one. Nobody clears flags: the receiver
// waits for the number of its round. A sender writes no partition of a round before the receiver has started it: the
// receiver's start() stores the number of the round in the sender's memory, `granted`.
#pragma once

#include <cstdint>

#include "initiated/kernel_world.hpp"
#include "initiated/layout.hpp"

namespace gpudt::initiated {

/// A partitioned request in kernels: plain data that Request (partitioned.hpp) gives, valid as long as the Request. All
/// addresses are for this GPU.
struct KernelRequest {
  std::uint64_t* round = nullptr;  ///< the last that has been started here; null: no request that was matched
  std::int32_t sends = 0;          ///< 1: of psend_init()
  std::int32_t partitions = 0;
  std::int32_t partner = -1;         ///< a GPU; -1: MPI_PROC_NULL
  std::int32_t flags = 0;            ///< the sender's partitions
  std::int64_t bytes = 0;            ///< packed, of a partition
  std::uint64_t* arrived = nullptr;  ///< [flags], in the receiver's memory; null: not reached by loads and stores

  // Of a receive:
  std::int64_t sent_bytes = 0;  ///< packed, of a partition of the sender

  // Of a send, in this GPU's memory:
  std::uint64_t* granted = nullptr;  ///< the last round that the receiver has started
  Ticket* claimed = nullptr;         ///< [partitions]: how often each has been marked ready
  Ticket* completed = nullptr;       ///< partitions that have been sent, in all rounds, modulo 2^32
  // Its data: partition p is the packed bytes [p * begin_step, p * begin_step + bytes) on both sides, of layouts that
  // count from `from` + p * from_step and `to` + p * to_step.
  char* from = nullptr;
  char* to = nullptr;  ///< null: not reached by loads and stores
  std::int64_t from_step = 0, to_step = 0, begin_step = 0;
  const KernelLayout* from_layout = nullptr;  ///< null: contiguous
  const KernelLayout* to_layout = nullptr;
  // Where the proxy finds these in the receiver's process: in memory number ...
  std::int64_t to_offset = 0, arrived_offset = 0;
  std::int32_t to_memory = 0, arrived_memory = 0;
};

/// Partitions [first, end).
struct PartitionRange {
  std::int32_t first, end;
};

/// The sender's partitions that a receive's partition consists of. An empty one waits for all.
GPUDT_HD PartitionRange parts_of(const KernelRequest& receive, int partition) {
  if (receive.sent_bytes == receive.bytes && receive.bytes > 0) return {partition, partition + 1};
  if (receive.sent_bytes == 0 || receive.bytes == 0) return {0, receive.flags};
  const std::int64_t begin = partition * receive.bytes, end = begin + receive.bytes;
  return {static_cast<std::int32_t>(begin / receive.sent_bytes),
          static_cast<std::int32_t>((end + receive.sent_bytes - 1) / receive.sent_bytes)};
}

GPUDT_HD Status check_partition(const KernelRequest& request, bool sends, int partition) {
  if (request.round == nullptr || (request.sends != 0) != sends) return Status::bad_request;
  return partition < 0 || partition >= request.partitions ? Status::bad_partition : Status::ok;
}

/// By one thread: marks a partition of a send as ready in its round, whose number goes to `round`, and waits until the
/// receiver has started that round. Access: count_up(counter) and count_down(counter) change one of this GPU by 1, the
/// first returning what there was; load(word) is relaxed; acquire() makes the loads before it acquire; poll() is called
/// between two, and does not return after the time-out. Errors: those of check_partition(), not_started.
template <class Access>
GPUDT_HD Status claim_partition(const KernelRequest& send, int partition, const Access& access, std::uint64_t& round) {
  const Status status = check_partition(send, true, partition);
  if (status != Status::ok) return status;
  const Ticket before = access.count_up(send.claimed + partition);
  round = access.load(send.round);
  std::uint64_t granted = access.load(send.granted);
  if (before != static_cast<Ticket>(round - 1)) {
    access.count_down(send.claimed + partition);
    return Status::not_started;
  }
  for (; granted < round; granted = access.load(send.granted)) access.poll();
  access.acquire();
  return Status::ok;
}

/// Whether the flags of a receive's partition that thread `index` of `count` looks at have been set in this round.
template <class Access>
GPUDT_HD bool have_arrived(const KernelRequest& receive, PartitionRange parts, std::uint64_t round,
                           const Access& access, int index, int count) {
  for (int part = parts.first + index; part < parts.end; part += count)
    if (access.load(receive.arrived + part) != round) return false;
  return true;
}

}  // namespace gpudt::initiated
