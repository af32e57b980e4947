#include "initiated/programs/app_kernels.hpp"

#include "initiated/device.cuh"

namespace gpudt::initiated::programs {
namespace {

/// [begin, end): the part of number `index` of `count`.
struct Portion {
  int begin, end;
};
__device__ Portion portion_of(int total, int index, int count) {
  return {static_cast<int>(static_cast<long long>(total) * index / count),
          static_cast<int>(static_cast<long long>(total) * (index + 1) / count)};
}

/// Waits for one notification of each neighbour that there is.
__device__ void wait_for_neighbours(Rank& rank) {
  if (rank.rank() > 0) rank.wait_notifications({any_value, rank.rank() - 1, any_value});
  if (rank.rank() + 1 < rank.size()) rank.wait_notifications({any_value, rank.rank() + 1, any_value});
}

// --- stencil --------------------------------------------------------------------------------------------------------

__device__ void stencil_rows(const StencilShape& shape, const double* in, double* out, Portion rows) {
  const int each = (rows.end - rows.begin) * columns;
  for (int i = static_cast<int>(threadIdx.x); i < each * planes; i += static_cast<int>(blockDim.x)) {
    const int z = i / each, row = rows.begin + i % each / columns, column = i % columns;
    const std::int64_t at = shape.index(z, row, column);
    out[at] = shape.fixed(row, column) ? in[at] : diffused(in + at);
  }
}

/// Ranks have rows; on one GPU they share the field, so that a notification does. What a rank writes is what its
/// neighbours have read in the step before, of which they have notified it.
__global__ void __launch_bounds__(512) stencil(const __grid_constant__ Stencil p) {
  __shared__ RankState state;
  Rank rank(p.world, state);
  const StencilShape shape = p.shape;
  const Portion rows = portion_of(shape.rows, rank.local_rank(), rank.local_size());
  const std::int64_t field_bytes = shape.points() * static_cast<std::int64_t>(sizeof(double));
  const bool first = rank.local_rank() == 0, last = rank.local_rank() + 1 == rank.local_size();
  const auto row_bytes = [&](int row) { return shape.index(0, row, 0) * static_cast<std::int64_t>(sizeof(double)); };
  for (int step = 0; step < p.iterations; ++step) {
    const std::int64_t in = (step & 1) * field_bytes, out = field_bytes - in;
    stencil_rows(shape, reinterpret_cast<const double*>(p.window.base + in),
                 reinterpret_cast<double*>(p.window.base + out), rows);
    const int up = rank.rank() - 1, down = rank.rank() + 1;
    if (up >= 0) {
      if (first)
        rank.put_notify(at(p.window, up, out + row_bytes(shape.rows), &p.border),
                        here(p.window.base + out + row_bytes(0), &p.border), p.border.total, 1);
      else
        rank.notify(up, 1);
    }
    if (down < rank.size()) {
      if (last)
        rank.put_notify(at(p.window, down, out + row_bytes(-halo), &p.border),
                        here(p.window.base + out + row_bytes(shape.rows - halo), &p.border), p.border.total, 1);
      else
        rank.notify(down, 1);
    }
    wait_for_neighbours(rank);
  }
  rank.flush();
}

__global__ void __launch_bounds__(512) stencil_step(StencilShape shape, const double* in, double* out) {
  stencil_rows(shape, in, out, portion_of(shape.rows, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x)));
}

// --- sparse matrices ------------------------------------------------------------------------------------------------

/// A warp for each row. Returns, in thread 0, the sum of the squares of all rows' products. Ends with a barrier.
__device__ double multiply_rows(const SparseRows& matrix, const double* vector, double* product, Portion rows) {
  __shared__ double squares_of[32];
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int warps = static_cast<int>(blockDim.x / 32);
  double squares = 0;
  for (int row = rows.begin + warp; row < rows.end; row += warps) {
    double sum = 0;
    for (int i = matrix.begin[row] + lane; i < matrix.begin[row + 1]; i += 32)
      sum += matrix.value[i] * vector[matrix.column[i]];
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, offset);
    if (lane == 0) product[row] = sum;
    squares += sum * sum;
  }
  __syncthreads();
  if (lane == 0) squares_of[warp] = squares;
  __syncthreads();
  double all = 0;
  for (int i = 0; i < warps; ++i) all += squares_of[i];
  return all;
}

/// Ranks have rows of the matrix, and the same of the vectors.
__global__ void __launch_bounds__(512) multiply_sparse(const __grid_constant__ Multiply p) {
  __shared__ RankState state;
  __shared__ double factor;
  Rank rank(p.world, state);
  const SparseRows& matrix = p.matrix;
  const Portion rows = portion_of(matrix.rows, rank.local_rank(), rank.local_size());
  double* const vectors = reinterpret_cast<double*>(p.window.base);
  const int mine = rank.gpu() * matrix.rows;  // of the vector, this GPU's part
  const std::int64_t bytes =
      static_cast<std::int64_t>(rows.end - rows.begin) * static_cast<std::int64_t>(sizeof(double));
  const auto spread = [&](std::int64_t from) {  // this rank's part, to all other GPUs, at the same place
    for (int i = 1; i < rank.gpus(); ++i) {
      const int gpu = (rank.gpu() + i) % rank.gpus();
      rank.put(
          at(p.window, gpu * rank.local_size() + rank.local_rank(), from * static_cast<std::int64_t>(sizeof(double))),
          here(vectors + from), bytes);
    }
    rank.barrier();
  };
  if (p.normalise != 0) spread(mine + rows.begin);
  for (int k = 0; k < p.iterations; ++k) {
    const std::int64_t now = (k & 1) * static_cast<std::int64_t>(matrix.all_rows), next = matrix.all_rows - now;
    if (p.normalise == 0) spread(now + mine + rows.begin);
    const double squares = multiply_rows(matrix, vectors + now, p.product, rows);
    if (p.normalise == 0) {  // the same vector again, where nobody reads
      for (int row = rows.begin + static_cast<int>(threadIdx.x); row < rows.end; row += static_cast<int>(blockDim.x))
        vectors[next + mine + row] = vectors[now + mine + row];
      continue;
    }
    const double all = rank.reduce(squares, 1, Sum());
    if (threadIdx.x == 0) factor = 1 / sqrt(all);
    __syncthreads();
    for (int row = rows.begin + static_cast<int>(threadIdx.x); row < rows.end; row += static_cast<int>(blockDim.x))
      vectors[next + mine + row] = p.product[row] * factor;
    spread(next + mine + rows.begin);
  }
  rank.barrier();
}

__global__ void __launch_bounds__(512)
    multiply_once(SparseRows matrix, const double* vector, double* product, double* squares) {
  const double mine = multiply_rows(matrix, vector, product,
                                    portion_of(matrix.rows, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x)));
  if (threadIdx.x == 0 && squares != nullptr) atomicAdd(squares, mine);
}

__global__ void normalise_once(const double* product, double* to, int count, const double* squares) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) to[i] = product[i] / sqrt(*squares);
}

// --- particles ------------------------------------------------------------------------------------------------------

/// Of segment s of a GPU, which is s + 1 in memory: forces from it and its neighbours, in their order.
__device__ void move_segment(const Domain& domain, const Segment* sorted, Segment* moved_to, int s) {
  const Segment& mine = sorted[s + 1];
  Segment& to = moved_to[s + 1];
  const float height = static_cast<float>(domain.all_segments);
  for (int i = static_cast<int>(threadIdx.x); i < mine.count; i += static_cast<int>(blockDim.x)) {
    const Particle particle = mine.particle[i];
    float fx = 0, fy = 0;
    for (int near = s; near < s + 3; ++near) {
      const int all = domain.first_segment + near - 1;
      if (all < 0 || all >= domain.all_segments) continue;
      const Segment& other = sorted[near];
      for (int k = 0; k < other.count; ++k) add_force(particle, other.particle[k], fx, fy);
    }
    to.particle[i] = moved(particle, fx, fy, domain.width, height);
  }
  if (threadIdx.x == 0) to.count = mine.count;
}

/// Those of it and its neighbours that are in segment s now, in their order.
__device__ void sort_segment(const Domain& domain, const Segment* moved_from, Segment* sorted, int s,
                             std::int32_t* lost) {
  __shared__ int in_warp[32];
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int warps = static_cast<int>(blockDim.x / 32), all_index = domain.first_segment + s;
  Segment& to = sorted[s + 1];
  int filled = 0;
  for (int near = s; near < s + 3; ++near) {
    const int all = domain.first_segment + near - 1;
    if (all < 0 || all >= domain.all_segments) continue;
    const Segment& from = moved_from[near];
    const int count = from.count;
    for (int base = 0; base < count; base += static_cast<int>(blockDim.x)) {
      const int i = base + static_cast<int>(threadIdx.x);
      Particle particle = {};
      bool here_now = false;
      if (i < count) {
        particle = from.particle[i];
        here_now = segment_of(particle, domain.all_segments) == all_index;
      }
      const unsigned mask = __ballot_sync(0xFFFFFFFFu, here_now);
      if (lane == 0) in_warp[warp] = __popc(mask);
      __syncthreads();
      int before = filled, total = 0;
      for (int w = 0; w < warps; ++w) {
        if (w < warp) before += in_warp[w];
        total += in_warp[w];
      }
      const int place = before + __popc(mask & ((1u << lane) - 1));
      if (here_now && place < segment_capacity) to.particle[place] = particle;
      if (here_now && place >= segment_capacity) atomicAdd(lost, 1);
      filled += total;
      __syncthreads();
    }
  }
  if (threadIdx.x == 0) to.count = min(filled, segment_capacity);
}

/// Ranks have segments. Each step: moved, the neighbours told; sorted, the neighbours told.
__global__ void __launch_bounds__(512) particles(const __grid_constant__ Particles p) {
  __shared__ RankState state;
  Rank rank(p.world, state);
  const Domain& domain = p.domain;
  const Portion mine = portion_of(domain.segments, rank.local_rank(), rank.local_size());
  const bool first = rank.local_rank() == 0, last = rank.local_rank() + 1 == rank.local_size();
  Segment* const sorted = reinterpret_cast<Segment*>(p.window.base);
  Segment* const moved_to = sorted + domain.segments + 2;
  constexpr std::int64_t head = sizeof(Segment) - sizeof(Particle) * segment_capacity;
  const auto tell = [&](const Segment* list) {
    __syncthreads();
    const std::int64_t list_at = reinterpret_cast<const char*>(list) - p.window.base;
    const auto send = [&](int target, int from, int to) {  // segments as they lie in memory, as long as they are
      const std::int64_t bytes = head + list[from].count * static_cast<std::int64_t>(sizeof(Particle));
      rank.put_notify(at(p.window, target, list_at + to * static_cast<std::int64_t>(sizeof(Segment))),
                      here(list + from), bytes, 1);
    };
    if (rank.rank() > 0) {
      if (first)
        send(rank.rank() - 1, 1, domain.segments + 1);
      else
        rank.notify(rank.rank() - 1, 1);
    }
    if (rank.rank() + 1 < rank.size()) {
      if (last)
        send(rank.rank() + 1, domain.segments, 0);
      else
        rank.notify(rank.rank() + 1, 1);
    }
    wait_for_neighbours(rank);
  };
  for (int step = 0; step < p.iterations; ++step) {
    for (int s = mine.begin; s < mine.end; ++s) move_segment(domain, sorted, moved_to, s);
    tell(moved_to);
    for (int s = mine.begin; s < mine.end; ++s) sort_segment(domain, moved_to, sorted, s, p.lost);
    tell(sorted);
  }
  rank.flush();
}

__global__ void __launch_bounds__(512) move_once(Domain domain, const Segment* sorted, Segment* moved_to) {
  const Portion mine = portion_of(domain.segments, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
  for (int s = mine.begin; s < mine.end; ++s) move_segment(domain, sorted, moved_to, s);
}
__global__ void __launch_bounds__(512)
    sort_once(Domain domain, const Segment* moved_from, Segment* sorted, std::int32_t* lost) {
  const Portion mine = portion_of(domain.segments, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
  for (int s = mine.begin; s < mine.end; ++s) sort_segment(domain, moved_from, sorted, s, lost);
}

}  // namespace

const void* stencil_kernel() {
  return reinterpret_cast<const void*>(stencil);
}
void launch_stencil_step(const StencilShape& shape, const double* in, double* out, int blocks) {
  stencil_step<<<static_cast<unsigned>(blocks), 512>>>(shape, in, out);
}
const void* multiply_kernel() {
  return reinterpret_cast<const void*>(multiply_sparse);
}
void launch_multiply(const SparseRows& matrix, const double* vector, double* product, double* squares, int blocks) {
  multiply_once<<<static_cast<unsigned>(blocks), 512>>>(matrix, vector, product, squares);
}
void launch_normalise(const double* product, double* to, std::int32_t count, double* squares) {
  normalise_once<<<static_cast<unsigned>((count + 255) / 256), 256>>>(product, to, count, squares);
  cudaMemsetAsync(squares, 0, sizeof *squares);
}
const void* particles_kernel() {
  return reinterpret_cast<const void*>(particles);
}
void launch_move(const Domain& domain, const Segment* sorted, Segment* moved_to, int blocks) {
  move_once<<<static_cast<unsigned>(blocks), 512>>>(domain, sorted, moved_to);
}
void launch_sort(const Domain& domain, const Segment* moved_from, Segment* sorted, std::int32_t* lost, int blocks) {
  sort_once<<<static_cast<unsigned>(blocks), 512>>>(domain, moved_from, sorted, lost);
}

}  // namespace gpudt::initiated::programs
