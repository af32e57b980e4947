// The hand-written kernels. Each is what one writes for one layout once its numbers are known: words as wide as it
// allows, four loads in flight, divisions by precomputed factors, streaming hints, and a flag at the end.
#include <cuda_runtime.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "pingpong/by_hand.hpp"

namespace gpudt::bench {
namespace {

constexpr int threads = 256;
constexpr int unroll = 4;
constexpr int record_threads = 128;
constexpr std::int64_t record_bytes = 17;
/// Up to so many words are moved by one thread block.
constexpr std::int64_t one_block_words = 1024;
/// Enough blocks for the host link with any word.
constexpr std::int64_t host_blocks = 528;

// --- small tools ----------------------------------------------------------------------------------------------------

/// Division of numbers below 2^31 by a constant.
struct Divider {
  unsigned divisor, factor, shift;

  explicit Divider(std::int64_t by) : divisor(static_cast<unsigned>(by)), shift(0) {
    while ((1ull << shift) < static_cast<unsigned long long>(divisor)) ++shift;
    factor = static_cast<unsigned>(((1ull << (31 + shift)) + divisor - 1) / divisor);
  }
  __device__ unsigned operator()(unsigned n) const { return __umulhi(2 * n, factor) >> shift; }
};

struct Completion {
  volatile unsigned* flag;
  unsigned value;
  unsigned* counter;
};

__device__ void complete(const Completion& completion) {
  if (completion.flag == nullptr) return;
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence_system();
  if (gridDim.x > 1) {
    if (atomicInc(completion.counter, gridDim.x - 1) != gridDim.x - 1) return;
    __threadfence_system();
  }
  *completion.flag = completion.value;
}

template <bool unpack, class Word>
__device__ void copy_words(char* const (&user)[unroll], Word* packed, unsigned first, unsigned words) {
  Word value[unroll];
#pragma unroll
  for (int u = 0; u < unroll; ++u) {
    const unsigned i = first + u * blockDim.x;
    if (i < words) value[u] = unpack ? __ldcs(packed + i) : __ldcs(reinterpret_cast<const Word*>(user[u]));
  }
#pragma unroll
  for (int u = 0; u < unroll; ++u) {
    const unsigned i = first + u * blockDim.x;
    if (i < words) __stcs(unpack ? reinterpret_cast<Word*>(user[u]) : packed + i, value[u]);
  }
}

// --- nested strides -------------------------------------------------------------------------------------------------

template <int dims>
struct Strides {
  Divider run;  // words
  Divider count[3];
  long long stride[3];
};

template <class Word, int dims, bool unpack>
__global__ void strided_kernel(char* user, Word* packed, unsigned words, const Strides<dims> strides,
                               const Completion completion) {
  const unsigned tile = blockDim.x * unroll;
  for (unsigned base = blockIdx.x * tile; base < words; base += gridDim.x * tile) {
    char* place[unroll];
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      const unsigned i = base + u * blockDim.x + threadIdx.x;
      if constexpr (dims == 0) {
        place[u] = user + static_cast<long long>(i) * sizeof(Word);
      } else {
        unsigned index = strides.run(i);
        long long offset = static_cast<long long>(i - index * strides.run.divisor) * sizeof(Word);
#pragma unroll
        for (int d = dims - 1; d > 0; --d) {
          const unsigned outer = strides.count[d](index);
          offset += (index - outer * strides.count[d].divisor) * strides.stride[d];
          index = outer;
        }
        place[u] = user + offset + index * strides.stride[0];
      }
    }
    copy_words<unpack>(place, packed, base + threadIdx.x, words);
  }
  complete(completion);
}

// --- lists ----------------------------------------------------------------------------------------------------------

template <class Word, bool unpack>
__global__ void equal_runs_kernel(char* user, Word* packed, unsigned words, Divider run,
                                  const std::int64_t* __restrict__ offsets, const Completion completion) {
  const unsigned tile = blockDim.x * unroll;
  for (unsigned base = blockIdx.x * tile; base < words; base += gridDim.x * tile) {
    char* place[unroll];
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      const unsigned i = min(base + u * blockDim.x + threadIdx.x, words - 1);
      const unsigned block = run(i);
      place[u] = user + offsets[block] + (i - block * run.divisor) * sizeof(Word);
    }
    copy_words<unpack>(place, packed, base + threadIdx.x, words);
  }
  complete(completion);
}

/// `group` threads, a power of two up to 32, work on each run.
template <class Word, bool unpack>
__global__ void unequal_runs_kernel(char* user, Word* packed, unsigned runs, unsigned group,
                                    const std::int64_t* __restrict__ offsets, const std::int64_t* __restrict__ prefix,
                                    const Completion completion) {
  const unsigned groups = gridDim.x * blockDim.x / group, lane = threadIdx.x % group;
  for (unsigned run = (blockIdx.x * blockDim.x + threadIdx.x) / group; run < runs; run += groups) {
    const std::int64_t begin = prefix[run] / static_cast<std::int64_t>(sizeof(Word));
    const auto words = static_cast<unsigned>(prefix[run + 1] / static_cast<std::int64_t>(sizeof(Word)) - begin);
    Word* const there = reinterpret_cast<Word*>(user + offsets[run]);
    Word* const here = packed + begin;
    for (unsigned i = lane; i < words; i += unroll * group) {
      Word value[unroll];
#pragma unroll
      for (int u = 0; u < unroll; ++u)
        if (i + u * group < words) value[u] = __ldcs((unpack ? here : there) + i + u * group);
#pragma unroll
      for (int u = 0; u < unroll; ++u)
        if (i + u * group < words) __stcs((unpack ? there : here) + i + u * group, value[u]);
    }
  }
  complete(completion);
}

// --- records --------------------------------------------------------------------------------------------------------

struct Record {
  double value;
  int2 ids;
  char tag;
};

/// One thread per record with typed accesses; the packed side goes through shared memory, so that it is moved in
/// whole 16-byte words. Tiles of 128 records are multiples of those.
template <bool unpack>
__global__ void records_kernel(char* user, char* packed, unsigned records, long long stride,
                               const Completion completion) {
  __shared__ alignas(16) char image[record_threads * record_bytes];
  for (unsigned base = blockIdx.x * record_threads; base < records; base += gridDim.x * record_threads) {
    const unsigned count = min(record_threads, records - base);
    const unsigned bytes = count * static_cast<unsigned>(record_bytes), words = bytes / sizeof(int4);
    char* const tile = packed + static_cast<long long>(base) * record_bytes;
    char* const mine = image + threadIdx.x * record_bytes;
    char* const there = user + (base + threadIdx.x) * stride;
    const auto move_tile = [&] {
      for (unsigned i = threadIdx.x; i < words; i += blockDim.x) {
        auto* from = reinterpret_cast<int4*>(unpack ? tile : image) + i;
        auto* to = reinterpret_cast<int4*>(unpack ? image : tile) + i;
        *to = *from;
      }
      for (unsigned i = words * sizeof(int4) + threadIdx.x; i < bytes; i += blockDim.x)
        (unpack ? image : tile)[i] = (unpack ? tile : image)[i];
    };
    if constexpr (unpack) {
      move_tile();
      __syncthreads();
      if (threadIdx.x < count) {
        Record record;
        memcpy(&record.value, mine, 8);
        memcpy(&record.ids, mine + 8, 8);
        __stcs(reinterpret_cast<double*>(there), record.value);
        __stcs(reinterpret_cast<int2*>(there + 8), record.ids);
        __stcs(there + 16, mine[16]);
      }
    } else {
      if (threadIdx.x < count) {
        const double value = __ldcs(reinterpret_cast<const double*>(there));
        const int2 ids = __ldcs(reinterpret_cast<const int2*>(there + 8));
        const char tag = __ldcs(there + 16);
        memcpy(mine, &value, 8);
        memcpy(mine + 8, &ids, 8);
        mine[16] = tag;
      }
      __syncthreads();
      move_tile();
    }
    __syncthreads();
  }
  complete(completion);
}

// --- launches -------------------------------------------------------------------------------------------------------

struct Request {
  const HandLayout& layout;
  char* user;
  char* packed;
  std::int64_t bytes;
  bool packed_is_host;
  cudaStream_t stream;
  Completion completion;
};

struct Grid {
  unsigned blocks, threads;
};

Grid grid_for(const Request& request, std::int64_t items, std::int64_t tile) {
  if (items <= one_block_words) return {1, static_cast<unsigned>((items + 31) / 32 * 32)};
  std::int64_t blocks = (items + tile - 1) / tile;
  if (request.packed_is_host) blocks = std::min(blocks, host_blocks);
  return {static_cast<unsigned>(blocks), threads};
}

void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(std::string("hand-written kernel: ") + cudaGetErrorString(error));
}

template <class Word, int dims, bool unpack>
void launch_strided(const Request& request) {
  const HandLayout& layout = request.layout;
  constexpr auto width = static_cast<std::int64_t>(sizeof(Word));
  const auto count = [&](int d) { return Divider(d < dims ? layout.dims[d].count : 1); };
  Strides<dims> strides{Divider(dims > 0 ? layout.run / width : 1), {count(0), count(1), count(2)}, {}};
  for (int d = 0; d < dims; ++d) strides.stride[d] = layout.dims[d].stride;
  const std::int64_t words = request.bytes / width;
  const Grid grid = grid_for(request, words, threads * unroll);
  strided_kernel<Word, dims, unpack><<<grid.blocks, grid.threads, 0, request.stream>>>(
      request.user, reinterpret_cast<Word*>(request.packed), static_cast<unsigned>(words), strides, request.completion);
}

template <class Word, bool unpack>
void launch_list(const Request& request) {
  const HandLayout& layout = request.layout;
  constexpr auto width = static_cast<std::int64_t>(sizeof(Word));
  auto* packed = reinterpret_cast<Word*>(request.packed);
  const std::int64_t words = request.bytes / width;
  if (layout.prefix == nullptr) {
    const Grid grid = grid_for(request, words, threads * unroll);
    equal_runs_kernel<Word, unpack><<<grid.blocks, grid.threads, 0, request.stream>>>(
        request.user, packed, static_cast<unsigned>(words), Divider(layout.run / width), layout.offsets,
        request.completion);
    return;
  }
  std::int64_t group = 1;
  while (group < 32 && group * layout.count < words) group *= 2;
  const Grid grid = grid_for(request, layout.count * group, threads);
  unequal_runs_kernel<Word, unpack><<<grid.blocks, grid.threads, 0, request.stream>>>(
      request.user, packed, static_cast<unsigned>(layout.count), static_cast<unsigned>(group), layout.offsets,
      layout.prefix, request.completion);
}

template <bool unpack>
void launch_records(const Request& request) {
  const HandLayout& layout = request.layout;
  std::int64_t blocks = (layout.count + record_threads - 1) / record_threads;
  if (request.packed_is_host) blocks = std::min(blocks, host_blocks);
  records_kernel<unpack><<<static_cast<unsigned>(blocks), record_threads, 0, request.stream>>>(
      request.user, request.packed, static_cast<unsigned>(layout.count), layout.stride, request.completion);
}

template <class Word, bool unpack>
void launch_words(const Request& request) {
  if (request.layout.kind == HandLayout::Kind::list) return launch_list<Word, unpack>(request);
  switch (request.layout.ndims) {
    case 0:
      return launch_strided<Word, 0, unpack>(request);
    case 1:
      return launch_strided<Word, 1, unpack>(request);
    case 2:
      return launch_strided<Word, 2, unpack>(request);
    default:
      return launch_strided<Word, 3, unpack>(request);
  }
}

/// The widest word, 4 to 16 bytes, that divides everything; 0 if there is none.
int word_of(const Request& request) {
  const HandLayout& layout = request.layout;
  auto bits = reinterpret_cast<std::uintptr_t>(request.user) | reinterpret_cast<std::uintptr_t>(request.packed);
  if (layout.kind == HandLayout::Kind::list) {
    bits |= static_cast<std::uintptr_t>(layout.align);
  } else {
    bits |= static_cast<std::uintptr_t>(layout.ndims > 0 ? layout.run : request.bytes);
    for (int d = 0; d < layout.ndims; ++d) bits |= static_cast<std::uintptr_t>(layout.dims[d].stride);
  }
  return bits % 16 == 0 ? 16 : bits % 8 == 0 ? 8 : bits % 4 == 0 ? 4 : 0;
}

template <bool unpack>
bool start(const Request& request) {
  constexpr std::int64_t most_words = std::int64_t{1} << 31;
  if (request.layout.kind == HandLayout::Kind::records) {
    const bool aligned =
        (reinterpret_cast<std::uintptr_t>(request.user) | static_cast<std::uintptr_t>(request.layout.stride)) % 8 == 0;
    if (!aligned || request.layout.count >= most_words) return false;
    launch_records<unpack>(request);
  } else {
    const int word = word_of(request);
    if (word == 0 || request.layout.ndims > HandLayout::max_dims || request.bytes / word >= most_words) return false;
    if (word == 16)
      launch_words<int4, unpack>(request);
    else if (word == 8)
      launch_words<int2, unpack>(request);
    else
      launch_words<int, unpack>(request);
  }
  check(cudaGetLastError());
  return true;
}

Completion completion_of(const HandCompletion& completion) {
  return {completion.flag, completion.value, completion.counter};
}

}  // namespace

bool by_hand_pack(const HandLayout& layout, const void* user, void* packed, std::int64_t bytes, bool packed_is_host,
                  cudaStream_t stream, const HandCompletion& completion) {
  auto* origin = const_cast<char*>(static_cast<const char*>(user)) + layout.offset;
  return start<false>(
      {layout, origin, static_cast<char*>(packed), bytes, packed_is_host, stream, completion_of(completion)});
}

bool by_hand_unpack(const HandLayout& layout, void* user, const void* packed, std::int64_t bytes, bool packed_is_host,
                    cudaStream_t stream, const HandCompletion& completion) {
  auto* source = const_cast<char*>(static_cast<const char*>(packed));
  return start<true>({layout, static_cast<char*>(user) + layout.offset, source, bytes, packed_is_host, stream,
                      completion_of(completion)});
}

}  // namespace gpudt::bench
