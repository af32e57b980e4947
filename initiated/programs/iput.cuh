// NVSHMEM's own strided put, for comparison, in a file of its own: its headers take long to compile.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpudt::initiated::programs {

/// `count` words at one stride, in words, on both sides. By all threads of the block.
__device__ void iput_by_block(std::uint64_t* to, const std::uint64_t* from, std::int64_t stride, std::size_t count,
                              int gpu);

}  // namespace gpudt::initiated::programs
