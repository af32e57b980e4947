#include "initiated/programs/iput.cuh"

#if defined(GPUDT_HAVE_NVSHMEM)
#include <nvshmem.h>
#include <nvshmemx.h>
#endif

namespace gpudt::initiated::programs {

__device__ void iput_by_block([[maybe_unused]] std::uint64_t* to, [[maybe_unused]] const std::uint64_t* from,
                              [[maybe_unused]] std::int64_t stride, [[maybe_unused]] std::size_t count,
                              [[maybe_unused]] int gpu) {
#if defined(GPUDT_HAVE_NVSHMEM)
  nvshmemx_uint64_iput_block(to, from, stride, stride, count, gpu);
#else
  __trap();  // programs do not offer it
#endif
}

}  // namespace gpudt::initiated::programs
