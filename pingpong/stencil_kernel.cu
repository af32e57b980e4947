// The nine-point stencil on the GPU: each thread goes down a column and keeps three rows' sums in registers.
#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "pingpong/stencil_kernel.hpp"

namespace gpudt::bench {
namespace {

constexpr int threads = 128;
constexpr int rows_per_thread = 8;

/// What one row gives to the points of the row above, of its own, and below.
template <class Real>
struct RowSums {
  Real center, sides;
};

template <class Real>
__device__ RowSums<Real> row_sums(const Real* __restrict__ in, const StencilShape& shape, int row, int col) {
  const Real* const at = in + shape.index(row, col);
  return {at[0], at[-1] + at[1]};
}

template <class Real>
__global__ void __launch_bounds__(threads)
    stencil_kernel(const Real* __restrict__ in, Real* __restrict__ out, const StencilShape shape) {
  const int col = static_cast<int>(blockIdx.x) * threads + static_cast<int>(threadIdx.x) + 1;
  if (col > shape.cols) return;
  const int first = static_cast<int>(blockIdx.y) * rows_per_thread + 1;
  RowSums<Real> above = row_sums(in, shape, first - 1, col), here = row_sums(in, shape, first, col);
#pragma unroll
  for (int i = 0; i < rows_per_thread; ++i) {
    const int row = first + i;
    if (row > shape.rows) return;
    const RowSums<Real> below = row_sums(in, shape, row + 1, col);
    out[shape.index(row, col)] =
        nine_points(here.center, above.center + below.center + here.sides, above.sides + below.sides);
    above = here;
    here = below;
  }
}

template <class Real>
void launch(const Real* in, Real* out, const StencilShape& shape, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((shape.cols + threads - 1) / threads),
                  static_cast<unsigned>((shape.rows + rows_per_thread - 1) / rows_per_thread));
  stencil_kernel<<<grid, threads, 0, stream>>>(in, out, shape);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) {
    throw std::runtime_error(std::string("stencil kernel: ") + cudaGetErrorString(error));
  }
}

}  // namespace

void launch_stencil(const float* in, float* out, const StencilShape& shape, cudaStream_t stream) {
  launch(in, out, shape, stream);
}

void launch_stencil(const double* in, double* out, const StencilShape& shape, cudaStream_t stream) {
  launch(in, out, shape, stream);
}

}  // namespace gpudt::bench
