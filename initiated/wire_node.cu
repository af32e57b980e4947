// Programs all of whose GPUs reach each other by loads and stores are linked with this in place of wire_nvshmem.cu: a
// World over MPI's windows (wire.hpp) does not begin otherwise, so that none of these functions is called.
#include <cstdio>

#include "initiated/device.cuh"

namespace gpudt::initiated::detail {
namespace {

__device__ void not_linked() {
  printf(
      "gpudt-initiated: a GPU that is not reached by loads and stores; link wire_nvshmem.o in place of wire_node.o\n");
  __trap();
}

}  // namespace

__device__ void complete_puts() {
  not_linked();
}
__device__ void order_puts() {
  not_linked();
}
__device__ void put_word(std::uint64_t*, std::uint64_t, int) {
  not_linked();
}
__device__ void see_puts(std::uint64_t*) {
  not_linked();
}
__device__ void put_by_words(const Sides&, int, std::int64_t, std::int64_t, std::int64_t, std::int64_t) {
  not_linked();
}
__device__ void get_by_words(const Sides&, int, std::int64_t, std::int64_t, std::int64_t, std::int64_t) {
  not_linked();
}
__device__ void put_packed(const PackedPut&, const KernelWorld&) {
  not_linked();
}

}  // namespace gpudt::initiated::detail
