// What the kernels of kernels.cu and transfer_kernels.cu share: completion, windows on irregular lists, and the rounds
// in which a launch works through a message.
#pragma once

#include <cuda_runtime.h>

#include "device/cuda/access.cuh"
#include "device/kernels/runs_body.hpp"

namespace gpudt::device::cuda {
namespace {

/// 64 registers per thread: enough for every kernel, and four blocks of 256 threads per multiprocessor.
constexpr int most_threads = 1024;
/// Entries of an irregular list that a block keeps in shared memory.
constexpr int list_capacity = 1536;
/// Entries that each thread loads at once to copy them there.
constexpr int staged_at_once = 3;
/// Entries that a window takes beyond those expected, and the most rounds that it serves.
constexpr int list_slack = 64;
constexpr int most_rounds = 16;

// --- places ---------------------------------------------------------------------------------------------------------

/// The offsets of several units. Their look-ups in a list overlap.
template <class Map, int count>
__device__ __forceinline__ void find_offsets(const Map& map, const typename Map::Index (&units)[count],
                                             const typename Map::Tile& tile, Address (&offsets)[count]) {
  if constexpr (requires { &Map::lookup; }) {
    typename Map::Spot spots[count];
#pragma unroll
    for (int u = 0; u < count; ++u) spots[u] = map.spot(units[u]);
#pragma unroll
    for (int u = 0; u < count; ++u) offsets[u] = static_cast<Address>(map.lookup(spots[u]));
  } else {
#pragma unroll
    for (int u = 0; u < count; ++u) offsets[u] = static_cast<Address>(map.place(units[u], tile).offset);
  }
}

// --- completion -----------------------------------------------------------------------------------------------------

/// To be called by all threads of the `blocks` blocks that do the work, at the end. The barrier puts the block's writes
/// before thread 0's fence, which makes them visible to the whole system before the block is counted; the last block's
/// fence puts every counted block's writes before the flag.
__device__ __forceinline__ void complete(const Completion& completion, unsigned blocks = gridDim.x) {
  if (completion.flag == nullptr) return;
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence_system();
  if (blocks > 1) {
    // Wraps to zero with the last block: ready for the next launch.
    if (atomicInc(completion.counter, blocks - 1) != blocks - 1) return;
    __threadfence_system();
  }
  *completion.flag = completion.flag_value;
}

// --- windows on irregular lists -------------------------------------------------------------------------------------

struct ListShared {
  std::int64_t first;
  std::int64_t prefix[list_capacity + 1];
  std::int64_t displs[list_capacity];
};

/// find_block() by a warp: 33 intervals per step.
__device__ __forceinline__ std::int64_t warp_find_block(const std::int64_t* prefix, std::int64_t count,
                                                        std::int64_t value) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  std::int64_t low = 0, high = count;
  while (high - low > 1) {
    const std::int64_t step = (high - low + 32) / 33;
    const std::int64_t probe = low + (lane + 1) * step;
    const unsigned below = __ballot_sync(~0u, probe < high && prefix[probe] <= value);
    low += __popc(below) * step;
    high = min(high, low + step);
  }
  return low;
}

/// What a thread block knows of the list: `count` entries from `first` on in shared memory. All members are the same
/// for all threads of the block, and all threads must call all functions.
///
/// A block works on consecutive rounds, so that one search is enough: each window begins where the one before ended.
template <class Map>
class ListWindow {
 public:
  using Index = typename Map::Index;

  __device__ __forceinline__ ListWindow(const Map& map, ListShared& shared) : map_(map), shared_(shared) {
    if (map.list_count > list_capacity) return;
    stage(0, map.list_count);
    tile_ = {map.list_count, shared.prefix, shared.displs};
    whole_ = true;
  }

  /// Makes tile() hold the units of `round` and as many of the following `left - 1` rounds as fit; returns how many
  /// rounds these are. units(round) are the first and the last unit of a round, a round has `bytes` packed bytes.
  template <class Units>
  __device__ __forceinline__ int open(std::int64_t round, std::int64_t left, int bytes, const Units& units) {
    if (whole_) return static_cast<int>(min(left, std::int64_t{most_rounds}));
    __syncthreads();  // all are done with the window before
    const auto begin = map_.spot(units(round).first);
    const std::int64_t mean = max(map_.list_size / map_.list_count, std::int64_t{1});
    const bool following = next_round_ == round && traversal_ == begin.traversal;
    const bool guessed = !following && guess(begin.position, map_.spot(units(round).last).position);
    if (!following && !guessed) search(begin.position);
    const std::int64_t per_round = bytes / mean + 1;
    const int wanted = static_cast<int>(
        min(min(left, std::int64_t{most_rounds}), max(list_capacity * 3 / 4 / per_round, std::int64_t{1})));
    const std::int64_t expected = wanted * per_round;
    const std::int64_t ample = guessed ? list_capacity : expected + expected / 4 + list_slack;
    const auto count = min(min(ample, std::int64_t{list_capacity}), map_.list_count - first_);
    if (!guessed) stage(first_, count);
    const std::int64_t end = shared_.prefix[count];

    int rounds = wanted;
    while (rounds > 0) {
      const auto last = map_.spot(units(round + rounds - 1).last);
      if (last.traversal == begin.traversal && last.position < end) break;
      --rounds;
    }
    if (rounds > 0)
      tile_ = {count, shared_.prefix, shared_.displs};
    else
      tile_ = map_.whole();  // a round across two traversals, or with more entries than a window holds
    rounds = max(rounds, 1);

    next_round_ = -1;
    if (rounds < left) {
      const auto next = map_.spot(units(round + rounds).first);
      if (next.traversal == begin.traversal && next.position <= end) {
        first_ += next.position < end ? datatype::find_block(shared_.prefix, count, next.position) : count;
        next_round_ = round + rounds;
      }
    }
    traversal_ = begin.traversal;
    return rounds;
  }

  __device__ __forceinline__ const ListTile& tile() const { return tile_; }

 private:
  /// Stages a full window around where `begin` would lie if all runs were alike, and says whether it holds positions
  /// `begin` to `last`: that spares the search where long and short runs are mixed well. Ends with a barrier.
  __device__ __forceinline__ bool guess(std::int64_t begin, std::int64_t last) {
    const auto entry = static_cast<std::int64_t>(static_cast<double>(begin) / static_cast<double>(map_.list_size) *
                                                 static_cast<double>(map_.list_count));
    first_ = max(min(entry, map_.list_count - 1) - list_capacity / 3, std::int64_t{0});
    const std::int64_t count = min(std::int64_t{list_capacity}, map_.list_count - first_);
    stage(first_, count);
    return shared_.prefix[0] <= begin && max(begin, last) < shared_.prefix[count];
  }
  /// Ends with a barrier.
  __device__ __forceinline__ void search(std::int64_t position) {
    if (threadIdx.x < 32) {
      const std::int64_t found = warp_find_block(map_.prefix, map_.list_count, position);
      if (threadIdx.x == 0) shared_.first = found;
    }
    __syncthreads();
    first_ = shared_.first;
  }
  /// Each thread has several loads under way before it stores the first. Ends with a barrier.
  __device__ __forceinline__ void stage(std::int64_t first, std::int64_t count) {
    for (std::int64_t base = threadIdx.x; base <= count; base += staged_at_once * blockDim.x) {
      std::int64_t prefix[staged_at_once], displs[staged_at_once];
#pragma unroll
      for (int u = 0; u < staged_at_once; ++u) {
        const std::int64_t i = base + u * blockDim.x;
        if (i <= count) prefix[u] = list_word(map_.prefix + first + i);
        if (i < count) displs[u] = list_word(map_.displs + first + i);
      }
#pragma unroll
      for (int u = 0; u < staged_at_once; ++u) {
        const std::int64_t i = base + u * blockDim.x;
        if (i <= count) shared_.prefix[i] = prefix[u];
        if (i < count) shared_.displs[i] = displs[u];
      }
    }
    __syncthreads();
  }

  const Map& map_;
  ListShared& shared_;
  ListTile tile_ = {};
  std::int64_t first_ = 0;        ///< the entry with which the window begins
  std::int64_t next_round_ = -1;  ///< the round whose window begins at first_, if known
  Index traversal_ = 0;
  bool whole_ = false;  ///< the window holds the whole list, once and for all
};

template <class Map>
constexpr bool is_tiled = !std::is_same_v<typename Map::Tile, NoTile>;

template <class Map>
using SharedOf = std::conditional_t<is_tiled<Map>, ListShared, NoTile>;

/// Calls round(i, tile) for this block's share of the rounds 0 .. rounds-1. For irregular lists blocks take turns with
/// `consecutive_rounds` each, so that all blocks together write to few pages of the host.
template <class Map, class Shared, class Units, class Round>
__device__ __forceinline__ void for_each_round(const Map& map, int consecutive_rounds, Shared& shared,
                                               std::int64_t rounds, int bytes, const Units& units, const Round& round) {
  if constexpr (is_tiled<Map>) {
    ListWindow<Map> window(map, shared);
    const std::int64_t share = min((rounds + gridDim.x - 1) / gridDim.x, std::int64_t{consecutive_rounds});
    for (std::int64_t begin = blockIdx.x * share; begin < rounds; begin += gridDim.x * share) {
      const std::int64_t end = min(rounds, begin + share);
      for (std::int64_t i = begin; i < end;)
        for (int left = window.open(i, end - i, bytes, units); left > 0; --left, ++i) round(i, window.tile());
    }
  } else {
    for (std::int64_t i = blockIdx.x; i < rounds; i += gridDim.x) round(i, NoTile{});
  }
}

template <class Index>
struct UnitRange {
  Index first, last;
};

/// Loads a kernel to the current device, as a query of its attributes does.
cudaError_t load(const void* kernel) {
  cudaFuncAttributes attributes;
  return kernel == nullptr ? cudaSuccess : cudaFuncGetAttributes(&attributes, kernel);
}

}  // namespace
}  // namespace gpudt::device::cuda
