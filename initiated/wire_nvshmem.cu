// What reaches GPUs that loads and stores do not reach: NVSHMEM's puts and gets. Programs whose World is made with
// nvshmem_wire (nvshmem.hpp) are linked with this.
#include <nvshmem.h>
#include <nvshmemx.h>

#include "initiated/device.cuh"

namespace gpudt::initiated::detail {
namespace {

/// Words stored through NVSHMEM one by one, where the target cannot be reached otherwise.
struct WordPut {
  int gpu;

  template <class Word>
  __device__ __forceinline__ Word load(Address from) const {
    return UsualMemory().load<Word>(from);
  }
  template <class Word>
  __device__ __forceinline__ void store(Address to, const Word& word) const {
    if constexpr (sizeof(Word) == 8) {
      nvshmem_uint64_p(reinterpret_cast<std::uint64_t*>(to), word, gpu);
    } else if constexpr (sizeof(Word) == 4) {
      nvshmem_uint32_p(reinterpret_cast<std::uint32_t*>(to), word, gpu);
    } else {
      nvshmem_uint8_p(reinterpret_cast<std::uint8_t*>(to), word, gpu);
    }
  }
};

/// Words loaded through NVSHMEM one by one.
struct WordGet {
  int gpu;

  template <class Word>
  __device__ __forceinline__ Word load(Address from) const {
    if constexpr (sizeof(Word) == 8) {
      return nvshmem_uint64_g(reinterpret_cast<const std::uint64_t*>(from), gpu);
    } else if constexpr (sizeof(Word) == 4) {
      return nvshmem_uint32_g(reinterpret_cast<const std::uint32_t*>(from), gpu);
    } else {
      return nvshmem_uint8_g(reinterpret_cast<const std::uint8_t*>(from), gpu);
    }
  }
  template <class Word>
  __device__ __forceinline__ void store(Address to, const Word& word) const {
    UsualMemory().store<Word>(to, word);
  }
};

}  // namespace

__device__ void complete_puts() {
  nvshmem_quiet();
}
__device__ void order_puts() {
  nvshmem_fence();
}
__device__ void put_word(std::uint64_t* symmetric, std::uint64_t word, int gpu) {
  nvshmemx_signal_op(symmetric, word, NVSHMEM_SIGNAL_SET, gpu);
}
__device__ void see_puts(std::uint64_t* symmetric) {
  nvshmem_uint64_wait_until(symmetric, NVSHMEM_CMP_GE, 0);  // at once: for the order that comes with it
}

__device__ void put_by_words(const Sides& sides, int gpu, std::int64_t begin, std::int64_t end, std::int64_t index,
                             std::int64_t count) {
  move_by_words(sides, WordPut{gpu}, begin, end, index, count);
}
__device__ void get_by_words(const Sides& sides, int gpu, std::int64_t begin, std::int64_t end, std::int64_t index,
                             std::int64_t count) {
  move_by_words(sides, WordGet{gpu}, begin, end, index, count);
}

namespace {

/// What of [begin, end) is this block's part of the grid's, in steps of 16 bytes.
__device__ void block_part(std::int64_t& begin, std::int64_t& end) {
  const std::int64_t share = ((end - begin + gridDim.x - 1) / gridDim.x + 15) / 16 * 16;
  const std::int64_t first = min(begin + share * blockIdx.x, end);
  end = min(first + share, end);
  begin = first;
}

/// From packed memory, where `begin` lies at `packed`, each run, or what of it lies in [begin, end), put by one thread.
__device__ void put_runs(const SideMap& map, Address to, Address packed, int gpu, std::int64_t begin, std::int64_t end,
                         std::int64_t index, std::int64_t count) {
  const std::int64_t share = (end - begin + count - 1) / count;
  const std::int64_t last = min(begin + (index + 1) * share, end);
  for (std::int64_t position = begin + index * share; position < last;) {
    const device::RunPlace run = map.place(position, device::NoTile());
    const std::int64_t bytes = min(run.left, last - position);
    nvshmem_putmem_nbi(reinterpret_cast<void*>(to + static_cast<Address>(run.offset)),
                       reinterpret_cast<const void*>(packed + static_cast<Address>(position - begin)),
                       static_cast<std::size_t>(bytes), gpu);
    position += bytes;
  }
}

}  // namespace

__device__ void put_packed(const PackedPut& put, const KernelWorld& world) {
  std::int64_t begin = put.begin, end = put.end;
  if (put.grid) block_part(begin, end);
  char* const target = put.to.window.base + put.to.offset;
  const auto* const source = static_cast<const char*>(put.from.address);
  const bool as_it_is =
      put.to.layout == nullptr && put.from.layout == nullptr && nvshmem_ptr(source, world.gpu) != nullptr;
  char* const staging = world.staging + static_cast<std::int64_t>(blockIdx.x) * world.staging_bytes;
  do {
    const std::int64_t part = as_it_is ? end : min(begin + world.staging_bytes, end);
    const auto bytes = static_cast<std::size_t>(part - begin);
    const char* packed = source + begin;
    if (threadIdx.x == 0) nvshmem_quiet();  // what was put before is there, and the staging memory free
    __syncthreads();
    if (!as_it_is) {
      packed = staging;
      const Sides sides = {reinterpret_cast<Address>(source),
                           reinterpret_cast<Address>(staging) - static_cast<Address>(begin),
                           {put.from.layout, end},
                           {nullptr, part}};
      move_directly(sides, begin, part, threadIdx.x, blockDim.x);
      fence_all();
      __syncthreads();
    }
    if (put.to.layout != nullptr)
      put_runs({put.to.layout, end}, reinterpret_cast<Address>(target), reinterpret_cast<Address>(packed), put.gpu,
               begin, part, threadIdx.x, blockDim.x);
    else if (put.with_signal && part == end)
      nvshmemx_putmem_signal_nbi_block(target + begin, packed, bytes, put.posting.slot, put.posting.word,
                                       NVSHMEM_SIGNAL_SET, put.gpu);
    else if (bytes > 0)
      nvshmemx_putmem_nbi_block(target + begin, packed, bytes, put.gpu);
    __syncthreads();
    begin = part;
  } while (begin < end);
  if (put.grid) {  // another block's notification is to follow
    if (threadIdx.x == 0) nvshmem_quiet();
    __syncthreads();
  }
}

}  // namespace gpudt::initiated::detail
