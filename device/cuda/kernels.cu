// The pack and unpack kernels: kernel_body.hpp on GPU threads.
//
// There is one kernel for each method, direction and map, and for Method::words each word width. Blocks that are all
// resident at once work through tiles of the packed stream; each block ends once, and the last to end sets the flag.
#include "device/cuda/kernels.hpp"

#include <cuda_runtime.h>

#include <algorithm>

#include "device/kernel_body.hpp"

namespace gpudt::device::cuda {
namespace {

/// Threads that a multiprocessor holds, of the architecture that is compiled for.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 800 || (__CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200))
constexpr int resident_threads = 2048;
#else
constexpr int resident_threads = 1536;
#endif
/// 64 registers per thread: enough for every kernel, and four blocks of 256 threads per multiprocessor.
constexpr int most_threads = 1024;
/// Short runs and lists wait, the latter twice, for the displacement and for the data: as many threads as there can be,
/// with fewer registers, hide it.
constexpr int runs_blocks = resident_threads / block_threads;
constexpr int entry_threads = 512;
constexpr int entry_blocks = resident_threads / entry_threads;
/// Entries of an irregular list that a block keeps in shared memory.
constexpr int list_capacity = 1536;
/// Entries that each thread brings there at once.
constexpr int staged_at_once = 3;
/// Entries that a window takes beyond those expected, and the most rounds that it serves.
constexpr int list_slack = 64;
constexpr int most_rounds = 16;
/// Nodes of a general type that travel in the kernel's parameters.
constexpr int parameter_nodes = 8;
/// Rounds begin at packed addresses that are multiples of this, so that warps write full segments.
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
  int consecutive_rounds;
  bool streaming;

  __device__ __forceinline__ const Job<Map>& mapped_job() const { return job; }
  void add(const KernelArgs&) {}
};

/// General types: with the nodes, if they are few, so that a traversal reads only lists from memory.
template <>
struct Launch<GeneralMap> {
  Job<GeneralMap> job;
  Completion completion;
  int consecutive_rounds;
  bool streaming;
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

/// Calls round(i, tile) for the rounds 0 .. rounds-1 that are this block's: for irregular lists some consecutive ones,
/// then those as many further on, so that all blocks together write to few pages of the host.
template <class Map, class Shared, class Units, class Round>
__device__ __forceinline__ void for_each_round(const Launch<Map>& launch, Shared& shared, std::int64_t rounds,
                                               int bytes, const Units& units, const Round& round) {
  if constexpr (is_tiled<Map>) {
    ListWindow<Map> window(launch.job.map, shared);
    const std::int64_t share = min((rounds + gridDim.x - 1) / gridDim.x, std::int64_t{launch.consecutive_rounds});
    for (std::int64_t begin = blockIdx.x * share; begin < rounds; begin += gridDim.x * share) {
      const std::int64_t end = min(rounds, begin + share);
      for (std::int64_t i = begin; i < end;)
        for (int left = window.open(i, end - i, bytes, units); left > 0; --left, ++i) round(i, window.tile());
    }
  } else {
    for (std::int64_t i = blockIdx.x; i < rounds; i += gridDim.x) round(i, NoTile{});
  }
}

// --- kernels --------------------------------------------------------------------------------------------------------

template <class Index>
struct UnitRange {
  Index first, last;
};

template <class Word, bool unpack, class Map>
__global__ void __launch_bounds__(most_threads, 1) words_kernel(const __grid_constant__ Launch<Map> launch) {
  using Index = typename Map::Index;
  const Job<Map>& job = launch.mapped_job();
  const DeviceMemory memory{launch.streaming};
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

  const auto move_round = [&](std::int64_t round, const typename Map::Tile& tile) {
    const Index idle = units(round).first;
    const Index begin = static_cast<Index>(round) * per_round + threadIdx.x - lead;
    const Address packed =
        packed_first + static_cast<Address>(round * per_round + threadIdx.x - static_cast<std::int64_t>(lead)) * width;
    Address user[words_per_thread];
    Word words[words_per_thread] = {};
    bool inside[words_per_thread];
    // All places before the first load of data: what lists look up for them is then under way at the same time.
#pragma unroll
    for (int u = 0; u < words_per_thread; ++u) {
      const Index item = begin + u * block_threads;  // wraps to a large number before the first
      inside[u] = item < count;
      // Idle threads compute the place of a word of the round, so that there is no branch.
      user[u] = job.user + static_cast<Address>(job.map.place(inside[u] ? first + item : idle, tile).offset);
    }
#pragma unroll
    for (int u = 0; u < words_per_thread; ++u)
      Access<Word>::load(unpack ? packed + u * (block_threads * width) : user[u], inside[u] && !launch.streaming,
                         inside[u] && launch.streaming, words[u]);
#pragma unroll
    for (int u = 0; u < words_per_thread; ++u)
      Access<Word>::store(unpack ? user[u] : packed + u * (block_threads * width), inside[u] && !launch.streaming,
                          inside[u] && launch.streaming, words[u]);
  };
  __shared__ SharedOf<Map> shared;
  constexpr int bytes = per_round * sizeof(Word);
  if (count > blockDim.x) {  // blocks of block_threads
    for_each_round(launch, shared, rounds, bytes, units, move_round);
  } else {  // a word per thread: the least work for the least latency
    const auto all = [&](std::int64_t) { return UnitRange<Index>{first, first + count - 1}; };
    for_each_round(launch, shared, count > 0 ? 1 : 0, bytes, all, [&](std::int64_t, const typename Map::Tile& tile) {
      if (threadIdx.x < count) move_word<Word, unpack>(job, memory, first + threadIdx.x, tile);
    });
  }

  if (blockIdx.x == gridDim.x - 1) {
    const std::int64_t head = range.head_end - job.begin, tail = job.end - range.tail_begin;
    for (std::int64_t i = threadIdx.x; i < head + tail; i += blockDim.x)
      move_byte<unpack>(job, memory, i < head ? job.begin + i : range.tail_begin + (i - head));
  }
  complete(launch.completion);
}

/// 2^threads_log threads for each run; whoever has two runs loads from both before it stores.
template <class Word, bool unpack>
__global__ void __launch_bounds__(entry_threads, entry_blocks)
    entries_kernel(const __grid_constant__ Launch<EntryMap> launch) {
  using Index = EntryMap::Index;
  const Job<EntryMap>& job = launch.job;
  const DeviceMemory memory{launch.streaming};
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
          access(entry[e].user + further, entry[e].packed + further, inside && !launch.streaming,
                 inside && launch.streaming, words[e][w]);
        }
    };
    each([](Address user, Address packed, bool kept, bool streamed, Word& word) {
      Access<Word>::load(unpack ? packed : user, kept, streamed, word);
    });
    each([](Address user, Address packed, bool kept, bool streamed, Word& word) {
      Access<Word>::store(unpack ? user : packed, kept, streamed, word);
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
  const DeviceMemory memory{launch.streaming};
  const PackedWords words = packed_words(job.packed, job.begin, job.end);
  const int bytes = 16 * static_cast<int>(blockDim.x);
  const auto units = [&](std::int64_t round) -> UnitRange<Index> {
    const std::int64_t low = words.position + bytes * round;
    return {static_cast<Index>(max(low, job.begin)), static_cast<Index>(min(low + bytes, job.end) - 1)};
  };
  __shared__ SharedOf<Map> shared;
  for_each_round(launch, shared, (words.count + blockDim.x - 1) / blockDim.x, bytes, units,
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

/// What lies before and behind the groups. Not inlined: its registers would be the whole kernel's.
template <bool unpack, class Map>
__device__ __noinline__ void move_ends(const Launch<Map>& launch, const GroupRange& groups) {
  const Job<Map>& job = launch.job;
  const DeviceMemory memory{launch.streaming};
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
/// memory, so that the packed side is accessed in whole segments although a group is none. Two images take turns: one
/// barrier per round keeps their users apart.
template <bool unpack, int words, class Map>
__global__ void __launch_bounds__(block_threads, runs_blocks) runs_kernel(const __grid_constant__ Launch<Map> launch) {
  const Job<Map>& job = launch.job;
  const DeviceMemory memory{launch.streaming};
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

template <class Word>
Kernel<EntryMap> entries_instance(bool unpack) {
  return unpack ? entries_kernel<Word, true> : entries_kernel<Word, false>;
}

template <>
Kernel<EntryMap> words_instance<EntryMap>(bool unpack, int word) {
  switch (word) {
    case 16:
      return entries_instance<Word16>(unpack);
    case 8:
      return entries_instance<std::uint64_t>(unpack);
    case 4:
      return entries_instance<std::uint32_t>(unpack);
    default:
      return nullptr;
  }
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
    Kernel<Map> kernels[] = {gather_instance<Map>(unpack),           runs_instance<few_lane_words, Map>(unpack),
                             runs_instance<lane_words, Map>(unpack), words_instance<Map>(unpack, 1),
                             words_instance<Map>(unpack, 2),         words_instance<Map>(unpack, 4),
                             words_instance<Map>(unpack, 8),         words_instance<Map>(unpack, 16)};
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
    Launch<Map> launch{
        Job<Map>(args), {args.counter, args.flag, args.flag_value}, args.consecutive_rounds, args.streaming != 0};
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
