// What Rank (device.cuh) is made of: how notifications are sent and received.
#pragma once

#include "initiated/rank_data.cuh"

namespace gpudt::initiated::detail {

class RankQueues : public RankData {
 protected:
  using RankData::RankData;

  // --- sending ---

  /// A notification that is to come behind data: what its sending thread, notifies<Scope>(), knows of it.
  struct Pending {
    Posting posting = {nullptr, 0};
    std::uint64_t number = 0;  ///< of the grid's puts and notifications
  };

  /// Whether the place of a notification is reserved before the data are moved, which hides the time that it takes.
  /// Behind long messages of one rank, later notifications of others of its GPU would wait for that place.
  template <class Scope>
  static __device__ __forceinline__ bool reserves_early(std::int64_t bytes) {
    return is_grid<Scope> || bytes <= 64 * Scope::count();
  }

  /// Before the data. By all threads of the scope.
  template <class Scope>
  __device__ __forceinline__ Pending begin_notification(int target, int window, int tag, bool early) {
    Pending pending;
    if (!notifies<Scope>()) return pending;
    if constexpr (is_grid<Scope>) {
      pending.number = begin_grid_put();
      if (blockIdx.x == 0) {  // for the block that will be the last to do its part
        const Posting posting = reserve(target, window, tag);
        store_relaxed(grid_posting(pending.number), reinterpret_cast<std::uint64_t>(posting.slot));
        store_relaxed(grid_posting(pending.number) + 1, posting.word);
      }
    } else if (early) {
      pending.posting = reserve(target, window, tag);
    }
    return pending;
  }
  /// Behind what the scope has written. By all threads of the scope, which need not wait for it if `early`.
  template <class Scope>
  __device__ __forceinline__ void end_notification(int target, int window, int tag, bool early, Pending& pending) {
    Scope::sync();
    if (notifies<Scope>()) {
      if constexpr (is_grid<Scope>) {
        post_by_last_block(gpu_of(target), pending.number);
      } else {
        if (!early) pending.posting = reserve(target, window, tag);
        post(gpu_of(target), pending.posting);
      }
    }
    if (!early) Scope::sync();  // the order of the rank's calls is that of their places
  }

  /// For a put with signal.
  template <class Scope>
  __device__ __forceinline__ void reserve_for_all(int target, int window, int tag) {
    if (leads<Scope>()) state_.posting = reserve(target, window, tag);
    Scope::sync();
  }

  // --- receiving ---

  template <class Scope>
  __device__ __forceinline__ Status collect(const Pattern& pattern, int count, Notification* last, bool waits) {
    Taken taken = Taken::none;
    Notification latest = {0, 0, 0};
    Scope::sync();
    if constexpr (std::is_same_v<Scope, Thread>) {
      take_by<OneThread<QueueAccess>>(pattern, count, latest, waits, taken);
    } else if constexpr (std::is_same_v<Scope, Warp>) {
      take_by<WarpGroup>(pattern, count, latest, waits, taken);
    } else {
      const bool works = !is_grid<Scope> || blockIdx.x == 0;
      if (threadIdx.x < 32) {
        if (works) take_by<WarpGroup>(pattern, count, latest, waits, taken);
        if constexpr (is_grid<Scope>) tell_grid();
        if (threadIdx.x == 0) {
          state_.taken = is_grid<Scope> ? Taken::all : taken;
          state_.last = latest;
        }
      }
      __syncthreads();
      taken = state_.taken;
      latest = state_.last;
    }
    Scope::sync();
    if (taken == Taken::all && last != nullptr) *last = latest;
    return taken == Taken::all ? Status::ok : taken == Taken::none ? Status::not_yet : Status::queue_full;
  }

 private:
  /// A place in the target's queue. By one thread; waits until there is one.
  __device__ __forceinline__ Posting reserve(int target, int window, int tag) {
    const int gpu = gpu_of(target), local = target - gpu * world_.ranks_per_gpu;
    const std::uint64_t index = world_.target_index(gpu, local);
    WaitTimer timer(world_, rank(),
                    {"notify, waiting until the target consumes", {"rank", "window", "tag"}, {target, window, tag}});
    const QueueAccess access{world_, local_, timer};
    std::uint64_t ticket = 0;
    take_ticket(access, world_.sent + index, world_.credit + index, world_.capacity_log, ticket);
    const std::uint64_t mask = (std::uint64_t{1} << world_.capacity_log) - 1;
    return {world_.ring(local, world_.gpu) + (ticket & mask),
            notification_word(ticket, world_.capacity_log, window, local_, tag)};
  }
  /// Behind all that the thread knows to have been written.
  __device__ __forceinline__ void post(int gpu, const Posting& posting) {
    std::uint64_t* const there = reach(world_, posting.slot, gpu);
    if (gpu == world_.gpu)
      fence_gpu();
    else if (there != nullptr)
      fence_all();
    else
      order_puts();
    send_word(world_, posting.slot, posting.word, gpu);
  }

  /// Of the grid's put `number`: the place and the word of its notification.
  __device__ __forceinline__ std::uint64_t* grid_posting(std::uint64_t number) const {
    return world_.grid + grid_postings + 2 * (number % grid_slots);
  }
  /// The number of the grid's put or notification that the block begins. A block may be grid_slots / 2 of them ahead.
  __device__ __forceinline__ std::uint64_t begin_grid_put() {
    const std::uint64_t number = state_.grid_puts++;
    constexpr std::uint64_t half = grid_slots / 2;
    if (number % half == 0 && number >= half) {
      WaitTimer timer(world_, rank(),
                      {"put by the grid, waiting for the other blocks",
                       {"number", "block", "blocks"},
                       {static_cast<long long>(number), blockIdx.x, gridDim.x}});
      while (relaxed(world_.grid + grid_ended) < number - half) timer.poll();
    }
    return number;
  }
  /// The last block to have done its part notifies.
  __device__ __forceinline__ void post_by_last_block(int gpu, std::uint64_t number) {
    fence_all();
    auto* const arrived = reinterpret_cast<unsigned*>(world_.grid + number % grid_slots);
    if (atomicInc(arrived, gridDim.x - 1) != gridDim.x - 1) return;
    fence_gpu();
    post(gpu, {reinterpret_cast<std::uint64_t*>(relaxed(grid_posting(number))), relaxed(grid_posting(number) + 1)});
    atomicAdd(reinterpret_cast<unsigned long long*>(world_.grid + grid_ended), 1ull);
  }

  __device__ __forceinline__ Inbox inbox() const {
    return {world_.ring(local_, 0), state_.heads,        state_.returned, world_.gpus,
            world_.capacity_log,    world_.ranks_per_gpu};
  }
  template <class Group>
  __device__ __forceinline__ void take_by(const Pattern& pattern, int count, Notification& latest, bool waits,
                                          Taken& taken) {
    const Call call = {
        "wait_notifications", {"window", "source", "tag"}, {pattern.window, pattern.source, pattern.tag}};
    WaitTimer timer(world_, rank(), call);
    const QueueAccess access{world_, local_, timer};
    const Group group{access};
    Inbox box = inbox();
    taken = take(box, group, pattern, count, latest);
    while (waits && taken == Taken::none) {
      timer.poll();
      taken = take(box, group, pattern, count, latest);
    }
    if (taken == Taken::stuck && waits) fail(world_, rank(), call, Status::queue_full);
    if (taken == Taken::all) save_heads(group, pattern);
  }
  /// For the next launch.
  template <class Group>
  __device__ __forceinline__ void save_heads(const Group& group, const Pattern& pattern) {
    if (!group.leads()) return;
    std::uint64_t* const saved = saved_heads();
    const Inbox box = inbox();
    const GpuRange range = gpus_of(box, pattern);
    for (int gpu = range.first; gpu < range.end; ++gpu) {
      saved[gpu] = state_.heads[gpu];
      saved[world_.gpus + gpu] = state_.returned[gpu];
    }
    if (world_.reaches_all == 0) see_puts(world_.credit);
  }

  /// By the first warp of each block: block 0 tells that it has what was waited for; the others wait for that.
  __device__ __forceinline__ void tell_grid() {
    __syncwarp();
    if (threadIdx.x == 0) {
      const std::uint64_t number = ++state_.grid_waits;
      std::uint64_t* const told = world_.grid + grid_told;
      if (blockIdx.x == 0) {
        if (state_.grid_complete == 0) wait_for_blocks();
        DeviceWord(*told).store(number, ::cuda::memory_order_release);
      } else {
        WaitTimer timer(world_, rank(),
                        {"wait_notifications by the grid, waiting for block 0",
                         {"number", "block", "blocks"},
                         {static_cast<long long>(number), blockIdx.x, gridDim.x}});
        while (DeviceWord(*told).load(::cuda::memory_order_acquire) < number) timer.poll();
      }
    }
    __syncwarp();
  }
  /// Until all blocks have read how many waits of the grid there had been before.
  __device__ __forceinline__ void wait_for_blocks() {
    WaitTimer timer(world_, rank(),
                    {"wait_notifications by the grid, waiting for all blocks to start",
                     {"GPU", "block", "blocks"},
                     {world_.gpu, blockIdx.x, gridDim.x}});
    while (relaxed(world_.grid + grid_started) != 0) timer.poll();
    state_.grid_complete = 1;
  }
};

}  // namespace gpudt::initiated::detail
