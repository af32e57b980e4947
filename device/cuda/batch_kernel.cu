// The kernel of batches: batch_body.hpp on GPU threads.
#include <cuda_runtime.h>

#include "device/cuda/job_parts.cuh"
#include "device/cuda/kernel_parts.cuh"
#include "device/cuda/kernels.hpp"
#include "device/kernels/batch_body.hpp"

namespace gpudt::device::cuda {
namespace {

/// Blocks of block_threads threads that a multiprocessor is to hold.
constexpr int batch_blocks = 4;

__global__ void __launch_bounds__(block_threads, batch_blocks) batch_kernel(const __grid_constant__ BatchArgs batch) {
  const int index = batch_job_of(batch, blockIdx.x);
  const BatchJob& job = batch.job[index];
  const unsigned block = blockIdx.x - batch.first_block[index];
  const unsigned blocks = batch.first_block[index + 1] - batch.first_block[index];
  move_job<block_threads>(job, block, blocks);
  complete(job.completion, blocks);
  complete(batch.completion);
}

}  // namespace

int launch_batch_kernel(const BatchArgs& batch, void* stream) {
  // cudaLaunchKernel reads the parameters only.
  void* parameters[] = {const_cast<BatchArgs*>(&batch)};
  return cudaLaunchKernel(reinterpret_cast<const void*>(batch_kernel), dim3(batch.first_block[batch.jobs]),
                          dim3(block_threads), parameters, 0, static_cast<cudaStream_t>(stream));
}

int load_batch_kernel() {
  return load(reinterpret_cast<const void*>(batch_kernel));
}

}  // namespace gpudt::device::cuda
