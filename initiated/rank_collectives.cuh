// What Rank (device.cuh) is made of: barriers and reductions.
#pragma once

#include "initiated/rank_queues.cuh"

namespace gpudt::initiated::detail {

class RankCollectives : public RankQueues {
 protected:
  using RankQueues::RankQueues;

  /// By all ranks of `place`. The last one of each GPU to arrive reduces what its ranks contribute, exchanges it with
  /// the other GPUs (`across`), and leaves the result to its own.
  template <class T, class Operator>
  __device__ __forceinline__ T reduce_at(const CollectiveState& place, int which, bool across, int count, T mine,
                                         const Operator& with) {
    __syncthreads();
    const std::uint64_t number = state_.collectives[which] + 1;
    const int i = static_cast<int>(threadIdx.x);
    if (i < count) store_relaxed(place.local + local_ * most_values + i, bits_of(mine));
    __syncthreads();
    if (i < 32) {
      WaitTimer timer(world_, rank(),
                      {across ? "barrier or reduction of all ranks" : "barrier or reduction of a GPU's ranks",
                       {"number", "values", "GPU"},
                       {static_cast<long long>(number), count, world_.gpu}});
      bool last = false;
      if (i == 0) {
        if (across && world_.reaches_all == 0) complete_puts(world_);
        fence_all();
        const auto ranks = static_cast<unsigned>(world_.ranks.per_gpu);
        last = atomicInc(reinterpret_cast<unsigned*>(place.arrived), ranks - 1) == ranks - 1;
      }
      last = __shfl_sync(whole_chunk, static_cast<int>(last), 0) != 0;
      if (last) {
        fence_all();
        conclude<T>(place, across, count, with, number, timer);
      } else if (i == 0) {
        while (acquire(place.left) < number) timer.poll();
      }
      if (i == 0) state_.collectives[which] = number;
      __syncwarp();
    }
    __syncthreads();
    const T result = i < count ? value_of<T>(relaxed(place.result + i)) : mine;
    __syncthreads();
    return result;
  }

 private:
  template <class T>
  static __device__ __forceinline__ std::uint64_t bits_of(T value) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "values of 4 or 8 bytes");
    std::uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    return bits;
  }
  template <class T>
  static __device__ __forceinline__ T value_of(std::uint64_t bits) {
    T value;
    memcpy(&value, &bits, sizeof value);
    return value;
  }

  /// By one warp of each GPU.
  template <class T, class Operator>
  __device__ __forceinline__ void conclude(const CollectiveState& place, bool across, int count, const Operator& with,
                                           std::uint64_t number, WaitTimer& timer) {
    const int i = static_cast<int>(threadIdx.x);
    T value = {};
    if (i < count) {
      value = value_of<T>(relaxed(place.local + i));
      for (int rank = 1; rank < world_.ranks.per_gpu; ++rank)
        value = with(value, value_of<T>(relaxed(place.local + rank * most_values + i)));
    }
    if (across && world_.gpus > 1) value = exchange<T>(place, count, with, number, value, timer);
    if (i < count) store_relaxed(place.result + i, bits_of(value));
    __syncwarp();
    if (i == 0) SystemWord(*place.left).store(number, ::cuda::memory_order_release);
    __syncwarp();
  }
  /// Values to all GPUs, then a flag behind them; the result in the order of GPUs.
  template <class T, class Operator>
  __device__ __forceinline__ T exchange(const CollectiveState& place, int count, const Operator& with,
                                        std::uint64_t number, T value, WaitTimer& timer) {
    const int i = static_cast<int>(threadIdx.x);
    std::uint64_t* const values = place.values + (number & 1) * static_cast<std::uint64_t>(world_.gpus) * most_values;
    if (i < count)
      for (int gpu = 0; gpu < world_.gpus; ++gpu)
        send_word(world_, values + world_.gpu * most_values + i, bits_of(value), gpu);
    if (world_.reaches_all == 0 && world_.proxy.slots == nullptr) complete_puts(world_);  // a proxy keeps the order
    __syncwarp();
    fence_all();
    for (int gpu = i; gpu < world_.gpus; gpu += 32) send_word(world_, place.flags + world_.gpu, number, gpu);
    for (int gpu = i; gpu < world_.gpus; gpu += 32)
      while (acquire(place.flags + gpu) < number) timer.poll();
    __syncwarp();
    if (i < count) {
      value = value_of<T>(relaxed(values + i));
      for (int gpu = 1; gpu < world_.gpus; ++gpu)
        value = with(value, value_of<T>(relaxed(values + gpu * most_values + i)));
    }
    return value;
  }
};

}  // namespace gpudt::initiated::detail
