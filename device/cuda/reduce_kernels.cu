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

  template <Operator op, class Word>
  __device__ __forceinline__ void all(std::int64_t words) const {
    const std::int64_t step = blockDim.x;
    const std::int64_t per_block = step * reduced_at_once;
    for (std::int64_t first = blockIdx.x * per_block + threadIdx.x; first < words; first += gridDim.x * per_block)
      reduce_words<op, Word, reduced_at_once>(args, PlainMemory(), {first, step, words});
  }

  template <Operator op>
  __device__ __forceinline__ void run() const {
    if constexpr (has_wide_words<T>) {
      if (args.wide != 0) {
        const std::int64_t words = wide_words<T>(args);
        all<op, WideWord<T>>(words);
        // Fewer elements than threads.
        const std::int64_t behind = words * static_cast<std::int64_t>(16 / sizeof(T)) + threadIdx.x;
        if (blockIdx.x == 0 && behind < args.count)
          reduce_words<op, NarrowWord<T>, 1>(args, PlainMemory(), {behind, 1, args.count});
        return;
      }
    }
    all<op, NarrowWord<T>>(args.count);
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
