#include "initiated/programs/message_kernels.hpp"

#include "initiated/device.cuh"
#include "initiated/programs/iput.cuh"

namespace gpudt::initiated::programs {
namespace {

/// [begin, end) of `total`, in steps of `unit`: the part of number `index` of `count`.
struct Part {
  std::int64_t begin, end;
};
__device__ Part part_of(std::int64_t total, std::int64_t unit, int index, int count) {
  const std::int64_t share = ((total + count - 1) / count + unit - 1) / unit * unit;
  const std::int64_t begin = min(share * index, total);
  return {begin, min(begin + share, total)};
}

__device__ void pingpong_by_grid(Rank& rank, const PingPong& p, const KernelLayout* layout, int other) {
  for (int i = 0; i < 2 * p.iterations; ++i) {
    if ((i & 1) == rank.gpu())
      rank.put_notify<Grid>(at(p.window, other, p.receive, layout), here(p.window.base + p.send, layout), p.bytes, 1);
    else
      rank.wait_notifications<Grid>({p.window.id, other, 1});
  }
}

__device__ void pingpong_by_iput(Rank& rank, const PingPong& p, int other) {
  auto* const to = reinterpret_cast<std::uint64_t*>(p.window.base + p.receive);
  const auto* const from = reinterpret_cast<const std::uint64_t*>(p.window.base + p.send);
  for (int i = 0; i < 2 * p.iterations; ++i) {
    if ((i & 1) == rank.gpu()) {
      iput_by_block(to, from, p.iput_stride, static_cast<std::size_t>(p.bytes / 8), other);
      rank.notify(other, 1, p.window.id);
    } else {
      rank.wait_notifications({p.window.id, other, 1});
    }
  }
}

/// Words of 16 bytes, or of 8 at the layout's stride.
__device__ void store_part(const PingPong& p, char* to, const char* from) {
  const std::int64_t first = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x;
  const std::int64_t step = gridDim.x * std::int64_t{blockDim.x};
  if (p.contiguous != 0)
    for (std::int64_t i = first; i < p.bytes / 16; i += step)
      reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
  else
    for (std::int64_t i = first; i < p.bytes / 8; i += step)
      reinterpret_cast<std::uint64_t*>(to)[i * p.iput_stride] =
          reinterpret_cast<const std::uint64_t*>(from)[i * p.iput_stride];
}

__device__ void pingpong_bare(const PingPong& p) {
  char* const other = detail::part_of(p.world, p.window, 1 - p.world.gpu).address;
  char* const flag = p.window.base + p.window.bytes - flags_bytes + blockIdx.x * flag_spacing;
  auto* const here = reinterpret_cast<volatile std::uint64_t*>(flag);
  auto* const there = reinterpret_cast<volatile std::uint64_t*>(other + (flag - p.window.base));
  char* const to = other + p.receive;
  for (int i = 0; i < 2 * p.iterations; ++i) {
    const std::uint64_t value = p.flags_set + static_cast<std::uint64_t>(i / 2) + 1;
    if ((i & 1) == p.world.gpu) {
      store_part(p, to, p.window.base + p.send);
      __syncthreads();
      if (threadIdx.x == 0) {
        __threadfence_system();
        *there = value;
      }
    } else {
      if (threadIdx.x == 0) {
        while (*here < value) {
        }
        __threadfence_system();
      }
      __syncthreads();
    }
  }
}

__global__ void __launch_bounds__(512) pingpong(const __grid_constant__ PingPong p) {
  __shared__ RankState state;
  Rank rank(p.world, state);
  if (rank.gpu() > 1) return;
  const KernelLayout* const layout = p.contiguous != 0 ? nullptr : &p.layout;
  const int partner = rank.local_rank() + (1 - rank.gpu()) * rank.local_size();
  if (p.mode == Mode::bare) return pingpong_bare(p);
  if (p.mode == Mode::grid) return pingpong_by_grid(rank, p, layout, partner);
  if (p.mode == Mode::iput) return pingpong_by_iput(rank, p, partner);
  const Part part = part_of(p.bytes, 16, rank.local_rank(), rank.local_size());
  for (int i = 0; i < 2 * p.iterations; ++i) {
    if ((i & 1) == rank.gpu())
      rank.put_notify(at(p.window, partner, p.receive, layout), here(p.window.base + p.send, layout),
                      part.end - part.begin, 1, part.begin);
    else
      rank.wait_notifications({p.window.id, partner, 1});
  }
}

__global__ void __launch_bounds__(512) notify(const __grid_constant__ NotifyPingPong p) {
  __shared__ RankState state;
  Rank rank(p.world, state);
  const bool first = rank.rank() == p.first;
  if (!first && rank.rank() != p.second) return;
  const int other = first ? p.second : p.first;
  const Pattern wanted = p.wildcards != 0 ? Pattern{} : Pattern{p.window.id, other, 7};
  for (int i = 0; i < 2 * p.iterations; ++i) {
    if (((i & 1) == 0) == first) {
      if (p.with_data != 0)
        rank.put_notify(at(p.window, other, first ? 0 : p.bytes), here(p.window.base + 2 * p.bytes), p.bytes, 7);
      else
        rank.notify(other, 7, p.window.id);
    } else {
      rank.wait_notifications(wanted);
    }
  }
}

__global__ void __launch_bounds__(512) one_way(const __grid_constant__ OneWay p) {
  __shared__ RankState state;
  Rank rank(p.world, state);
  const int local = rank.local_rank();
  const bool within = p.to_gpu == 0;
  const bool sends = rank.gpu() == 0 && local < p.senders;
  const int source = within ? local - p.shift : local;  // local rank of who sends to this one
  const bool receives = rank.gpu() == p.to_gpu && source >= 0 && source < p.senders;
  const int target = p.to_gpu * rank.local_size() + local + (within ? p.shift : 0);
  for (int i = 0; i < p.iterations; ++i) {
    if (sends) {
      rank.put_notify(at(p.window, target, (rank.local_size() + local) * p.bytes),
                      here(p.window.base + local * p.bytes), p.bytes, 1);
      rank.wait_notifications({p.window.id, target, 2});
    }
    if (receives) {
      rank.wait_notifications({p.window.id, source, 1});
      rank.notify(source, 2, p.window.id);
    }
  }
}

__global__ void __launch_bounds__(1024) throughput(const __grid_constant__ Throughput p) {
  __shared__ RankState state;
  Rank rank(p.world, state);
  if (rank.gpu() > 1) return;
  const int partner = rank.local_rank() + (1 - rank.gpu()) * rank.local_size();
  const Part part = part_of(p.bytes, 16, rank.local_rank(), rank.local_size());
  const std::int64_t bytes = part.end - part.begin;
  // GPU 0 sends from the first half; what comes is in the second half, from where GPU 1 sends it back.
  const std::int64_t receive = p.bytes + part.begin, send = rank.gpu() == 0 ? part.begin : receive;
  for (int i = 0; i < p.iterations; ++i) {
    if (rank.gpu() == 0) rank.put_notify(at(p.window, partner, receive), here(p.window.base + send), bytes, 1);
    rank.wait_notifications({p.window.id, partner, 1});
    if (p.overlap == 0) rank.device_barrier();
    if (rank.gpu() == 1) rank.put_notify(at(p.window, partner, receive), here(p.window.base + send), bytes, 1);
  }
}

/// A warp for each vector, a thread for each element of the product. The matrix is kept by columns.
__device__ void multiply(const float* by_columns, const float* vectors, float* products, Part part) {
  const int lane = threadIdx.x % 32;
  for (std::int64_t v = part.begin + threadIdx.x / 32; v < part.end; v += blockDim.x / 32) {
    const float mine = vectors[v * vector_length + lane];
    float sum = 0;
#pragma unroll
    for (int k = 0; k < vector_length; ++k)
      sum += by_columns[k * vector_length + lane] * __shfl_sync(0xFFFFFFFFu, mine, k);
    products[v * vector_length + lane] = sum;
  }
}
__device__ void load_matrix(const float* matrix, float* by_columns) {
  for (int i = threadIdx.x; i < vector_length * vector_length; i += blockDim.x)
    by_columns[i % vector_length * vector_length + i / vector_length] = matrix[i];
  __syncthreads();
}

__global__ void __launch_bounds__(1024) matrix_vectors(const __grid_constant__ MatrixVectors p) {
  __shared__ RankState state;
  __shared__ float by_columns[vector_length * vector_length];
  Rank rank(p.world, state);
  if (rank.gpu() > 1) return;
  load_matrix(p.matrix, by_columns);
  constexpr std::int64_t bytes_each = vector_length * sizeof(float);
  const int partner = rank.local_rank() + (1 - rank.gpu()) * rank.local_size();
  const std::int64_t given = p.batch * bytes_each, results = given + p.total * bytes_each;
  float* const incoming = reinterpret_cast<float*>(p.window.base);
  float* const products = reinterpret_cast<float*>(p.window.base + given);  // GPU 1 has no use of what is given
  const Part part = part_of(p.batch, 1, rank.local_rank(), rank.local_size());
  const std::int64_t at_part = part.begin * bytes_each, bytes = (part.end - part.begin) * bytes_each;
  for (std::int64_t first = 0; first < p.total; first += p.batch) {
    const std::int64_t at_batch = first * bytes_each + at_part;
    if (rank.gpu() == 0) {
      rank.put_notify(at(p.window, partner, at_part), here(p.window.base + given + at_batch), bytes, 1);
      rank.wait_notifications({p.window.id, partner, 1});
    } else {
      rank.wait_notifications({p.window.id, partner, 1});
      multiply(by_columns, incoming, products, part);
      rank.put_notify(at(p.window, partner, results + at_batch),
                      here(reinterpret_cast<const char*>(products) + at_part), bytes, 1);
    }
  }
}

__global__ void __launch_bounds__(1024) matrix_vectors_once(const MatrixVectorsOnce p) {
  __shared__ float by_columns[vector_length * vector_length];
  load_matrix(p.matrix, by_columns);
  multiply(by_columns, p.vectors, p.products,
           part_of(p.count, 1, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x)));
}

}  // namespace

const void* pingpong_kernel() {
  return reinterpret_cast<const void*>(pingpong);
}
const void* notify_kernel() {
  return reinterpret_cast<const void*>(notify);
}
const void* one_way_kernel() {
  return reinterpret_cast<const void*>(one_way);
}
const void* throughput_kernel() {
  return reinterpret_cast<const void*>(throughput);
}
const void* matrix_vectors_kernel() {
  return reinterpret_cast<const void*>(matrix_vectors);
}
void launch_matrix_vectors(const MatrixVectorsOnce& arguments, int blocks, cudaStream_t stream) {
  matrix_vectors_once<<<static_cast<unsigned>(blocks), 1024, 0, stream>>>(arguments);
}

}  // namespace gpudt::initiated::programs
