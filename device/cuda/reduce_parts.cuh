// How threads reduce (reduce_body.hpp), in a launch of its own or in the persistent kernel.
#pragma once

#include "device/cuda/plain_memory.cuh"
#include "device/kernels/reduce_body.hpp"

namespace gpudt::device::cuda {
namespace {

template <class T, class Args>
struct GpuReduction {
  const Args& args;
  unsigned block, blocks;  ///< the number of the calling one among those that reduce, and theirs

  template <Operator op>
  __device__ __forceinline__ void run() const {
    const int turn = static_cast<int>(block) % args.destinations;
    const std::int64_t first = std::int64_t{block} * blockDim.x + threadIdx.x;
    const std::int64_t step = std::int64_t{blocks} * blockDim.x;
    std::int64_t reduced = 0;
    if constexpr (has_wide_words<T>) {
      const std::int64_t words = wide_words<T>(args);
      reduce_words<op, WideWord<T>>(args, PlainMemory(), {first, step, words, turn});
      reduced = words * static_cast<std::int64_t>(16 / sizeof(T));
    }
    reduce_words<op, NarrowWord<T>>(args, PlainMemory(), {reduced + first, step, args.count, turn});
  }
};

}  // namespace
}  // namespace gpudt::device::cuda
