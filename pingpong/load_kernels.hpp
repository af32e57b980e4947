// Kernels that keep a GPU busy, as an application's would. Needs CUDA (compiled only then).
#pragma once

#include <driver_types.h>

#include <cstdint>

namespace gpudt::bench {

/// So many blocks of launch_burn() fill all multiprocessors of the current device.
std::int64_t resident_burn_blocks();

/// Queues a kernel whose threads each do `steps` dependent multiplications and additions, and touch no memory but
/// `sink` (device memory, one float). Throws std::runtime_error if the launch fails, as does launch_add().
void launch_burn(std::int64_t blocks, std::int64_t steps, float* sink, cudaStream_t stream);

/// Queues a kernel that adds `a` and `b` to `sum`, `times` times over: arrays of `n` floats in device memory, n a
/// multiple of 1024. Its blocks are short and need the memory's bandwidth.
void launch_add(const float* a, const float* b, float* sum, std::int64_t n, std::int64_t times, cudaStream_t stream);

}  // namespace gpudt::bench
