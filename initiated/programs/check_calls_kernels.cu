#include "initiated/programs/check_calls_kernels.hpp"

#include "initiated/mpi_calls.cuh"

namespace gpudt::initiated::programs {
namespace {

template <class Scope>
__device__ Status access_once(const mpi::Win& win, const OneAccess& p) {
  const mpi::Type origin(p.origin), target(p.target);
  if (p.kind == AccessKind::put_notify)
    return put_notify<Scope>(p.memory, p.origin_count, origin, 1, p.target_disp, p.target_count, target, win, 5);
  const Status status =
      p.kind == AccessKind::put
          ? put<Scope>(p.memory, p.origin_count, origin, 1, p.target_disp, p.target_count, target, win)
          : get<Scope>(p.memory, p.origin_count, origin, 1, p.target_disp, p.target_count, target, win);
  if constexpr (!is_grid<Scope>) flush<Scope>(1, win);
  const Status told = notify<Scope>(1, win, 5);
  return status != Status::ok ? status : told;
}

__global__ void __launch_bounds__(1024) one_access(const __grid_constant__ OneAccess p) {
  __shared__ RankState state;
  Rank rank(p.world, state);
  const mpi::Win win(rank, p.window);
  const bool first = blockIdx.x == 0;
  if (rank.gpu() == 1 && first) wait(0, win, 5);
  if (rank.gpu() != 0) return;
  Status status = Status::ok;
  if (p.by == By::grid) status = access_once<Grid>(win, p);
  if (p.by == By::block && first) status = access_once<Block>(win, p);
  if (p.by == By::warp && first && threadIdx.x < 32) status = access_once<Warp>(win, p);
  if (p.by == By::thread && first && threadIdx.x == 0) status = access_once<Thread>(win, p);
  if (first && threadIdx.x == 0) *p.status = static_cast<std::int32_t>(status);
}

__global__ void __launch_bounds__(256) combination(const __grid_constant__ Combination p) {
  __shared__ RankState state;
  Rank rank(p.world, state);
  const mpi::Win win(rank, p.window);
  if (rank.gpu() == 0) {
    const Status status = accumulate(p.memory, p.origin_count, p.origin, rank.local_size(), p.target_disp,
                                     p.target_count, p.target, p.op, win);
    if (threadIdx.x == 0 && status != Status::ok) *p.status = static_cast<std::int32_t>(status);
    flush(rank.local_size(), win);
  }
  rank.barrier();
}

__global__ void refused_calls_of(const __grid_constant__ RefusedCalls p) {
  __shared__ RankState state;
  Rank rank(p.world, state);
  const mpi::Win win(rank, p.window), dynamic(rank, p.dynamic);
  const int me = rank.rank(), nobody = rank.size();
  constexpr mpi::Type doubles = mpi::basic<double>(), bytes = mpi::basic<char>();
  const Status statuses[refused_calls] = {
      put(p.memory, 1, doubles, nobody, 0, 1, doubles, win),
      put(p.memory, -1, doubles, me, 0, -1, doubles, win),
      put(p.memory, 2, p.doubles, me, 0, 1, doubles, win),
      put(p.memory, 1, p.not_made, me, 0, 1, doubles, win),
      get(p.memory, 1, doubles, me, p.window.bytes - 7, 1, doubles, win),
      put(p.memory, 1, doubles, me, p.begin - 8, 1, doubles, dynamic),
      put_notify(p.memory, 2, doubles, me, p.end - 8, 2, doubles, dynamic, 0),
      put_notify(p.memory, 1, doubles, me, p.begin, 1, doubles, dynamic, -3),
      accumulate(p.memory, 8, bytes, me, 0, 8, bytes, Op::sum, win),
      accumulate(p.memory, 1, doubles, me, 0, 1, doubles, Op::bit_and, win),
      accumulate(p.memory, 1, doubles, me, 4, 1, doubles, Op::sum, win),
      flush(-1, win),
      put(p.memory, 8, bytes, me, 8, 1, doubles, win),
  };
  if (blockIdx.x == 0 && threadIdx.x == 0)
    for (int i = 0; i < refused_calls; ++i) p.statuses[i] = static_cast<std::int32_t>(statuses[i]);
}

}  // namespace

const void* one_access_kernel() {
  return reinterpret_cast<const void*>(one_access);
}
const void* combination_kernel() {
  return reinterpret_cast<const void*>(combination);
}
const void* refused_calls_kernel() {
  return reinterpret_cast<const void*>(refused_calls_of);
}
void expected_refusals(std::int32_t (&statuses)[refused_calls]) {
  constexpr Status expected[refused_calls] = {
      Status::bad_rank,   Status::bad_count, Status::bad_count, Status::bad_type, Status::bad_range,
      Status::bad_range,  Status::bad_range, Status::bad_tag,   Status::bad_type, Status::bad_op,
      Status::bad_layout, Status::bad_rank,  Status::ok};
  for (int i = 0; i < refused_calls; ++i) statuses[i] = static_cast<std::int32_t>(expected[i]);
}

}  // namespace gpudt::initiated::programs
