// The kernels of gpudt-contention's user.
#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "pingpong/load_kernels.hpp"

namespace gpudt::bench {
namespace {

constexpr int threads = 256;
constexpr int tile = 4 * threads;  // floats that a block of the vector addition adds

__global__ void __launch_bounds__(threads) burn_kernel(long long steps, float* sink) {
  float value = static_cast<float>(threadIdx.x);
  for (long long i = 0; i < steps; ++i) value = fmaf(value, 0.999F, 0.5F);
  if (value < 0) *sink = value;  // never, but the compiler cannot know
}

__global__ void __launch_bounds__(threads)
    add_kernel(const float4* __restrict__ a, const float4* __restrict__ b, float4* __restrict__ sum, unsigned tiles) {
  const std::size_t i = static_cast<std::size_t>(blockIdx.x % tiles) * threads + threadIdx.x;
  const float4 x = a[i], y = b[i];
  sum[i] = make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
}

void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(std::string("user's kernel: ") + cudaGetErrorString(error));
}

}  // namespace

std::int64_t resident_burn_blocks() {
  int device = 0, processors = 0, blocks = 0;
  check(cudaGetDevice(&device));
  check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, burn_kernel, threads, 0));
  return std::int64_t{processors} * blocks;
}

void launch_burn(std::int64_t blocks, std::int64_t steps, float* sink, cudaStream_t stream) {
  burn_kernel<<<static_cast<unsigned>(blocks), threads, 0, stream>>>(steps, sink);
  check(cudaGetLastError());
}

void launch_add(const float* a, const float* b, float* sum, std::int64_t n, std::int64_t times, cudaStream_t stream) {
  const std::int64_t tiles = n / tile;
  add_kernel<<<static_cast<unsigned>(tiles * times), threads, 0, stream>>>(
      reinterpret_cast<const float4*>(a), reinterpret_cast<const float4*>(b), reinterpret_cast<float4*>(sum),
      static_cast<unsigned>(tiles));
  check(cudaGetLastError());
}

}  // namespace gpudt::bench
