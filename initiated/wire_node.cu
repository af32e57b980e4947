// Programs without NVSHMEM are linked with this in place of wire_nvshmem.cu: GPUs that loads and stores do not reach
// are reached by a proxy (proxy.cuh). Without one a World does not begin where there are such GPUs (wire.hpp).
#include <cstdio>

#include "initiated/proxy.cuh"

namespace gpudt::initiated::detail {
namespace {

__device__ void need_proxy(const KernelWorld& world) {
  if (world.proxy.slots != nullptr) return;
  printf(
      "gpudt-initiated: a GPU that is not reached by loads and stores; link wire_nvshmem.o in place of wire_node.o\n");
  __trap();
}

}  // namespace

__device__ void put_far(const FarMove& put, const KernelWorld& world) {
  need_proxy(world);
  put_by_proxy(put, world);
}
__device__ void get_far(const FarMove& get, const KernelWorld& world) {
  need_proxy(world);
  get_by_proxy(get, world);
}
__device__ void complete_puts(const KernelWorld& world) {
  need_proxy(world);
  complete_by_proxy(world);
}
__device__ void order_puts(const KernelWorld&) {}  // they are
__device__ void put_word(const KernelWorld& world, std::uint64_t* symmetric, std::uint64_t word, int gpu) {
  need_proxy(world);
  word_by_proxy(world, queue_memory, queue_offset(world, symmetric), word, gpu);
}
__device__ void put_word(const KernelWorld& world, const Remote& to, std::uint64_t word, int gpu) {
  need_proxy(world);
  word_by_proxy(world, to.window.id, to.offset, word, gpu);
}
__device__ void see_puts(const KernelWorld&, std::uint64_t*) {}  // they were seen with the word

}  // namespace gpudt::initiated::detail
