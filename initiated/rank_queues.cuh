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
    Ticket ticket = 0, credit = 0;
    Posting posting = {nullptr, 0};
    std::uint64_t* there = nullptr;  ///< where the slot is for stores; null if it is not reached so
    bool here = false;               ///< on this GPU
    std::uint64_t number = 0;        ///< of the grid's puts and notifications
  };

  /// Whether the ticket of a notification is taken before the data are moved, which hides the time that it takes.
  /// Behind long messages of one rank, later notifications of others of its GPU would wait for its slot.
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
        take_ticket<Scope>(target, pending);
        reserve<Scope>(target, window, tag, pending);
        store_relaxed(grid_posting(pending.number), reinterpret_cast<std::uint64_t>(pending.posting.slot));
        store_relaxed(grid_posting(pending.number) + 1, pending.posting.word);
      }
    } else if (early) {
      take_ticket<Scope>(target, pending);
    }
    return pending;
  }
  /// Behind what the scope has written. By all threads of the scope, which need not wait for it if `early`.
  template <class Scope>
  __device__ __forceinline__ void end_notification(int target, int window, int tag, bool early, Pending& pending) {
    if constexpr (!is_grid<Scope>)
      if (early && notifies<Scope>()) reserve<Scope>(target, window, tag, pending);
    Scope::sync();
    if (notifies<Scope>()) {
      if constexpr (is_grid<Scope>) {
        post_by_last_block(target, pending.number);
      } else {
        if (!early) {
          take_ticket<Scope>(target, pending);
          reserve<Scope>(target, window, tag, pending);
        }
        post(target, pending);
      }
    }
    if (!early) Scope::sync();  // the order of the rank's calls is that of their tickets
  }

  /// Without data of its own: what was written before is waited for while the ticket is under way. A fence that
  /// releases and a relaxed store behind it are what a releasing store is.
  template <class Scope>
  __device__ __forceinline__ void notify_alone(int target, int window, int tag) {
    Pending pending;
    if (notifies<Scope>()) take_ticket<Scope>(target, pending);
    Scope::sync();
    if (!notifies<Scope>()) return;
    release_fence(gpu_of(target) == world_.gpu);
    reserve<Scope>(target, window, tag, pending);
    if (pending.there != nullptr)
      store_relaxed(pending.there, pending.posting.word);
    else
      post(target, pending);
  }

  /// For a put with signal.
  template <class Scope>
  __device__ __forceinline__ void reserve_for_all(int target, int window, int tag) {
    if (leads<Scope>()) {
      Pending pending;
      take_ticket<Scope>(target, pending);
      reserve<Scope>(target, window, tag, pending);
      state_.posting = pending.posting;
    }
    Scope::sync();
  }

  // --- receiving ---

  /// By all threads of the scope. A block waits at one barrier, behind what its first warp has found.
  template <class Scope>
  __device__ __forceinline__ Status collect(const Pattern& pattern, int count, Notification* last, bool waits) {
    Taken taken = Taken::none;
    Notification latest = {0, 0, 0};
    if constexpr (std::is_same_v<Scope, Thread>) {
      Scope::sync();
      take_by_thread(pattern, count, latest, waits, taken);
    } else if constexpr (std::is_same_v<Scope, Warp>) {
      Scope::sync();
      take_by_warp(pattern, count, latest, waits, taken);
      Scope::sync();
    } else {
      const bool works = !is_grid<Scope> || blockIdx.x == 0;
      const bool tells = !waits || last != nullptr;  // a wait returns when there is what it waits for
      if (threadIdx.x < 32) {
        if (works) take_by_warp(pattern, count, latest, waits, taken);
        if constexpr (is_grid<Scope>) tell_grid();
        if (tells && threadIdx.x == 0) {
          state_.taken = is_grid<Scope> ? Taken::all : taken;
          state_.last = latest;
        }
      }
      __syncthreads();
      taken = Taken::all;
      if (tells) {
        taken = state_.taken;
        latest = state_.last;
        __syncthreads();
      }
    }
    if (taken == Taken::all && last != nullptr) *last = latest;
    return taken == Taken::all ? Status::ok : taken == Taken::none ? Status::not_yet : Status::queue_full;
  }

 private:
  /// The place of one notification in the order of those from this GPU to a rank. By one thread. What comes from memory
  /// is not looked at before reserve().
  template <class Scope>
  __device__ __forceinline__ void take_ticket(int target, Pending& pending) {
    const int gpu = gpu_of(target);
    if (world_.ranks.per_gpu == 1) {  // nobody else takes tickets
      pending.ticket = atomicInc(&state_.sent[gpu], ~Ticket{0});
      pending.credit = *const_cast<volatile Ticket*>(&state_.credit[gpu]);
    } else {
      const std::uint64_t index = counter_of(gpu, target);
      pending.ticket = count_up(world_.sent + index);
      pending.credit = static_cast<Ticket>(relaxed(world_.credit + index));
    }
  }
  /// The slot of a ticket, and the word for it. By one thread; waits until the slot is free. What the receiver did with
  /// the slot comes before what is stored there: credit was released by it, and is acquired here, or was when it was
  /// written to the state; of a block it is always the same thread that does so.
  template <class Scope>
  __device__ __forceinline__ void reserve(int target, int window, int tag, Pending& pending) {
    const int gpu = gpu_of(target), local = target - gpu * world_.ranks.per_gpu;
    const std::uint64_t index = counter_of(gpu, target);
    const bool single = world_.ranks.per_gpu == 1;
    if (!single)
      acquire_fence();
    else if constexpr (!is_block_wide<Scope>)
      __threadfence_block();
    if (!has_credit(pending.ticket, pending.credit, world_.capacity_log)) {
      const Ticket known = wait_for_credit(
          world_, rank(), index, pending.ticket, pending.credit,
          {"notify, waiting until the target consumes", {"rank", "window", "tag"}, {target, window, tag}});
      if (single) {
        if constexpr (!is_block_wide<Scope>) __threadfence_block();
        *const_cast<volatile Ticket*>(&state_.credit[gpu]) = known;
      }
    }
    if (single) count_up_unseen(world_.sent + index);  // for the next launch
    const Ticket mask = (Ticket{1} << world_.capacity_log) - 1;
    pending.posting = {world_.ring(local, world_.gpu) + (pending.ticket & mask),
                       notification_word(pending.ticket, world_.capacity_log, window, local_, tag)};
    pending.there = reach(world_, pending.posting.slot, gpu);
    pending.here = gpu == world_.gpu;
  }
  __device__ __forceinline__ std::uint64_t counter_of(int gpu, int target) const {
    return world_.target_index(gpu, target - gpu * world_.ranks.per_gpu);
  }
  /// Behind all that the thread knows to have been written: by itself, and by its block before a barrier.
  __device__ __forceinline__ void post(int target, const Pending& pending) {
    if (pending.there != nullptr) {
      store_release(pending.there, pending.posting.word, pending.here);
    } else {
      order_puts(world_);
      put_word(world_, pending.posting.slot, pending.posting.word, gpu_of(target));
    }
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
  /// The last block to have done its part notifies: behind what all have written, since each released it before it
  /// counted, and the last one acquires what it counted up to.
  __device__ __forceinline__ void post_by_last_block(int target, std::uint64_t number) {
    fence_all();
    auto* const arrived = reinterpret_cast<unsigned*>(world_.grid + number % grid_slots);
    if (atomicInc(arrived, gridDim.x - 1) != gridDim.x - 1) return;
    acquire_fence();
    Pending last;
    last.posting = {reinterpret_cast<std::uint64_t*>(relaxed(grid_posting(number))), relaxed(grid_posting(number) + 1)};
    last.there = reach(world_, last.posting.slot, gpu_of(target));
    last.here = gpu_of(target) == world_.gpu;
    post(target, last);
    atomicAdd(reinterpret_cast<unsigned long long*>(world_.grid + grid_ended), 1ull);
  }

  __device__ __forceinline__ Call wait_call(const Pattern& pattern) const {
    return {"wait_notifications", {"window", "source", "tag"}, {pattern.window, pattern.source, pattern.tag}};
  }
  __device__ __forceinline__ void take_by_warp(const Pattern& pattern, int count, Notification& latest, bool waits,
                                               Taken& taken) {
    WaitTimer timer(world_, rank(), wait_call(pattern));
    const QueueAccess access{world_, local_};
    const WarpGroup group{access};
    Inbox box = inbox_of(world_, state_, local_);
    if (FirstSlots<WarpGroup>::suit(box, pattern, count)) {
      const FirstSlots<WarpGroup> first(box, group, pattern);
      while ((taken = first.take(box, group, latest)) == Taken::none && waits) timer.poll();
    } else {
      taken = Taken::stuck;
    }
    while (taken == Taken::stuck || (taken == Taken::none && waits)) {
      Notification found = {};  // in memory, where the usual case needs none
      taken = take_further(world_, state_, local_, pattern, count, found);
      latest = found;
      if (taken == Taken::stuck) break;
      if (taken == Taken::none) timer.poll();
    }
    taken_by(pattern, waits, taken, group.leads());
  }
  __device__ __forceinline__ void take_by_thread(const Pattern& pattern, int count, Notification& latest, bool waits,
                                                 Taken& taken) {
    WaitTimer timer(world_, rank(), wait_call(pattern));
    const QueueAccess access{world_, local_};
    const OneThread<QueueAccess> group{access};
    Inbox box = inbox_of(world_, state_, local_);
    taken = take(box, group, pattern, count, latest);
    while (waits && taken == Taken::none) {
      timer.poll();
      taken = take(box, group, pattern, count, latest);
    }
    taken_by(pattern, waits, taken, true);
  }
  __device__ __forceinline__ void taken_by(const Pattern& pattern, bool waits, Taken taken, bool leads) {
    if (taken == Taken::stuck && waits) fail(world_, rank(), wait_call(pattern), Status::queue_full);
    if (taken == Taken::all && world_.reaches_all == 0 && leads) see_puts(world_, world_.credit);
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
