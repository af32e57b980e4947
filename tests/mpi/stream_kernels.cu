#include <cuda_runtime.h>

#include "tests/mpi/stream_kernels.hpp"

namespace gpudt::test {
namespace {

constexpr unsigned threads = 256;

__device__ unsigned long long nanoseconds() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

__global__ void add(double* numbers, std::size_t count, double value, unsigned long long wait_ns) {
  const unsigned long long begin = nanoseconds();
  while (nanoseconds() - begin < wait_ns) {
  }
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    numbers[i] += value;
}

__global__ void append(const double* numbers, std::size_t count, std::size_t step, double* log, int* entries) {
  __shared__ int wrong;
  if (threadIdx.x == 0) wrong = 0;
  __syncthreads();
  for (std::size_t i = threadIdx.x * step; i < count; i += blockDim.x * step)
    if (numbers[i] != numbers[0] + static_cast<double>(i)) wrong = 1;
  __syncthreads();
  if (threadIdx.x == 0) log[(*entries)++] = wrong != 0 ? -1.0 : numbers[0];
}

}  // namespace

void launch_add_on_gpu(double* numbers, std::size_t count, double value, int microseconds, cudaStream_t stream) {
  add<<<16, threads, 0, stream>>>(numbers, count, value, 1000ULL * static_cast<unsigned>(microseconds));
}

void launch_append_on_gpu(const double* numbers, std::size_t count, std::size_t step, double* log, int* entries,
                          cudaStream_t stream) {
  append<<<1, threads, 0, stream>>>(numbers, count, step, log, entries);
}

}  // namespace gpudt::test
