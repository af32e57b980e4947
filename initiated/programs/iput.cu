#include "initiated/programs/iput.cuh"

#include <nvshmem.h>
#include <nvshmemx.h>

namespace gpudt::initiated::programs {

__device__ void iput_by_block(std::uint64_t* to, const std::uint64_t* from, std::int64_t stride, std::size_t count,
                              int gpu) {
  nvshmemx_uint64_iput_block(to, from, stride, stride, count, gpu);
}

}  // namespace gpudt::initiated::programs
