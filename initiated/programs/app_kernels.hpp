// The kernels of gpudt-initiated-apps, dCUDA's case studies: what they are told, and the arithmetic that host and GPUs
// share. Of each there is a kernel for all iterations, which communicates, and kernels for one step, for the host.
#pragma once

#include <cstdint>

#include "initiated/kernel_world.hpp"
#include "initiated/layout.hpp"

namespace gpudt::initiated::programs {

// --- horizontal diffusion (thesis, section 5.5) ---

/// Of each GPU: planes of rows, with `halo` more rows at both ends; the outermost columns and rows of all never change.
constexpr int columns = 128, planes = 26, halo = 2;

struct StencilShape {
  std::int32_t rows;       ///< of this GPU
  std::int32_t first_row;  ///< among those of all
  std::int32_t all_rows;

  GPUDT_HD std::int64_t plane() const { return static_cast<std::int64_t>(rows + 2 * halo) * columns; }
  GPUDT_HD std::int64_t points() const { return plane() * planes; }
  /// Rows count from the first that is no halo.
  GPUDT_HD std::int64_t index(int z, int row, int column) const {
    return z * plane() + static_cast<std::int64_t>(row + halo) * columns + column;
  }
  GPUDT_HD bool fixed(int row, int column) const {
    const int all = first_row + row;
    return column < halo || column >= columns - halo || all < halo || all >= all_rows - halo;
  }
};

GPUDT_HD double laplacian(const double* at) {
  return 4 * at[0] - (at[-1] + at[1] + at[-columns] + at[columns]);
}
GPUDT_HD double diffused(const double* at) {
  const double here = laplacian(at);
  const double along_x = (laplacian(at + 1) - here) - (here - laplacian(at - 1));
  const double along_y = (laplacian(at + columns) - here) - (here - laplacian(at - columns));
  return at[0] - 0.025 * (along_x + along_y);
}

struct Stencil {
  KernelWorld world;
  Window window;        ///< two fields
  KernelLayout border;  ///< `halo` rows of all planes
  StencilShape shape;
  std::int32_t iterations;
};
const void* stencil_kernel();
void launch_stencil_step(const StencilShape& shape, const double* in, double* out, int blocks);

// --- sparse matrix-vector product and power iteration (sections 5.6, 5.7) ---

/// Rows of a GPU, in compressed storage, of a square matrix whose rows are divided among the GPUs.
struct SparseRows {
  const std::int32_t* begin;  ///< rows + 1
  const std::int32_t* column;
  const double* value;
  std::int32_t rows, all_rows;
};

struct Multiply {
  KernelWorld world;
  Window window;  ///< two vectors of all_rows, of which this GPU's part of the first is given
  SparseRows matrix;
  double* product;  ///< this GPU's rows
  std::int32_t iterations;
  std::int32_t normalise;  ///< power iteration: the product, normalised, is the next vector
};
const void* multiply_kernel();
/// product = matrix * vector; adds the sum of its squares to *squares.
void launch_multiply(const SparseRows& matrix, const double* vector, double* product, double* squares, int blocks);
/// to = product / sqrt(*squares), and *squares = 0 behind it.
void launch_normalise(const double* product, double* to, std::int32_t count, double* squares);

// --- particles (section 5.4) ---

/// In a plane, in segments of height 1, which is also the distance at which forces end.
struct Particle {
  float x, y, vx, vy;
};
constexpr int segment_capacity = 1536;

/// A segment's particles, in an order that does not depend on who computes.
struct Segment {
  std::int32_t count;
  std::int32_t padding[3];
  Particle particle[segment_capacity];
};

/// The pull of one particle on another, ending smoothly at distance 1.
GPUDT_HD void add_force(const Particle& at, const Particle& other, float& fx, float& fy) {
  const float dx = at.x - other.x, dy = at.y - other.y, square = dx * dx + dy * dy;
  if (square >= 1 || square == 0) return;
  const float push = (1 - square) * (1 - square);
  fx += push * dx;
  fy += push * dy;
}
/// Moved for one step; reflected by the walls.
GPUDT_HD Particle moved(Particle p, float fx, float fy, float width, float height) {
  constexpr float step = 0.01F, most = 10.F;  // no more than a tenth of a segment in a step
  const auto limited = [](float v) { return v < -most ? -most : v > most ? most : v; };
  p.vx = limited(p.vx + step * fx);
  p.vy = limited(p.vy + step * fy);
  p.x += step * p.vx;
  p.y += step * p.vy;
  if (p.x < 0 || p.x >= width) {
    p.vx = -p.vx;
    p.x = p.x < 0 ? -p.x : 2 * width - p.x;
  }
  if (p.y < 0 || p.y >= height) {
    p.vy = -p.vy;
    p.y = p.y < 0 ? -p.y : 2 * height - p.y;
  }
  return p;
}
/// The segment of all that a particle is in.
GPUDT_HD int segment_of(const Particle& p, int segments) {
  const int at = static_cast<int>(p.y);
  return at < 0 ? 0 : at >= segments ? segments - 1 : at;
}

struct Domain {
  std::int32_t segments;       ///< of this GPU; one more at each end belongs to the neighbours
  std::int32_t first_segment;  ///< among those of all
  std::int32_t all_segments;
  float width;
};

struct Particles {
  KernelWorld world;
  Window window;  ///< sorted, then moved segments: of each segments + 2
  Domain domain;
  std::int32_t iterations;
  std::int32_t* lost;  ///< counts particles for which a segment had no room
};
const void* particles_kernel();
void launch_move(const Domain& domain, const Segment* sorted, Segment* moved, int blocks);
void launch_sort(const Domain& domain, const Segment* moved, Segment* sorted, std::int32_t* lost, int blocks);

}  // namespace gpudt::initiated::programs
