// The transfer kernels: transfer_body.hpp on GPU threads. One kernel for each pair of maps and method that it names,
// and for Method::words each word width.
//
// One side is memory of another GPU: reading it takes 1.5 to 2 microseconds, so that each thread has several words
// under way, all loaded before the first is stored.
#include <cuda_runtime.h>

#include "device/cuda/kernel_parts.cuh"
#include "device/cuda/kernels.hpp"
#include "device/kernels/transfer_body.hpp"

namespace gpudt::device::cuda {
namespace {

/// A kernel's parameters, in the order of Launch in kernels.cu. No access is marked evict-first: with that, records of
/// odd length that exceed the caches took 1.4 times as long, and nothing took less.
template <class Pair>
struct Launch {
  Completion completion;
  std::int64_t end;
  int consecutive_rounds;
  Pair pair;
};

/// The last block moves the end of the message behind the last whole word or run.
template <class Pair>
__device__ __forceinline__ void move_tail(const Launch<Pair>& launch, std::int64_t begin) {
  if (blockIdx.x != gridDim.x - 1) return;
  const DeviceMemory memory;
  for (std::int64_t i = begin + threadIdx.x; i < launch.end; i += blockDim.x) transfer_byte(launch.pair, memory, i);
}

/// Where several units lie on both sides.
template <class Pair, int count>
__device__ __forceinline__ void find_places(const Pair& pair, const typename Pair::Index (&units)[count],
                                            const typename Pair::Tile& tile, PairPlace (&places)[count]) {
  Address from[count], to[count];
  find_offsets(pair.map, units, tile, to);
  if constexpr (!Pair::alike) find_offsets(pair.from_map, units, tile, from);
#pragma unroll
  for (int u = 0; u < count; ++u) places[u] = {pair.from + (Pair::alike ? to[u] : from[u]), pair.to + to[u]};
}

template <class Word, class Pair>
__global__ void __launch_bounds__(most_threads, 1) words_kernel(const __grid_constant__ Launch<Pair> launch) {
  using Index = typename Pair::Index;
  using Tile = typename Pair::Tile;
  const DeviceMemory memory;
  const Pair& pair = launch.pair;
  constexpr auto width = static_cast<std::int64_t>(sizeof(Word));
  constexpr Index per_round = block_threads * words_per_thread;
  const auto count = static_cast<Index>(launch.end / width);
  const auto units = [&](std::int64_t round) -> UnitRange<Index> {
    const Index begin = static_cast<Index>(round) * per_round;
    return {begin, min(begin + per_round, count) - 1};
  };
  const auto move = [&](Index first, int words, const Tile& tile) {
    Index unit_of[words_per_thread];
    PairPlace place[words_per_thread];
    Word word[words_per_thread] = {};
    bool inside[words_per_thread];
#pragma unroll
    for (int u = 0; u < words_per_thread; ++u) {
      const Index unit = first + u * block_threads;
      inside[u] = u < words && unit < count;
      // Idle threads compute the place of the round's first word, so that there is no branch.
      unit_of[u] = inside[u] ? unit : first - threadIdx.x;
    }
    find_places(pair, unit_of, tile, place);
#pragma unroll
    for (int u = 0; u < words_per_thread; ++u) memory.load_if(inside[u], place[u].from, word[u]);
#pragma unroll
    for (int u = 0; u < words_per_thread; ++u) memory.store_if(inside[u], place[u].to, word[u]);
  };
  __shared__ SharedOf<typename Pair::Map> shared;
  constexpr int bytes = per_round * sizeof(Word);
  if (count > blockDim.x) {  // blocks of block_threads
    const auto rounds = static_cast<std::int64_t>((count + per_round - 1) / per_round);
    for_each_round(pair.map, launch.consecutive_rounds, shared, rounds, bytes, units,
                   [&](std::int64_t round, const Tile& tile) {
                     move(static_cast<Index>(round) * per_round + threadIdx.x, words_per_thread, tile);
                   });
  } else {  // a word per thread
    for_each_round(pair.map, launch.consecutive_rounds, shared, count > 0 ? 1 : 0, bytes, units,
                   [&](std::int64_t, const Tile& tile) {
                     if (threadIdx.x >= count) return;
                     const PairPlace place = pair.place(threadIdx.x, tile);
                     memory.template store<Word>(place.to, memory.template load<Word>(place.from));
                   });
  }
  move_tail(launch, static_cast<std::int64_t>(count) * width);
  complete(launch.completion);
}

/// A thread for each word of a short message: nothing but what that takes.
template <class Word, class Pair>
__global__ void __launch_bounds__(most_threads, 1) single_kernel(const __grid_constant__ Launch<Pair> launch) {
  using Index = typename Pair::Index;
  const DeviceMemory memory;
  const auto count = static_cast<Index>(launch.end / static_cast<std::int64_t>(sizeof(Word)));
  if (threadIdx.x < count) {
    const PairPlace place = launch.pair.place(threadIdx.x, NoTile());
    memory.template store<Word>(place.to, memory.template load<Word>(place.from));
  }
  move_tail(launch, static_cast<std::int64_t>(count) * static_cast<std::int64_t>(sizeof(Word)));
  complete(launch.completion);
}

template <class Pair>
__global__ void __launch_bounds__(block_threads) gather_kernel(const __grid_constant__ Launch<Pair> launch) {
  using Index = typename Pair::Index;
  const DeviceMemory memory;
  const std::int64_t count = (launch.end + 15) / 16;
  const int bytes = 16 * static_cast<int>(blockDim.x);
  const auto units = [&](std::int64_t round) -> UnitRange<Index> {
    const std::int64_t begin = bytes * round;
    return {static_cast<Index>(begin), static_cast<Index>(min(begin + bytes, launch.end) - 1)};
  };
  __shared__ SharedOf<typename Pair::Map> shared;
  for_each_round(launch.pair.map, launch.consecutive_rounds, shared, (count + blockDim.x - 1) / blockDim.x, bytes,
                 units, [&](std::int64_t round, const typename Pair::Tile& tile) {
                   const std::int64_t index = round * blockDim.x + threadIdx.x;
                   if (index < count) transfer_gathered(launch.pair, memory, index, launch.end, tile);
                 });
  complete(launch.completion);
}

/// A thread moves a run: neighbouring runs share sectors, so that all of what is fetched is used.
template <class Pair>
__global__ void __launch_bounds__(block_threads) runs_kernel(const __grid_constant__ Launch<Pair> launch) {
  using Index = typename Pair::Index;
  const DeviceMemory memory;
  const auto run = static_cast<Index>(launch.pair.map.run_bytes);
  const Index runs = static_cast<Index>(launch.end) / run;
  for (Index i = blockIdx.x * blockDim.x + threadIdx.x; i < runs; i += gridDim.x * blockDim.x)
    transfer_run(launch.pair, memory, i);
  move_tail(launch, static_cast<std::int64_t>(runs) * run);
  complete(launch.completion);
}

// --- launches -------------------------------------------------------------------------------------------------------

template <class Pair>
using Kernel = void (*)(Launch<Pair>);

template <class Pair>
Kernel<Pair> words_instance(int word) {
  if constexpr ((methods_of<Pair> & by_words) != 0)
    return word == 16  ? words_kernel<Word16, Pair>
           : word == 8 ? words_kernel<std::uint64_t, Pair>
                       : words_kernel<std::uint32_t, Pair>;
  else
    return nullptr;
}

template <class Pair>
Kernel<Pair> single_instance(int word) {
  if constexpr ((methods_of<Pair> & by_words) != 0 && sizeof(typename Pair::Index) == 4 &&
                std::is_same_v<typename Pair::Tile, NoTile>)
    return word == 16  ? single_kernel<Word16, Pair>
           : word == 8 ? single_kernel<std::uint64_t, Pair>
                       : single_kernel<std::uint32_t, Pair>;
  else
    return nullptr;
}

template <class Pair>
Kernel<Pair> gather_instance() {
  if constexpr ((methods_of<Pair> & by_gather) != 0)
    return gather_kernel<Pair>;
  else
    return nullptr;
}

template <class Pair>
Kernel<Pair> runs_instance() {
  if constexpr ((methods_of<Pair> & by_runs) != 0)
    return runs_kernel<Pair>;
  else
    return nullptr;
}

template <class Pair>
Kernel<Pair> instance(const KernelArgs& to) {
  if (to.method == Method::gather) return gather_instance<Pair>();
  if (to.method == Method::runs) return runs_instance<Pair>();
  return to.single != 0 ? single_instance<Pair>(to.word) : words_instance<Pair>(to.word);
}

template <class Pair>
cudaError_t load_instances() {
  const Kernel<Pair> kernels[] = {words_instance<Pair>(4),  words_instance<Pair>(8),  words_instance<Pair>(16),
                                  single_instance<Pair>(4), single_instance<Pair>(8), single_instance<Pair>(16),
                                  gather_instance<Pair>(),  runs_instance<Pair>()};
  for (const Kernel<Pair> kernel : kernels)
    if (const cudaError_t error = load(reinterpret_cast<const void*>(kernel)); error != cudaSuccess) return error;
  return cudaSuccess;
}

template <class... Pairs>
cudaError_t load_instances_of(std::type_identity<std::tuple<Pairs...>>) {
  cudaError_t error = cudaSuccess;
  ((error = error == cudaSuccess ? load_instances<Pairs>() : error), ...);
  return error;
}

}  // namespace

int launch_transfer_kernel(const TransferArgs& args, void* stream) {
  return visit_pair(args, [&](auto type) -> int {
    using Pair = typename decltype(type)::type;
    const KernelArgs& to = args.to;
    const Kernel<Pair> kernel = instance<Pair>(to);
    if (kernel == nullptr) return cudaErrorInvalidValue;  // not a plan of plan.cpp
    Launch<Pair> launch{to.completion, to.end, to.consecutive_rounds, Pair(args)};
    void* parameters[] = {&launch};
    return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(static_cast<unsigned>(to.grid)),
                            dim3(static_cast<unsigned>(to.block)), parameters, 0, static_cast<cudaStream_t>(stream));
  });
}

int load_transfer_kernels() {
  return load_instances_of(std::type_identity<AllPairs>());
}

}  // namespace gpudt::device::cuda
