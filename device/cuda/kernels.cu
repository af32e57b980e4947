// The pack and unpack kernels: kernel_body.hpp on GPU threads.
//
// There is one kernel for each method, direction and map, and for Method::words each word width. Blocks that are all
// resident at once work through tiles of the packed stream; each block ends once, and the last to end sets the flag.
#include "device/cuda/kernels.hpp"

#include <cuda_runtime.h>

#include "device/kernel_body.hpp"

namespace gpudt::device::cuda {
namespace {

/// 64 registers per thread: enough for every kernel, and four blocks of 256 threads per multiprocessor.
constexpr int most_threads = 1024;
constexpr int runs_threads = 256;
constexpr int runs_blocks = 4;
/// Entries of an irregular list that a block keeps in shared memory for a tile.
constexpr int list_capacity = 1024;
/// Tiles begin at packed addresses that are multiples of this, so that warps write full segments.
constexpr Address segment = 128;

struct Completion {
  unsigned* counter;
  volatile std::uint32_t* flag;
  std::uint32_t flag_value;
};

/// What a kernel gets, in constant space.
template <class Map>
struct Launch {
  Job<Map> job;
  Completion completion;
  bool streaming;
};

// --- access ---------------------------------------------------------------------------------------------------------

/// ld/st through global memory with one predicate for each caching policy: no branches, so that a thread's loads are
/// issued one after the other. `kept`: the usual policy; `streamed`: not to be kept. Neither: no access.
template <class Word>
struct Access;

#define GPUDT_ACCESS(WORD, SUFFIX, REGISTER, CONSTRAINT)                                              \
  template <>                                                                                         \
  struct Access<WORD> {                                                                               \
    static __device__ __forceinline__ void load(Address from, bool kept, bool streamed, WORD& word) { \
      REGISTER value = word;                                                                          \
      asm volatile(                                                                                   \
          "{.reg .pred k, s; setp.ne.u32 k, %2, 0; setp.ne.u32 s, %3, 0;"                             \
          "@k ld.global.ca." SUFFIX " %0, [%1]; @s ld.global.cs." SUFFIX " %0, [%1];}"                \
          : "+" CONSTRAINT(value)                                                                     \
          : "l"(from), "r"(static_cast<unsigned>(kept)), "r"(static_cast<unsigned>(streamed)));       \
      word = static_cast<WORD>(value);                                                                \
    }                                                                                                 \
    static __device__ __forceinline__ void store(Address to, bool kept, bool streamed, WORD word) {   \
      const REGISTER value = word;                                                                    \
      asm volatile(                                                                                   \
          "{.reg .pred k, s; setp.ne.u32 k, %2, 0; setp.ne.u32 s, %3, 0;"                             \
          "@k st.global.wb." SUFFIX " [%0], %1; @s st.global.cs." SUFFIX " [%0], %1;}" ::"l"(to),     \
          CONSTRAINT(value), "r"(static_cast<unsigned>(kept)), "r"(static_cast<unsigned>(streamed))   \
          : "memory");                                                                                \
    }                                                                                                 \
  }

GPUDT_ACCESS(std::uint8_t, "u8", std::uint32_t, "r");
GPUDT_ACCESS(std::uint16_t, "u16", std::uint32_t, "r");
GPUDT_ACCESS(std::uint32_t, "u32", std::uint32_t, "r");
GPUDT_ACCESS(std::uint64_t, "u64", std::uint64_t, "l");
#undef GPUDT_ACCESS

template <>
struct Access<Word16> {
  static __device__ __forceinline__ void load(Address from, bool kept, bool streamed, Word16& word) {
    asm volatile(
        "{.reg .pred k, s; setp.ne.u32 k, %5, 0; setp.ne.u32 s, %6, 0;"
        "@k ld.global.ca.v4.u32 {%0, %1, %2, %3}, [%4]; @s ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];}"
        : "+r"(word.lane[0]), "+r"(word.lane[1]), "+r"(word.lane[2]), "+r"(word.lane[3])
        : "l"(from), "r"(static_cast<unsigned>(kept)), "r"(static_cast<unsigned>(streamed)));
  }
  static __device__ __forceinline__ void store(Address to, bool kept, bool streamed, const Word16& word) {
    asm volatile(
        "{.reg .pred k, s; setp.ne.u32 k, %5, 0; setp.ne.u32 s, %6, 0;"
        "@k st.global.wb.v4.u32 [%4], {%0, %1, %2, %3}; @s st.global.cs.v4.u32 [%4], {%0, %1, %2, %3};}" ::"r"(
            word.lane[0]),
        "r"(word.lane[1]), "r"(word.lane[2]), "r"(word.lane[3]), "l"(to), "r"(static_cast<unsigned>(kept)),
        "r"(static_cast<unsigned>(streamed))
        : "memory");
  }
};

/// Global memory; data beyond the caches are marked as not to be kept there.
struct DeviceMemory {
  bool streaming;

  template <class Word>
  __device__ __forceinline__ Word load(Address address) const {
    Word word = {};
    Access<Word>::load(address, !streaming, streaming, word);
    return word;
  }
  template <class Word>
  __device__ __forceinline__ void store(Address address, const Word& word) const {
    Access<Word>::store(address, !streaming, streaming, word);
  }
};

// --- completion -----------------------------------------------------------------------------------------------------

/// To be called by all threads, at the end. The barrier puts the block's writes before thread 0's fence, which makes
/// them visible to the whole system before the block is counted; the last block's fence puts every counted block's
/// writes before the flag.
__device__ __forceinline__ void complete(const Completion& completion) {
  if (completion.flag == nullptr) return;
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence_system();
  if (gridDim.x > 1) {
    // Wraps to zero with the last block: ready for the next launch.
    if (atomicInc(completion.counter, gridDim.x - 1) != gridDim.x - 1) return;
    __threadfence_system();
  }
  *completion.flag = completion.flag_value;
}

// --- tiles of irregular lists ---------------------------------------------------------------------------------------

struct ListShared {
  std::int64_t first, last;
  std::int64_t prefix[list_capacity + 1];
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

/// The tile of units first .. last, which are the same for all threads of the block: one search for each end, then
/// its prefix sums go to shared memory if they fit. All threads must call it; it ends with a barrier.
template <class Map>
__device__ __forceinline__ typename Map::Tile open_tile(const Map& map, typename Map::Index first,
                                                        typename Map::Index last, ListShared& shared) {
  const auto begin = map.spot(first), end = map.spot(last);
  ListTile tile = map.whole();
  if (begin.traversal == end.traversal) {
    const unsigned warp = threadIdx.x / 32;
    if (warp == 0) {
      const std::int64_t low = warp_find_block(map.prefix, map.list_count, begin.position);
      if (threadIdx.x == 0) shared.first = low;
    }
    if (warp == (blockDim.x - 1) / 32) {
      const std::int64_t high = warp_find_block(map.prefix, map.list_count, end.position);
      if (threadIdx.x % 32 == 0) shared.last = high;
    }
    __syncthreads();
    tile = {shared.first, shared.last - shared.first + 1, map.prefix + shared.first};
  }
  if (tile.count <= list_capacity) {
    for (std::int64_t i = threadIdx.x; i <= tile.count; i += blockDim.x) shared.prefix[i] = tile.prefix[i];
    tile.prefix = shared.prefix;
  }
  __syncthreads();
  return tile;
}

template <class Map>
constexpr bool is_tiled = !std::is_same_v<typename Map::Tile, NoTile>;

// --- kernels --------------------------------------------------------------------------------------------------------

/// The first word of the tile that begins with item `base`.
template <class Index>
__device__ __forceinline__ Index first_word(Index base, Index lead) {
  return base < lead ? 0 : base - lead;
}

template <class Word, bool unpack, class Map>
__global__ void __launch_bounds__(most_threads, 1) words_kernel(const __grid_constant__ Launch<Map> launch) {
  using Index = typename Map::Index;
  const Job<Map>& job = launch.job;
  const DeviceMemory memory{launch.streaming};
  const WordRange range = whole_words(job.begin, job.end, static_cast<std::int32_t>(sizeof(Word)));
  const auto first = static_cast<Index>(range.first);
  const auto count = static_cast<Index>(range.last - range.first);
  const Address packed_first = job.packed + static_cast<Address>(range.first) * sizeof(Word);
  // Items 0 .. lead-1 stand for the words between the segment's beginning and the first word.
  const auto lead = static_cast<Index>((packed_first & (segment - 1)) / sizeof(Word));
  const Index per_tile = blockDim.x * words_per_thread;
  __shared__ std::conditional_t<is_tiled<Map>, ListShared, NoTile> shared;

  const Index items = count > 0 ? count + lead : 0;

  for (Index base = blockIdx.x * per_tile; base < items; base += gridDim.x * per_tile) {
    typename Map::Tile tile;
    if constexpr (is_tiled<Map>) {
      const Index low = first_word(base, lead);
      const Index high = min(base + per_tile - lead, count) - 1;
      tile = open_tile(job.map, first + low, first + high, shared);
    }
    Address to[words_per_thread];
    Word words[words_per_thread] = {};
    bool inside[words_per_thread];
#pragma unroll
    for (int u = 0; u < words_per_thread; ++u) {
      const Index item = base + u * blockDim.x + threadIdx.x - lead;  // wraps to a large number before the first
      inside[u] = item < count;
      // Idle threads compute the place of a word of the tile, so that there is no branch.
      const Index word = inside[u] ? item : first_word(base, lead);
      const Address user = job.user + static_cast<Address>(job.map.place(first + word, tile).offset);
      const Address packed = packed_first + static_cast<Address>(word) * sizeof(Word);
      to[u] = unpack ? user : packed;
      Access<Word>::load(unpack ? packed : user, inside[u] && !launch.streaming, inside[u] && launch.streaming,
                         words[u]);
    }
#pragma unroll
    for (int u = 0; u < words_per_thread; ++u)
      Access<Word>::store(to[u], inside[u] && !launch.streaming, inside[u] && launch.streaming, words[u]);
    if constexpr (is_tiled<Map>) __syncthreads();  // the next tile overwrites this one's prefix sums
  }

  if (blockIdx.x == gridDim.x - 1) {
    const std::int64_t head = range.head_end - job.begin, tail = job.end - range.tail_begin;
    for (std::int64_t i = threadIdx.x; i < head + tail; i += blockDim.x)
      move_byte<unpack>(job, memory, i < head ? job.begin + i : range.tail_begin + (i - head));
  }
  complete(launch.completion);
}

template <bool unpack, class Map>
__global__ void __launch_bounds__(most_threads, 1) gather_kernel(const __grid_constant__ Launch<Map> launch) {
  using Index = typename Map::Index;
  const Job<Map>& job = launch.job;
  const DeviceMemory memory{launch.streaming};
  const PackedWords words = packed_words(job.packed, job.begin, job.end);
  __shared__ std::conditional_t<is_tiled<Map>, ListShared, NoTile> shared;

  for (std::int64_t base = static_cast<std::int64_t>(blockIdx.x) * blockDim.x; base < words.count;
       base += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    typename Map::Tile tile;
    if constexpr (is_tiled<Map>) {
      const std::int64_t low = words.position + 16 * base, high = low + 16 * blockDim.x;
      tile = open_tile(job.map, static_cast<Index>(max(low, job.begin)), static_cast<Index>(min(high, job.end) - 1),
                       shared);
    }
    const std::int64_t index = base + threadIdx.x;
    if (index < words.count) move_packed_word<unpack>(job, memory, words, index, job.begin, job.end, tile);
    if constexpr (is_tiled<Map>) __syncthreads();
  }
  complete(launch.completion);
}

/// Each warp moves groups of 32 runs through its own piece of shared memory.
template <bool unpack, class Map>
__global__ void __launch_bounds__(runs_threads, runs_blocks) runs_kernel(const __grid_constant__ Launch<Map> launch) {
  const Job<Map>& job = launch.job;
  const DeviceMemory memory{launch.streaming};
  const GroupRange groups = whole_groups(job);
  const int lane = static_cast<int>(threadIdx.x % lanes), warp = static_cast<int>(threadIdx.x / lanes);
  const int bytes = static_cast<int>(job.map.run_bytes);
  __shared__ alignas(16) std::uint32_t images[runs_threads / lanes][group_words];
  std::uint32_t* image = images[warp];

  for (std::int64_t group = groups.first + blockIdx.x * (runs_threads / lanes) + warp; group < groups.last;
       group += gridDim.x * (runs_threads / lanes)) {
    const Address packed = job.packed + static_cast<Address>(group * groups.bytes);
    const Address user = lane_run(job, group, lane);
    std::uint32_t x[lane_words + 1];
    if constexpr (unpack) {
      for (int i = lane; i < 2 * bytes; i += lanes)
        *reinterpret_cast<Word16*>(image + 4 * i) = memory.load<Word16>(packed + 16 * static_cast<Address>(i));
      __syncwarp();
      run_from_image(lane, bytes, image, x);
      store_run(memory, user, bytes, job.user_word, x);
    } else {
      load_run(memory, user, bytes, job.user_word, x);
      run_to_image(lane, bytes, x, __shfl_down_sync(~0u, x[0], 1), image);
      __syncwarp();
      for (int i = lane; i < 2 * bytes; i += lanes)
        memory.store<Word16>(packed + 16 * static_cast<Address>(i), *reinterpret_cast<Word16*>(image + 4 * i));
    }
    __syncwarp();  // the next group overwrites the image
  }

  if (blockIdx.x == gridDim.x - 1) {
    const std::int64_t head_end = groups.first * groups.bytes, tail_begin = groups.last * groups.bytes;
    const PackedWords head = packed_words(job.packed, job.begin, head_end);
    const PackedWords tail = packed_words(job.packed, tail_begin, job.end);
    for (std::int64_t i = threadIdx.x; i < head.count + tail.count; i += blockDim.x) {
      const bool in_head = i < head.count;
      move_packed_word<unpack>(job, memory, in_head ? head : tail, in_head ? i : i - head.count,
                               in_head ? job.begin : tail_begin, in_head ? head_end : job.end, job.map.whole());
    }
  }
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

template <class Map>
Kernel<Map> runs_instance(bool unpack) {
  if constexpr (requires(Map map) { map.run_bytes; } && sizeof(typename Map::Index) == 4)
    return unpack ? runs_kernel<true, Map> : runs_kernel<false, Map>;
  else
    return nullptr;
}

template <class Map>
Kernel<Map> gather_instance(bool unpack) {
  return unpack ? gather_kernel<true, Map> : gather_kernel<false, Map>;
}

template <class Map>
Kernel<Map> words_instance(bool unpack, int word) {
  switch (word) {
    case 16:
      return words_instance<Word16, Map>(unpack);
    case 8:
      return words_instance<std::uint64_t, Map>(unpack);
    case 4:
      return words_instance<std::uint32_t, Map>(unpack);
    case 2:
      return words_instance<std::uint16_t, Map>(unpack);
    default:
      return words_instance<std::uint8_t, Map>(unpack);
  }
}

template <class Map>
Kernel<Map> instance(const KernelArgs& args) {
  const bool unpack = args.unpack != 0;
  switch (args.method) {
    case Method::gather:
      return gather_instance<Map>(unpack);
    case Method::runs:
      return runs_instance<Map>(unpack);
    default:
      return words_instance<Map>(unpack, args.word);
  }
}

/// Asking for its attributes loads a kernel.
cudaError_t load(const void* kernel) {
  cudaFuncAttributes attributes;
  return kernel == nullptr ? cudaSuccess : cudaFuncGetAttributes(&attributes, kernel);
}

template <class Map>
cudaError_t load_instances() {
  for (const bool unpack : {false, true}) {
    Kernel<Map> kernels[] = {gather_instance<Map>(unpack),   runs_instance<Map>(unpack),
                             words_instance<Map>(unpack, 1), words_instance<Map>(unpack, 2),
                             words_instance<Map>(unpack, 4), words_instance<Map>(unpack, 8),
                             words_instance<Map>(unpack, 16)};
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
    Launch<Map> launch{Job<Map>(args), {args.counter, args.flag, args.flag_value}, args.streaming != 0};
    void* parameters[] = {&launch};
    return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(static_cast<unsigned>(args.grid)),
                            dim3(static_cast<unsigned>(args.block)), parameters, 0, static_cast<cudaStream_t>(stream));
  });
}

int load_kernels() {
  return load_instances_of(std::type_identity<AllMaps>());
}

}  // namespace gpudt::device::cuda
