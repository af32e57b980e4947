// Kernels of the tests of graphs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace gpudt::test {

/// Adds `value` to each of the numbers, after a wait of about `microseconds`.
void launch_add(double* numbers, std::size_t count, double value, int microseconds, cudaStream_t stream);

/// Appends numbers[0] to `log`, at place (*entries)++; a negative number if numbers[i] is not numbers[0] + i
/// for i = step, 2 step, ...
void launch_append(const double* numbers, std::size_t count, std::size_t step, double* log, int* entries,
                   cudaStream_t stream);

// The same on GPUs alone; only where there is nvcc.
void launch_add_on_gpu(double* numbers, std::size_t count, double value, int microseconds, cudaStream_t stream);
void launch_append_on_gpu(const double* numbers, std::size_t count, std::size_t step, double* log, int* entries,
                          cudaStream_t stream);

}  // namespace gpudt::test
