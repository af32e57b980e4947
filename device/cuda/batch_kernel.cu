// The kernel of batches: batch_body.hpp on GPU threads.
#include <cuda_runtime.h>

#include "device/cuda/job_parts.cuh"
#include "device/cuda/kernel_parts.cuh"
#include "device/cuda/kernels.hpp"
#include "device/kernels/batch_body.hpp"

namespace gpudt::device::cuda {
namespace {

using AllJobs = BatchOf<batch_jobs>;

/// Blocks of block_threads threads that a multiprocessor is to hold.
constexpr int batch_blocks = 4;

template <class Jobs>
__global__ void __launch_bounds__(block_threads, batch_blocks) batch_kernel(const __grid_constant__ Jobs batch) {
  const int index = batch_job_of(batch, blockIdx.x);
  const BatchJob& job = batch.job[index];
  const unsigned block = blockIdx.x - batch.first_block[index];
  const unsigned blocks = batch.first_block[index + 1] - batch.first_block[index];
  move_job<block_threads>(job, block, blocks);
  complete(job.completion, blocks);
  complete(batch.completion);
}

template <class Jobs>
const void* kernel_for() {
  return reinterpret_cast<const void*>(batch_kernel<Jobs>);
}

}  // namespace

int launch_batch_kernel(const BatchArgs& batch, void* stream) {
  // cudaLaunchKernel reads the kernel's parameters: for few jobs, the first sizeof(FewJobs) bytes.
  void* parameters[] = {const_cast<BatchArgs*>(&batch)};
  const bool few = batch.jobs <= FewJobs::most_jobs;
  return cudaLaunchKernel(few ? kernel_for<FewJobs>() : kernel_for<AllJobs>(), dim3(batch.first_block[batch.jobs]),
                          dim3(block_threads), parameters, 0, static_cast<cudaStream_t>(stream));
}

int load_batch_kernel() {
  const int error = load(kernel_for<FewJobs>());
  return error != 0 ? error : load(kernel_for<AllJobs>());
}

}  // namespace gpudt::device::cuda
