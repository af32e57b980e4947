// The kernels of reductions: reduce_body.hpp on GPU threads. One kernel for each type of element.
#include <cuda_runtime.h>

#include "device/cuda/kernel_parts.cuh"
#include "device/cuda/kernels.hpp"
#include "device/cuda/reduce_parts.cuh"
#include "device/kernels/reduce_body.hpp"

namespace gpudt::device::cuda {
namespace {

template <class T>
__global__ void __launch_bounds__(block_threads) reduce_kernel(const __grid_constant__ ReduceArgs args) {
  with_operator<T>(args.op, GpuReduction<T, ReduceArgs>{args, blockIdx.x, gridDim.x});
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
