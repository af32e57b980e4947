// The kernels of reductions: reduce_body.hpp on GPU threads. One kernel for each type of element.
#include <cuda_runtime.h>

#include "device/cuda/kernel_parts.cuh"
#include "device/cuda/kernels.hpp"
#include "device/cuda/plain_memory.cuh"
#include "device/kernels/reduce_body.hpp"

namespace gpudt::device::cuda {
namespace {

template <class T>
struct GpuReduction {
  const ReduceArgs& args;

  template <Operator op>
  __device__ __forceinline__ void run() const {
    const int turn = static_cast<int>(blockIdx.x) % args.destinations;
    const std::int64_t first = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
    std::int64_t reduced = 0;
    if constexpr (has_wide_words<T>) {
      const std::int64_t words = wide_words<T>(args);
      reduce_words<op, WideWord<T>>(args, PlainMemory(), {first, step, words, turn});
      reduced = words * static_cast<std::int64_t>(16 / sizeof(T));
    }
    reduce_words<op, NarrowWord<T>>(args, PlainMemory(), {reduced + first, step, args.count, turn});
  }
};

template <class T>
__global__ void __launch_bounds__(block_threads) reduce_kernel(const __grid_constant__ ReduceArgs args) {
  with_operator<T>(args.op, GpuReduction<T>{args});
  complete(args.completion);
}

template <class T>
const void* kernel_for() {
  return reinterpret_cast<const void*>(reduce_kernel<T>);
}

}  // namespace

int launch_reduce_kernel(const ReduceArgs& args, void* stream) {
  return with_element(args.element, [&](auto sample) {
    void* parameters[] = {const_cast<ReduceArgs*>(&args)};
    return static_cast<int>(cudaLaunchKernel(kernel_for<decltype(sample)>(), dim3(args.grid), dim3(args.block),
                                             parameters, 0, static_cast<cudaStream_t>(stream)));
  });
}

int load_reduce_kernels() {
  int error = cudaSuccess;
  for (int element = 0; element <= static_cast<int>(last_element) && error == cudaSuccess; ++element)
    error =
        with_element(static_cast<Element>(element), [](auto sample) { return load(kernel_for<decltype(sample)>()); });
  return error;
}

}  // namespace gpudt::device::cuda
