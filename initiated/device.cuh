// Communication that kernels start, with any MPI datatype on either side: the device's side; the host's is world.hpp.
//
//   __global__ void kernel(const __grid_constant__ Arguments arguments) {   // Arguments holds world.view(gridDim.x)
//     __shared__ RankState state;
//     Rank rank(arguments.world, state);
//     const int right = (rank.rank() + 1) % rank.size();
//     rank.put_notify(at(arguments.window, right, 0, &arguments.column), here(source, &arguments.row), bytes, tag);
//     rank.wait_notifications({arguments.window.id, any_value, tag}, 1);
//   }
//
// Scopes. A call is made by a Thread, a Warp (all 32 threads, converged), a Block (all threads; the default), or the
// whole Grid (all threads of all blocks, with the same arguments, in the same order). Blocks are one-dimensional, of a
// multiple of 32 threads, and all of a launch run at the same time (World::launch).
//
// Ranks. With as many ranks per GPU as blocks, a block is a rank. With one rank per GPU, all blocks may put and get,
// and one block of the launch, always the same, may notify, wait, and take part in barriers and reductions; calls of
// the whole grid are the other way, and count as block 0's: it sends their notifications, and waits.
//
// Memory order. What a rank has written before it puts or notifies, in the scope of the call, is visible to whoever
// consumes the notification (in the scope of its wait), and so is what that rank put to the same rank before. A put
// without notification is visible to its target after a later notification or barrier. A source may be overwritten when
// the put has returned, or where GPUs are not reached by loads and stores, after flush().
//
// Sources and targets lie in global memory; targets, and what is read by get, in a Window. Offsets are bytes.
#pragma once

#include "initiated/rank_partitions.cuh"

namespace gpudt::initiated {

class Rank : public detail::RankPartitions {
 public:
  /// To be made once by all threads of all blocks, at the kernel's start. `world` must be there as long, in the
  /// kernel's parameters (a __grid_constant__) or in global memory; `state` in shared memory.
  __device__ __forceinline__ Rank(const KernelWorld& world, RankState& state) : RankPartitions(world, state) {
    Ticket* const saved = saved_heads();
    for (int gpu = static_cast<int>(threadIdx.x); gpu < world.gpus; gpu += static_cast<int>(blockDim.x)) {
      state.heads[gpu] = saved[gpu];
      state.returned[gpu] = saved[world.gpus + gpu];
      if (world.ranks.per_gpu == 1) {
        state.sent[gpu] = world.sent[world.target_index(gpu, 0)];
        state.credit[gpu] = static_cast<Ticket>(detail::acquire(world.credit + world.target_index(gpu, 0)));
      }
    }
    if (threadIdx.x < known_moves) state.moves[threadIdx.x] = {};
    if (threadIdx.x == 0) {
      state.moves_made = 0;
      // None of these moves before all blocks (and ranks) have come this far.
      state.collectives[0] = detail::relaxed(world.all.left);
      state.collectives[1] = detail::relaxed(world.device.left);
      state.grid_puts = detail::relaxed(world.grid + grid_ended);
      state.grid_waits = detail::relaxed(world.grid + grid_told);
      // ... but the last one, which block 0 moves when all have been counted here.
      state.grid_complete = 0;
      detail::fence_gpu();
      atomicInc(reinterpret_cast<unsigned*>(world.grid + grid_started), gridDim.x - 1);
    }
    __syncthreads();
  }
  /// Another Rank of the same block, over the state of the first one.
  struct Again {};
  __device__ __forceinline__ Rank(const KernelWorld& world, RankState& state, Again) : RankPartitions(world, state) {}
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  // --- remote memory access (dCUDA: dcuda_put, dcuda_get; GPI: gpu_gaspi_write) ---

  /// Packed bytes [begin, begin + bytes) of `from` become those of `to`. Both sides must be at least so long. Layouts
  /// do not change while the kernel runs: blocks remember where the words of a short message lie, by the layouts'
  /// addresses. Errors: bad_rank, bad_range, bad_layout; then nothing is moved.
  template <class Scope = Block>
  __device__ Status put(const Remote& to, const Local& from, std::int64_t bytes, std::int64_t begin = 0) {
    Scope::sync();
    const Kept kept = find_move<Scope>(from.layout, to.layout, begin, bytes);
    char* place = nullptr;
    const Status status = check(to, from.layout, begin, bytes, kept.number, true, place);
    if (status != Status::ok) return failed(status, data_call("put", to, bytes));
    put_out<Scope>(to, place, from, begin, begin + bytes, kept);
    Scope::sync();
    return Status::ok;
  }

  /// The same the other way. The data are there when it returns.
  template <class Scope = Block>
  __device__ Status get(const Local& to, const Remote& from, std::int64_t bytes, std::int64_t begin = 0) {
    Scope::sync();
    const Kept kept = find_move<Scope>(from.layout, to.layout, begin, bytes);
    char* place = nullptr;
    const Status status = check(from, to.layout, begin, bytes, kept.number, false, place);
    if (status != Status::ok) return failed(status, data_call("get", from, bytes));
    get_in<Scope>(to, from, place, begin, begin + bytes, kept);
    Scope::sync();
    return Status::ok;
  }

  /// put() of elements of type T, of 4 or 8 bytes, each combined with what is there: Sum, Min, Max, or another function
  /// object of two values. Each element at once, among all kernels of the World; not with MPI_Accumulate of hosts. All
  /// runs and gaps of both layouts, `begin` and `bytes` are multiples of T's size. Errors: those of put(), bad_layout
  /// where they are not, unreachable.
  template <class T, class Scope = Block, class Operator = Sum>
  __device__ Status accumulate(const Remote& to, const Local& from, std::int64_t bytes, const Operator& with = {},
                               std::int64_t begin = 0) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "elements of 4 or 8 bytes");
    using Word = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
    Scope::sync();
    Sides sides;
    const Status status = check_elements(to, from, begin, bytes, static_cast<int>(sizeof(T)), sides);
    if (status != Status::ok) return failed(status, data_call("accumulate", to, bytes));
    move_range<Word>(sides, detail::AccumulatingMemory<T, Operator>{with}, begin, begin + bytes, Scope::index(),
                     Scope::count());
    Scope::sync();
    return Status::ok;
  }

  /// The same with elements and an operator that are values. Errors: also bad_type, bad_op.
  template <class Scope = Block>
  __device__ Status accumulate(Element element, Op op, const Remote& to, const Local& from, std::int64_t bytes,
                               std::int64_t begin = 0) {
    Scope::sync();
    Sides sides;
    const int width = width_of(element);
    Status status = width == 0 ? Status::bad_type : !detail::has_op(element, op) ? Status::bad_op : Status::ok;
    if (status == Status::ok) status = check_elements(to, from, begin, bytes, width, sides);
    if (status != Status::ok) return failed(status, data_call("accumulate", to, bytes));
    detail::combine_directly(sides, element, op, begin, begin + bytes, Scope::index(), Scope::count());
    Scope::sync();
    return Status::ok;
  }

  // --- notified access (dCUDA: dcuda_put_notify, dcuda_get_notify, dcuda_notify; GPI: write_notify, notify) ---

  /// put(), and a notification of the target in the window `to.window` with `tag`, behind the data. It waits while the
  /// target's queue for this GPU is full (Options::notifications). Errors: those of put(), bad_tag,
  /// bad_window.
  template <class Scope = Block>
  __device__ Status put_notify(const Remote& to, const Local& from, std::int64_t bytes, int tag,
                               std::int64_t begin = 0) {
    Scope::sync();
    const Kept kept = find_move<Scope>(from.layout, to.layout, begin, bytes);
    char* place = nullptr;
    const Status status = check(to, from.layout, begin, bytes, kept.number, true, place, tag);
    if (status != Status::ok) return failed(status, data_call("put_notify", to, bytes));
    if (signals<Scope>(to, place)) {
      reserve_for_all<Scope>(to.rank, to.window.id, tag);
      put_out_with_signal<Scope>(to, from, begin, begin + bytes);
      Scope::sync();
      return Status::ok;
    }
    const bool early = reserves_early<Scope>(bytes);
    Pending pending = begin_notification<Scope>(to.rank, to.window.id, tag, early);
    put_out<Scope>(to, place, from, begin, begin + bytes, kept);
    end_notification<Scope>(to.rank, to.window.id, tag, early, pending);
    return Status::ok;
  }

  /// get(), and a notification of the rank that was read from, behind the reading: it may overwrite what was read.
  template <class Scope = Block>
  __device__ Status get_notify(const Local& to, const Remote& from, std::int64_t bytes, int tag,
                               std::int64_t begin = 0) {
    Scope::sync();
    const Kept kept = find_move<Scope>(from.layout, to.layout, begin, bytes);
    char* place = nullptr;
    const Status status = check(from, to.layout, begin, bytes, kept.number, false, place, tag);
    if (status != Status::ok) return failed(status, data_call("get_notify", from, bytes));
    get_in<Scope>(to, from, place, begin, begin + bytes, kept);
    return notify_behind<Scope>(from.rank, tag, from.window.id);
  }

  /// A notification alone, behind what the scope has put to that rank. Errors: bad_rank, bad_tag, bad_window.
  template <class Scope = Block>
  __device__ Status notify(int target, int tag, int window = no_window) {
    Status status = target < 0 || target >= size() ? Status::bad_rank : tag < 0 ? Status::bad_tag : Status::ok;
    if (status == Status::ok && (window < 0 || window > no_window)) status = Status::bad_window;
    if (status != Status::ok) return failed(status, {"notify", {"rank", "window", "tag"}, {target, window, tag}});
    return notify_behind<Scope>(target, tag, window);
  }

  /// Waits for `count` notifications that match, and consumes them; `last`, if not null, is the latest of them. In the
  /// order in which each GPU's ranks sent them. Only one wait or test of a rank at a time. Grid: block 0 waits, and the
  /// others for it. Ends the program where they cannot come (queue_full) or do not in time. Errors: bad_rank, bad_tag.
  template <class Scope = Block>
  __device__ Status wait_notifications(const Pattern& pattern, int count = 1, Notification* last = nullptr) {
    const Status status = check(pattern, count);
    if (status != Status::ok) return failed(status, match_call("wait_notifications", pattern, count));
    return collect<Scope>(pattern, count, last, true);
  }

  /// The same without waiting: not_yet if there are not enough; then none is consumed. Not for the Grid.
  template <class Scope = Block>
  __device__ Status test_notifications(const Pattern& pattern, int count = 1, Notification* last = nullptr) {
    static_assert(!is_grid<Scope>, "blocks of a grid would get different answers");
    const Status status = check(pattern, count);
    if (status != Status::ok) return failed(status, match_call("test_notifications", pattern, count));
    return collect<Scope>(pattern, count, last, false);
  }

  /// Returns when all that the scope has put is in its targets' memory, and its sources may be overwritten.
  template <class Scope = Block>
  __device__ void flush() {
    Scope::sync();
    if (leads<Scope>()) world_.reaches_all != 0 ? detail::fence_all() : detail::complete_puts(world_);
    Scope::sync();
  }

  /// Stores a word of 8 bytes in a window, behind what the scope has written and put there: a flag of the caller's own.
  /// To be polled with loads that acquire. Errors: bad_rank, bad_range.
  template <class Scope = Block>
  __device__ Status store_behind(const Remote& to, std::uint64_t value) {
    Scope::sync();
    char* place = nullptr;
    const Status status = check(to, nullptr, 0, sizeof value, known_moves, true, place);
    if (status != Status::ok) return failed(status, data_call("store_behind", to, sizeof value));
    if (leads<Scope>()) store_word(to, place, value);
    Scope::sync();
    return Status::ok;
  }

  // --- partitioned communication (MPI_Pready, MPI_Parrived) ---

  /// MPI_Pready of a request of World::psend_init: puts the partition into the receiver's buffer, and sets its flag
  /// there. What the scope has written before is sent. Unlike MPI's, waits until the receiver has started its request.
  /// Thread, Warp or Block. Errors: bad_request, bad_partition, not_started.
  template <class Scope = Block>
  __device__ Status pready(const KernelRequest& request, int partition) {
    return answer_of("pready", request, partition, send_partition<Scope>(request, partition));
  }

  /// MPI_Parrived of a request of World::precv_init, by any threads, as often as they like: ok when the partition is
  /// there for the whole scope, or the request is not active, else not_yet. Thread, Warp or Block. Errors: bad_request,
  /// bad_partition.
  template <class Scope = Block>
  __device__ Status parrived(const KernelRequest& request, int partition) {
    return answer_of("parrived", request, partition, find_partition<Scope>(request, partition, false));
  }
  /// Waits until parrived() would say ok. Ends the program if that takes too long.
  template <class Scope = Block>
  __device__ Status wait_partition(const KernelRequest& request, int partition) {
    return answer_of("wait", request, partition, find_partition<Scope>(request, partition, true));
  }

  // --- all ranks (dCUDA: dcuda_comm_barrier) ---

  /// All ranks, by all threads of each: what any has written or put before is visible to all behind it.
  __device__ void barrier() { reduce_at(world_.all, 0, true, 0, std::uint64_t{0}, Sum()); }
  /// The ranks of this GPU alone.
  __device__ void device_barrier() { reduce_at(world_.device, 1, false, 0, std::uint64_t{0}, Sum()); }

  /// A barrier that reduces: thread i < count (at most most_values) of each rank contributes a value of 4 or 8 bytes,
  /// and gets the i-th of the result; the others get their own. In the order of ranks, so that all get the same bits.
  template <class T, class Operator>
  __device__ T reduce(T mine, int count, const Operator& with) {
    return reduce_at(world_.all, 0, true, count, mine, with);
  }
  template <class T, class Operator>
  __device__ T device_reduce(T mine, int count, const Operator& with) {
    return reduce_at(world_.device, 1, false, count, mine, with);
  }

 private:
  template <class Scope>
  __device__ __forceinline__ Status notify_behind(int target, int tag, int window) {
    if constexpr (is_grid<Scope>) {
      Pending pending = begin_notification<Scope>(target, window, tag, true);
      end_notification<Scope>(target, window, tag, true, pending);
    } else {
      notify_alone<Scope>(target, window, tag);
    }
    return Status::ok;
  }
  /// Of accumulate(): elements of `width` bytes, all of which lie so in both layouts that they are words.
  __device__ __forceinline__ Status check_elements(const Remote& to, const Local& from, std::int64_t begin,
                                                   std::int64_t bytes, int width, Sides& sides) const {
    char* place = nullptr;
    const Status status = check(to, from.layout, begin, bytes, known_moves, true, place);
    if (status != Status::ok) return status;
    if (place == detail::nowhere()) return Status::unreachable;
    sides = sides_of(from.address, from.layout, place, to.layout, begin + bytes);
    return word_of(sides) % width != 0 || begin % width != 0 || bytes % width != 0 ? Status::bad_layout : Status::ok;
  }
  static __device__ __forceinline__ detail::Call data_call(const char* name, const Remote& remote, std::int64_t bytes) {
    return {name, {"rank", "offset", "bytes"}, {remote.rank, remote.offset, bytes}};
  }
  __device__ __forceinline__ Status answer_of(const char* name, const KernelRequest& request, int partition,
                                              Status status) const {
    if (status == Status::ok || status == Status::not_yet) return status;
    return failed(status, partition_call(name, request, partition));
  }
  static __device__ __forceinline__ detail::Call match_call(const char* name, const Pattern& pattern, int count) {
    return {name, {"source", "tag", "count"}, {pattern.source, pattern.tag, count}};
  }
};

}  // namespace gpudt::initiated
