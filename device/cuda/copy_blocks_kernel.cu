// The kernel that copies blocks of bytes, for collectives: copy_blocks_body.hpp on GPU threads.
#include <cuda_runtime.h>

#include "device/cuda/kernel_parts.cuh"
#include "device/cuda/kernels.hpp"
#include "device/cuda/plain_memory.cuh"
#include "device/kernels/copy_blocks_body.hpp"

namespace gpudt::device::cuda {
namespace {

__global__ void __launch_bounds__(most_copy_warps* warp_threads)
    copy_blocks_kernel(const __grid_constant__ CopyBlocksArgs args) {
  const std::int64_t pieces = args.first_piece[args.count];  // the entry behind the last block's: of all blocks
  if (args.by_warps != 0) {                                  // one thread block, with a warp for each piece
    if (const std::int64_t piece = threadIdx.x / warp_threads; piece < pieces)
      copy_piece(args, piece, PlainMemory(), {threadIdx.x % warp_threads, warp_threads});
  } else {
    for (std::int64_t piece = blockIdx.x; piece < pieces; piece += gridDim.x)
      copy_piece(args, piece, PlainMemory(), {threadIdx.x, blockDim.x});
  }
  complete(args.completion);
}

const void* kernel() {
  return reinterpret_cast<const void*>(copy_blocks_kernel);
}

}  // namespace

int launch_copy_blocks_kernel(const CopyBlocksArgs& args, void* stream) {
  void* parameters[] = {const_cast<CopyBlocksArgs*>(&args)};
  return static_cast<int>(
      cudaLaunchKernel(kernel(), dim3(args.grid), dim3(args.block), parameters, 0, static_cast<cudaStream_t>(stream)));
}

int load_copy_blocks_kernel() {
  return load(kernel());
}

}  // namespace gpudt::device::cuda
