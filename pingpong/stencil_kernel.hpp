// The nine-point stencil of gpudt-stencil: the arithmetic, for host and GPU, and the kernel.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#ifdef __CUDACC__
#define GPUDT_HOST_DEVICE __host__ __device__
#else
#define GPUDT_HOST_DEVICE
#endif

namespace gpudt::bench {

/// An array of (rows + 2) x pitch numbers, of which the columns 0 to cols + 1 are used; points have rows 1 to `rows`
/// and columns 1 to `cols`, and the ring around them is the halo.
struct StencilShape {
  int rows, cols, pitch;
  GPUDT_HOST_DEVICE std::size_t index(int row, int col) const {
    return static_cast<std::size_t>(row) * static_cast<std::size_t>(pitch) + static_cast<std::size_t>(col);
  }
  std::size_t size() const { return index(rows + 2, 0); }
};

constexpr int stencil_flops = 11;  ///< for one point

/// The weighted mean of nine points: 8 additions and 3 multiplications with those of the sums.
template <class Real>
GPUDT_HOST_DEVICE Real nine_points(Real center, Real cardinals, Real diagonals) {
  return center * Real(0.25) + cardinals * Real(0.125) + diagonals * Real(0.0625);
}

/// The same from three rows of numbers, at column `col`.
template <class Real>
GPUDT_HOST_DEVICE Real nine_points(const Real* above, const Real* here, const Real* below, int col) {
  return nine_points(here[col], above[col] + below[col] + here[col - 1] + here[col + 1],
                     above[col - 1] + above[col + 1] + below[col - 1] + below[col + 1]);
}

/// Queues a kernel that computes all points of `out` from `in`, both in device memory. Throws std::runtime_error if
/// the launch fails. Needs CUDA (compiled only then).
void launch_stencil(const float* in, float* out, const StencilShape& shape, cudaStream_t stream);
void launch_stencil(const double* in, double* out, const StencilShape& shape, cudaStream_t stream);

}  // namespace gpudt::bench
