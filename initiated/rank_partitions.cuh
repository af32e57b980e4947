// What Rank (device.cuh) is made of: partitions that are sent and received.
#pragma once

#include "initiated/partitions.hpp"
#include "initiated/rank_collectives.cuh"

namespace gpudt::initiated::detail {

/// What partitions.hpp asks of memory.
struct PartitionAccess {
  WaitTimer& timer;

  __device__ __forceinline__ Ticket count_up(Ticket* counter) const { return detail::count_up(counter); }
  __device__ __forceinline__ void count_down(Ticket* counter) const { atomicSub(counter, 1u); }
  __device__ __forceinline__ std::uint64_t load(const std::uint64_t* word) const { return relaxed(word); }
  __device__ __forceinline__ void acquire() const { acquire_fence(); }
  __device__ __forceinline__ void poll() const { timer.poll(); }
};

class RankPartitions : public RankCollectives {
 protected:
  using RankCollectives::RankCollectives;

  /// By one thread: a word at `place`, or where that is nowhere() by a proxy, behind what the thread knows to have been
  /// written and put there.
  __device__ __forceinline__ void store_word(const Remote& to, char* place, std::uint64_t value) const {
    if (place != nowhere()) return store_release(reinterpret_cast<std::uint64_t*>(place), value, false);
    order_puts(world_);
    put_word(world_, to, value, gpu_of(to.rank));
  }

  /// By all threads of the scope.
  template <class Scope>
  __device__ __forceinline__ Status send_partition(const KernelRequest& request, int partition) {
    static_assert(!is_grid<Scope>, "the blocks of a grid mark partitions of their own");
    Scope::sync();
    std::uint64_t round = 0;
    Status status = Status::ok;
    if (notifies<Scope>()) {
      WaitTimer timer(world_, rank(), partition_call("pready, waiting for the receiver to start", request, partition));
      status = claim_partition(request, partition, PartitionAccess{timer}, round);
    }
    const std::int64_t begin = partition * request.begin_step;
    const Kept kept = find_move<Scope>(request.from_layout, request.to_layout, begin, request.bytes);
    status = agree<Scope>(status, notifies<Scope>());
    if (status != Status::ok) return status;
    const int target = request.partner * world_.ranks.per_gpu;
    if (request.partner >= 0 && request.bytes > 0) {
      const Remote to = {memory_of(request.to_memory), target, request.to_offset + partition * request.to_step,
                         request.to_layout};
      char* const place = request.to == nullptr ? nowhere() : request.to + partition * request.to_step;
      put_out<Scope>(to, place, {request.from + partition * request.from_step, request.from_layout}, begin,
                     begin + request.bytes, kept);
    }
    Scope::sync();
    if (notifies<Scope>()) {
      if (request.partner >= 0) store_flag(request, partition, target, round);
      count_up_unseen(request.completed);
    }
    return Status::ok;
  }

  /// By all threads of the scope: ok, not_yet unless it `waits`, or an error.
  template <class Scope>
  __device__ __forceinline__ Status find_partition(const KernelRequest& request, int partition, bool waits) {
    static_assert(!is_grid<Scope>, "blocks of a grid would get different answers");
    if constexpr (is_block_wide<Scope>) {
      Status status = Status::ok;
      if (threadIdx.x < 32) status = find_by<Warp>(request, partition, waits);
      return agree<Scope>(status, leads<Scope>());
    } else {
      Scope::sync();
      const Status status = find_by<Scope>(request, partition, waits);
      Scope::sync();
      return status;
    }
  }

  static __device__ __forceinline__ Call partition_call(const char* name, const KernelRequest& request, int partition) {
    return {name, {"partition", "of", "process"}, {partition, request.partitions, request.partner}};
  }

 private:
  /// The status of the thread that `speaks`, for all of the scope; all others have ok.
  template <class Scope>
  __device__ __forceinline__ Status agree(Status status, bool speaks) {
    if constexpr (std::is_same_v<Scope, Warp>)
      return static_cast<Status>(__shfl_sync(whole_chunk, static_cast<std::int32_t>(status), 0));
    if constexpr (is_block_wide<Scope>) {
      if (__syncthreads_or(status != Status::ok ? 1 : 0) == 0) return Status::ok;
      if (speaks) state_.posting.word = static_cast<std::uint64_t>(status);
      __syncthreads();
      status = static_cast<Status>(state_.posting.word);
      __syncthreads();
    }
    return status;
  }

  /// By a thread or a warp, whose threads get the same answer.
  template <class Scope>
  __device__ __forceinline__ Status find_by(const KernelRequest& request, int partition, bool waits) const {
    const Status status = check_partition(request, false, partition);
    if (status != Status::ok || request.partner < 0) return status;
    WaitTimer timer(world_, rank(), partition_call("wait for a partition", request, partition));
    const PartitionAccess access{timer};
    const PartitionRange parts = parts_of(request, partition);
    // Of a request that is not active, whose flags have the number of its last round, or 0, all has arrived, as in MPI.
    const std::uint64_t round = access.load(request.round);
    for (;; timer.poll()) {
      const bool mine = have_arrived(request, parts, round, access, static_cast<int>(Scope::index()),
                                     static_cast<int>(Scope::count()));
      if (Scope::count() == 1 ? mine : __all_sync(whole_chunk, static_cast<int>(mine)) != 0) break;
      if (!waits) return Status::not_yet;
    }
    acquire_fence();
    return Status::ok;
  }

  __device__ __forceinline__ void store_flag(const KernelRequest& request, int partition, int target,
                                             std::uint64_t round) const {
    const auto offset = static_cast<std::int64_t>(sizeof round) * partition;
    char* const place = request.arrived == nullptr ? nowhere() : reinterpret_cast<char*>(request.arrived + partition);
    store_word({memory_of(request.arrived_memory), target, request.arrived_offset + offset, nullptr}, place, round);
  }
  /// Memory of the target that a proxy knows by a number.
  static __device__ __forceinline__ Window memory_of(std::int32_t number) {
    Window window;
    window.id = number;
    return window;
  }
};

}  // namespace gpudt::initiated::detail
