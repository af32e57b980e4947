// What reaches GPUs that loads and stores do not reach: NVSHMEM's puts and gets, or a proxy's if the World has one.
// Programs whose World is made with nvshmem_wire (nvshmem.hpp) are linked with this.
#include <nvshmem.h>
#include <nvshmemx.h>

#include "initiated/proxy.cuh"

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

/// Packed into the block's staging memory part by part, and put from there. By all threads of the block.
__device__ void put_packed(const FarMove& put, const KernelWorld& world) {
  std::int64_t begin = put.begin, end = put.end;
  if (put.scope == FarScope::grid) block_part(begin, end);
  char* const target = put.there.window.base + put.there.offset;
  const auto* const source = static_cast<const char*>(put.here.address);
  const bool as_it_is =
      put.there.layout == nullptr && put.here.layout == nullptr && nvshmem_ptr(source, world.gpu) != nullptr;
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
                           {put.here.layout, end},
                           {nullptr, part}};
      move_directly(sides, begin, part, threadIdx.x, blockDim.x);
      fence_all();
      __syncthreads();
    }
    if (put.there.layout != nullptr)
      put_runs({put.there.layout, end}, reinterpret_cast<Address>(target), reinterpret_cast<Address>(packed), put.gpu,
               begin, part, threadIdx.x, blockDim.x);
    else if (put.with_signal && part == end)
      nvshmemx_putmem_signal_nbi_block(target + begin, packed, bytes, put.posting.slot, put.posting.word,
                                       NVSHMEM_SIGNAL_SET, put.gpu);
    else if (bytes > 0)
      nvshmemx_putmem_nbi_block(target + begin, packed, bytes, put.gpu);
    __syncthreads();
    begin = part;
  } while (begin < end);
  if (put.scope == FarScope::grid) {  // another block's notification is to follow
    if (threadIdx.x == 0) nvshmem_quiet();
    __syncthreads();
  }
}

/// Where a window's bytes of that GPU would be on this one.
__device__ Address address_of(const Remote& there) {
  return reinterpret_cast<Address>(there.window.base + there.offset);
}

}  // namespace

__device__ void put_far(const FarMove& put, const KernelWorld& world) {
  if (world.proxy.slots != nullptr) return put_by_proxy(put, world);
  if (put.scope == FarScope::block || put.scope == FarScope::grid) return put_packed(put, world);
  const Sides sides = {reinterpret_cast<Address>(put.here.address),
                       address_of(put.there),
                       {put.here.layout, put.end},
                       {put.there.layout, put.end}};
  const Team team(put.scope);
  move_by_words(sides, WordPut{put.gpu}, put.begin, put.end, team.index(), team.count());
}
__device__ void get_far(const FarMove& get, const KernelWorld& world) {
  if (world.proxy.slots != nullptr) return get_by_proxy(get, world);
  const Sides sides = {address_of(get.there),
                       reinterpret_cast<Address>(get.here.address),
                       {get.there.layout, get.end},
                       {get.here.layout, get.end}};
  std::int64_t index = Team(get.scope).index(), count = Team(get.scope).count();
  if (get.scope == FarScope::grid) {
    index = Grid::index();
    count = Grid::count();
  }
  move_by_words(sides, WordGet{get.gpu}, get.begin, get.end, index, count);
}

__device__ void complete_puts(const KernelWorld& world) {
  world.proxy.slots != nullptr ? complete_by_proxy(world) : nvshmem_quiet();
}
__device__ void order_puts(const KernelWorld& world) {
  if (world.proxy.slots == nullptr) nvshmem_fence();
}
__device__ void put_word(const KernelWorld& world, std::uint64_t* symmetric, std::uint64_t word, int gpu) {
  if (world.proxy.slots != nullptr)
    word_by_proxy(world, queue_memory, queue_offset(world, symmetric), word, gpu);
  else
    nvshmemx_signal_op(symmetric, word, NVSHMEM_SIGNAL_SET, gpu);
}
__device__ void put_word(const KernelWorld& world, const Remote& to, std::uint64_t word, int gpu) {
  if (world.proxy.slots != nullptr)
    word_by_proxy(world, to.window.id, to.offset, word, gpu);
  else
    nvshmemx_signal_op(reinterpret_cast<std::uint64_t*>(to.window.base + to.offset), word, NVSHMEM_SIGNAL_SET, gpu);
}
__device__ void see_puts(const KernelWorld& world, std::uint64_t* symmetric) {
  // At once: for the order that comes with it.
  if (world.proxy.slots == nullptr) nvshmem_uint64_wait_until(symmetric, NVSHMEM_CMP_GE, 0);
}

}  // namespace gpudt::initiated::detail
