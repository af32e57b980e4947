// The pack and unpack kernels: kernel_body.hpp on GPU threads.
//
// There is one kernel for each method, direction and map, and for Method::words each word width. Blocks, no more than
// are resident at once unless the plan says otherwise, work through tiles of the packed stream; each ends once, and the
// last to end sets the flag, if there is one.
#include "device/cuda/kernels.hpp"

#include <cuda_runtime.h>

#include <algorithm>

#include "device/cuda/kernel_parts.cuh"

namespace gpudt::device::cuda {
namespace {

/// Threads that a multiprocessor holds, of the architecture that is compiled for.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 800 || (__CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200))
constexpr int resident_threads = 2048;
#else
constexpr int resident_threads = 1536;
#endif
/// Kernels of short runs and lists wait for memory, those of lists twice (displacement, then data): as many threads as
/// can be resident, with fewer registers, hide it.
constexpr int runs_blocks = resident_threads / block_threads;
constexpr int entry_threads = 512;
constexpr int entry_blocks = resident_threads / entry_threads;
/// Nodes of a general type that travel in the kernel's parameters.
constexpr int parameter_nodes = 8;
/// Rounds begin at packed addresses that are multiples of this, so that warps write full segments.
constexpr Address segment = 128;

/// A kernel's parameters, in constant memory. What all threads need lies together and comes first: the first access to
/// a line of that memory takes some tenths of a microsecond.
template <class Map>
struct Launch {
  Completion completion;
  int consecutive_rounds;
  DeviceMemory memory;
  Job<Map> job;

  __device__ __forceinline__ const Job<Map>& mapped_job() const { return job; }
  void add(const KernelArgs&) {}
};

/// General types: with the nodes, if they are few, so that a traversal reads only lists from memory.
template <>
struct Launch<GeneralMap> {
  Completion completion;
  int consecutive_rounds;
  DeviceMemory memory;
  Job<GeneralMap> job;
  bool has_nodes;
  datatype::Node nodes[parameter_nodes];

  __device__ __forceinline__ Job<GeneralMap> mapped_job() const {
    Job<GeneralMap> mapped = job;
    if (has_nodes) mapped.map.program.nodes = nodes;
    return mapped;
  }
  void add(const KernelArgs& args) {
    has_nodes = args.nodes != nullptr && args.node_count <= parameter_nodes;
    if (has_nodes) std::copy_n(args.nodes, args.node_count, nodes);
  }
};

/// Whether a place follows from the number of its run, without a search.
template <class Map>
constexpr bool has_runs = Map::dims == 0 || requires {
  &Map::run_offset;
};

// --- kernels --------------------------------------------------------------------------------------------------------

/// The last block moves the bytes before and behind the whole words.
template <bool unpack, class Map>
__device__ __forceinline__ void move_ragged_ends(const Job<Map>& job, const DeviceMemory& memory,
                                                 const WordRange& range) {
  if (blockIdx.x != gridDim.x - 1) return;
  const std::int64_t head = range.head_end - job.begin, tail = job.end - range.tail_begin;
  for (std::int64_t i = threadIdx.x; i < head + tail; i += blockDim.x)
    move_byte<unpack>(job, memory, i < head ? job.begin + i : range.tail_begin + (i - head));
}

template <class Word, bool unpack, class Map>
__global__ void __launch_bounds__(most_threads, 1) words_kernel(const __grid_constant__ Launch<Map> launch) {
  using Index = typename Map::Index;
  const Job<Map>& job = launch.mapped_job();
  const DeviceMemory& memory = launch.memory;
  const WordRange range = whole_words(job.begin, job.end, static_cast<std::int32_t>(sizeof(Word)));
  const auto first = static_cast<Index>(range.first);
  const auto count = static_cast<Index>(range.last - range.first);
  const Address packed_first = job.packed + static_cast<Address>(range.first) * sizeof(Word);
  // Items 0 .. lead-1 stand for the words between the segment's beginning and the first word.
  const auto lead = static_cast<Index>((packed_first & (segment - 1)) / sizeof(Word));
  constexpr Address width = sizeof(Word);
  constexpr Index per_round = block_threads * words_per_thread;
  const std::int64_t rounds = count > 0 ? (static_cast<std::int64_t>(count) + lead + per_round - 1) / per_round : 0;
  const auto units = [&](std::int64_t round) -> UnitRange<Index> {
    const Index begin = static_cast<Index>(round) * per_round;
    return {first + (begin < lead ? 0 : begin - lead), first + min(begin + per_round - lead, count) - 1};
  };

  // Packed words are loaded before their places are found, unless that takes a search, which needs the registers.
  constexpr bool loads_first = unpack && has_runs<Map>;
  const auto move_round = [&](std::int64_t round, const typename Map::Tile& tile) {
    const Index idle = units(round).first;
    const Index begin = static_cast<Index>(round) * per_round + threadIdx.x - lead;
    const Address packed =
        packed_first + static_cast<Address>(round * per_round + threadIdx.x - static_cast<std::int64_t>(lead)) * width;
    Index unit_of[words_per_thread];
    Address user[words_per_thread];
    Word words[words_per_thread] = {};
    bool inside[words_per_thread];
#pragma unroll
    for (int u = 0; u < words_per_thread; ++u) {
      const Index item = begin + u * block_threads;  // wraps to a large number before the first
      inside[u] = item < count;
      // Idle threads compute the place of a word of the round, so that there is no branch.
      unit_of[u] = inside[u] ? first + item : idle;
    }
    if constexpr (loads_first) {
#pragma unroll
      for (int u = 0; u < words_per_thread; ++u)
        memory.load_if(inside[u], packed + u * (block_threads * width), words[u]);
    }
    find_offsets(job.map, unit_of, tile, user);
    if constexpr (!loads_first) {
#pragma unroll
      for (int u = 0; u < words_per_thread; ++u)
        memory.load_if(inside[u], unpack ? packed + u * (block_threads * width) : job.user + user[u], words[u]);
    }
#pragma unroll
    for (int u = 0; u < words_per_thread; ++u)
      memory.store_if(inside[u], unpack ? job.user + user[u] : packed + u * (block_threads * width), words[u]);
  };
  __shared__ SharedOf<Map> shared;
  constexpr int bytes = per_round * sizeof(Word);
  if (count > blockDim.x) {  // blocks of block_threads
    for_each_round(job.map, launch.consecutive_rounds, shared, rounds, bytes, units, move_round);
  } else {  // a word per thread
    const auto all = [&](std::int64_t) { return UnitRange<Index>{first, first + count - 1}; };
    for_each_round(job.map, launch.consecutive_rounds, shared, count > 0 ? 1 : 0, bytes, all,
                   [&](std::int64_t, const typename Map::Tile& tile) {
                     if (threadIdx.x < count) move_word<Word, unpack>(job, memory, first + threadIdx.x, tile);
                   });
  }

  move_ragged_ends<unpack>(job, memory, range);
  complete(launch.completion);
}

/// A thread for each word, and nothing that such a thread does not need: short messages take the least time so, and
/// those beyond the caches have the most threads that wait for memory.
template <class Word, bool unpack, class Map>
__global__ void __launch_bounds__(most_threads, resident_threads / most_threads)
    single_kernel(const __grid_constant__ Launch<Map> launch) {
  using Index = typename Map::Index;
  const Job<Map>& job = launch.job;
  const DeviceMemory& memory = launch.memory;
  const WordRange range = whole_words(job.begin, job.end, static_cast<std::int32_t>(sizeof(Word)));
  const Index item = blockIdx.x * blockDim.x + threadIdx.x;
  if (item < static_cast<Index>(range.last - range.first))
    move_word<Word, unpack>(job, memory, static_cast<Index>(range.first) + item, NoTile());
  move_ragged_ends<unpack>(job, memory, range);
  complete(launch.completion);
}

/// 2^threads_log threads for each run; a thread with two runs loads from both before it stores.
template <class Word, bool unpack>
__global__ void __launch_bounds__(entry_threads, entry_blocks)
    entries_kernel(const __grid_constant__ Launch<EntryMap> launch) {
  using Index = EntryMap::Index;
  const Job<EntryMap>& job = launch.job;
  const DeviceMemory& memory = launch.memory;
  const int threads = 1 << job.map.threads_log;
  const int lane = static_cast<int>(threadIdx.x) & (threads - 1);
  const Index step = (gridDim.x * blockDim.x) >> job.map.threads_log;
  for (Index index = job.map.first + ((blockIdx.x * blockDim.x + threadIdx.x) >> job.map.threads_log);
       index < job.map.last; index += entries_per_thread * step) {
    EntryWords entry[entries_per_thread];
    Word words[entries_per_thread][words_per_entry] = {};
#pragma unroll
    for (int e = 0; e < entries_per_thread; ++e) {
      const bool inside = index + e * step < job.map.last;
      entry[e] = entry_words<Word>(job, inside ? index + e * step : index);
      const Address skipped = static_cast<Address>(lane) * sizeof(Word);
      entry[e] = {entry[e].user + skipped, entry[e].packed + skipped, inside ? entry[e].count - lane : 0};
    }
    const auto each = [&](const auto& access) {
#pragma unroll
      for (int e = 0; e < entries_per_thread; ++e)
#pragma unroll
        for (int w = 0; w < words_per_entry; ++w) {
          const bool inside = w * threads < entry[e].count;
          const Address further = static_cast<Address>(w * threads) * sizeof(Word);
          access(entry[e].user + further, entry[e].packed + further, inside, words[e][w]);
        }
    };
    each([&](Address user, Address packed, bool inside, Word& word) {
      memory.load_if(inside, unpack ? packed : user, word);
    });
    each([&](Address user, Address packed, bool inside, const Word& word) {
      memory.store_if(inside, unpack ? user : packed, word);
    });
#pragma unroll
    for (int e = 0; e < entries_per_thread; ++e)
      for (int w = words_per_entry * threads; w < entry[e].count; w += threads) {
        const Address user = entry[e].user + static_cast<Address>(w) * sizeof(Word);
        const Address packed = entry[e].packed + static_cast<Address>(w) * sizeof(Word);
        memory.template store<Word>(unpack ? user : packed, memory.template load<Word>(unpack ? packed : user));
      }
  }
  complete(launch.completion);
}

template <bool unpack, class Map>
__global__ void __launch_bounds__(most_threads, 1) gather_kernel(const __grid_constant__ Launch<Map> launch) {
  using Index = typename Map::Index;
  const Job<Map>& job = launch.mapped_job();
  const DeviceMemory& memory = launch.memory;
  const PackedWords words = packed_words(job.packed, job.begin, job.end);
  const int bytes = 16 * static_cast<int>(blockDim.x);
  const auto units = [&](std::int64_t round) -> UnitRange<Index> {
    const std::int64_t low = words.position + bytes * round;
    return {static_cast<Index>(max(low, job.begin)), static_cast<Index>(min(low + bytes, job.end) - 1)};
  };
  __shared__ SharedOf<Map> shared;
  for_each_round(job.map, launch.consecutive_rounds, shared, (words.count + blockDim.x - 1) / blockDim.x, bytes, units,
                 [&](std::int64_t round, const typename Map::Tile& tile) {
                   const std::int64_t index = round * blockDim.x + threadIdx.x;
                   if (index < words.count)
                     move_packed_word<unpack>(job, memory, words, index, job.begin, job.end, tile);
                 });
  complete(launch.completion);
}

/// Moves packed bytes between memory and the block's image of them: whole words, then bytes.
template <bool to_image, class Memory>
__device__ __forceinline__ void move_image(const Memory& memory, Address packed, int bytes, std::uint32_t* image) {
  auto* image_bytes = reinterpret_cast<std::uint8_t*>(image);
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  for (int i = 16 * thread; i + 16 <= bytes; i += 16 * threads) {
    auto* word = reinterpret_cast<Word16*>(image_bytes + i);
    if constexpr (to_image)
      *word = memory.template load<Word16>(packed + static_cast<Address>(i));
    else
      memory.template store<Word16>(packed + static_cast<Address>(i), *word);
  }
  const int i = (bytes & ~15) + thread;
  if (i >= bytes) return;
  if constexpr (to_image)
    image_bytes[i] = memory.template load<std::uint8_t>(packed + static_cast<Address>(i));
  else
    memory.template store<std::uint8_t>(packed + static_cast<Address>(i), image_bytes[i]);
}

/// Moves the bytes before and behind the groups. Not inlined: its registers would be the whole kernel's.
template <bool unpack, class Map>
__device__ __noinline__ void move_ends(const Launch<Map>& launch, const GroupRange& groups) {
  const Job<Map>& job = launch.job;
  const DeviceMemory& memory = launch.memory;
  const PackedWords head = packed_words(job.packed, job.begin, groups.head_end);
  const PackedWords tail = packed_words(job.packed, groups.tail_begin, job.end);
  for (std::int64_t i = threadIdx.x; i < head.count + tail.count; i += blockDim.x) {
    const bool in_head = i < head.count;
    move_packed_word<unpack>(job, memory, in_head ? head : tail, in_head ? i : i - head.count,
                             in_head ? job.begin : groups.tail_begin, in_head ? groups.head_end : job.end,
                             job.map.whole());
  }
}

/// Each warp moves a group of 32 runs at a time. The images of a block's groups lie one behind the other in shared
/// memory, so that the packed side is accessed in whole segments, which a group alone is not. Two images take turns, so
/// that one barrier per round is enough.
template <bool unpack, int words, class Map>
__global__ void __launch_bounds__(block_threads, runs_blocks) runs_kernel(const __grid_constant__ Launch<Map> launch) {
  const Job<Map>& job = launch.job;
  const DeviceMemory& memory = launch.memory;
  const GroupRange groups = whole_groups(job);
  const int lane = static_cast<int>(threadIdx.x % lanes);
  const int block = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  const int run = static_cast<int>(job.map.run_bytes);
  __shared__ alignas(16) std::uint32_t images[2][block_threads * words + lanes];
  int turn = 0;

  for (int base = groups.first * lanes + static_cast<int>(blockIdx.x) * block; base < groups.runs_end;
       base += static_cast<int>(gridDim.x) * block, turn ^= 1) {
    std::uint32_t* const block_image = images[turn];
    std::uint32_t* const image = block_image + thread / lanes * (lanes / 4) * run;
    const int bytes = run * min(groups.runs_end - base, block);
    const bool active = base + thread < groups.runs_end;
    const Address user = active ? run_address(job, base + thread) : 0;
    const Address packed = job.packed + static_cast<Address>(base) * static_cast<Address>(run);
    const int word = access_width(__reduce_or_sync(~0u, static_cast<unsigned>(user)));
    std::uint32_t x[words + 1] = {};
    if constexpr (unpack) {
      move_image<true>(memory, packed, bytes, block_image);
      __syncthreads();
      if (active) {
        run_from_image(lane, run, image, x);
        store_run(memory, user, run, word, x);
      }
    } else {
      if (active) load_run(memory, user, run, word, x);
      const std::uint32_t next = __shfl_down_sync(~0u, x[0], 1);
      if (active) run_to_image(lane, run, x, next, image);
      __syncthreads();
      move_image<false>(memory, packed, bytes, block_image);
    }
  }

  if (blockIdx.x == gridDim.x - 1) move_ends<unpack>(launch, groups);
  complete(launch.completion);
}

// --- launches -------------------------------------------------------------------------------------------------------

template <class Map>
using Kernel = void (*)(Launch<Map>);

template <class Word, class Map>
Kernel<Map> words_instance(bool unpack) {
  // The same choice as visit_map's: wide positions are gathered, and narrow words have one strided instance.
  constexpr bool used = (sizeof(typename Map::Index) == 4 ||
                         std::is_same_v<Map, GeneralMap>)&&(sizeof(Word) >= 4 || Map::dims == datatype::max_dims);
  if constexpr (used)
    return unpack ? words_kernel<Word, true, Map> : words_kernel<Word, false, Map>;
  else
    return nullptr;
}

template <class Word, class Map>
Kernel<Map> single_instance(bool unpack) {
  return unpack ? single_kernel<Word, true, Map> : single_kernel<Word, false, Map>;
}

template <class Map>
Kernel<Map> single_instance(bool unpack, int word) {
  if constexpr (sizeof(typename Map::Index) == 4 && has_runs<Map>)
    return word == 16  ? single_instance<Word16, Map>(unpack)
           : word == 8 ? single_instance<std::uint64_t, Map>(unpack)
                       : single_instance<std::uint32_t, Map>(unpack);
  else
    return nullptr;
}

template <int words, class Map>
Kernel<Map> runs_instance(bool unpack) {
  if constexpr (requires { &Map::run_offset; } && sizeof(typename Map::Index) == 4)
    return unpack ? runs_kernel<true, words, Map> : runs_kernel<false, words, Map>;
  else
    return nullptr;
}

template <class Map>
Kernel<Map> gather_instance(bool unpack) {
  if constexpr (requires { &Map::place; })
    return unpack ? gather_kernel<true, Map> : gather_kernel<false, Map>;
  else
    return nullptr;
}

template <class Map>
Kernel<Map> words_instance(bool unpack, int word) {
  return visit_word(word, [&](auto type) { return words_instance<typename decltype(type)::type, Map>(unpack); });
}

/// Null for words of less than 4 bytes.
template <class Word>
Kernel<EntryMap> entries_instance(bool unpack) {
  if constexpr (sizeof(Word) >= 4)
    return unpack ? entries_kernel<Word, true> : entries_kernel<Word, false>;
  else
    return nullptr;
}

template <>
Kernel<EntryMap> words_instance<EntryMap>(bool unpack, int word) {
  return visit_word(word, [&](auto type) { return entries_instance<typename decltype(type)::type>(unpack); });
}

template <class Map>
Kernel<Map> instance(const KernelArgs& args) {
  const bool unpack = args.unpack != 0;
  switch (args.method) {
    case Method::gather:
      return gather_instance<Map>(unpack);
    case Method::runs:
      return args.shape.run <= 4 * few_lane_words ? runs_instance<few_lane_words, Map>(unpack)
                                                  : runs_instance<lane_words, Map>(unpack);
    default:
      return args.single != 0 ? single_instance<Map>(unpack, args.word) : words_instance<Map>(unpack, args.word);
  }
}

template <class Map>
cudaError_t load_instances() {
  for (const bool unpack : {false, true}) {
    Kernel<Map> kernels[] = {gather_instance<Map>(unpack),           runs_instance<few_lane_words, Map>(unpack),
                             runs_instance<lane_words, Map>(unpack), words_instance<Map>(unpack, 1),
                             words_instance<Map>(unpack, 4),         words_instance<Map>(unpack, 8),
                             words_instance<Map>(unpack, 16),        single_instance<Map>(unpack, 4),
                             single_instance<Map>(unpack, 8),        single_instance<Map>(unpack, 16)};
    for (const Kernel<Map> kernel : kernels)
      if (const cudaError_t error = load(reinterpret_cast<const void*>(kernel)); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

template <class... Maps>
cudaError_t load_instances_of(std::type_identity<std::tuple<Maps...>>) {
  cudaError_t error = cudaSuccess;
  ((error = error == cudaSuccess ? load_instances<Maps>() : error), ...);
  return error;
}

}  // namespace

int launch_kernel(const KernelArgs& args, void* stream) {
  return visit_map(args, [&](auto map) -> int {
    using Map = typename decltype(map)::type;
    const Kernel<Map> kernel = instance<Map>(args);
    if (kernel == nullptr) return cudaErrorInvalidValue;  // not a plan of plan.cpp
    const DeviceMemory memory = {args.streaming_loads != 0, args.streaming_stores != 0};
    Launch<Map> launch{args.completion, args.consecutive_rounds, memory, Job<Map>(args)};
    launch.add(args);
    void* parameters[] = {&launch};
    return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(static_cast<unsigned>(args.grid)),
                            dim3(static_cast<unsigned>(args.block)), parameters, 0, static_cast<cudaStream_t>(stream));
  });
}

int load_kernels() {
  return load_instances_of(std::type_identity<AllMaps>());
}

}  // namespace gpudt::device::cuda
