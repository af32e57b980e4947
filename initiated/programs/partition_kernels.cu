#include "initiated/programs/partition_kernels.hpp"

#include "initiated/mpi_calls.cuh"

namespace gpudt::initiated::programs {
namespace {

template <class Scope>
__device__ Status partition_step(const mpi::Request& request, const PartitionStep& step, char* seen) {
  if (request.request.sends != 0)
    return step.other_form != 0 ? pready_list<Scope>(1, &step.partition, request)
                                : pready<Scope>(step.partition, request);
  Status status = Status::ok;
  if (step.other_form != 0)
    for (int flag = 0; flag == 0 && status == Status::ok;) status = parrived<Scope>(request, step.partition, &flag);
  else
    status = wait<Scope>(request, step.partition);
  if (step.byte != nullptr && Scope::index() == Scope::count() - 1) *seen = *step.byte;
  return status;
}

__global__ void __launch_bounds__(256) partition_steps(const __grid_constant__ PartitionSteps p) {
  __shared__ RankState state;
  Rank rank(p.world, state);
  for (int i = static_cast<int>(blockIdx.x); i < p.count; i += static_cast<int>(gridDim.x)) {
    const PartitionStep& step = p.steps[i];
    const mpi::Request request(rank, p.requests[step.request]);
    Status status = Status::ok;
    if (step.by == By::block) status = partition_step<Block>(request, step, p.seen + i);
    if (step.by == By::warp && threadIdx.x < 32) status = partition_step<Warp>(request, step, p.seen + i);
    if (step.by == By::thread && threadIdx.x == 0) status = partition_step<Thread>(request, step, p.seen + i);
    if (threadIdx.x == 0) p.statuses[i] = static_cast<std::int32_t>(status);
  }
}

__global__ void refused_partitions(const __grid_constant__ RefusedPartitions p) {
  __shared__ RankState state;
  Rank rank(p.world, state);
  const mpi::Request send(rank, p.send), receive(rank, p.receive), unstarted(rank, p.unstarted),
      not_made(rank, p.not_made);
  int flags[refused_partition_flags] = {-1, -1, -1};
  const int list[] = {1, 0};
  const Status statuses[refused_partition_calls] = {
      pready(-1, send),
      pready(3, send),
      pready(0, receive),
      pready(0, not_made),
      pready(0, unstarted),
      parrived(send, 0, &flags[0]),
      parrived(receive, 3, &flags[0]),
      wait(receive, -1),
      parrived(receive, 1, &flags[0]),
      pready_list(1, list, send),
      pready_list(2, list, send),  // partition 0 is not marked behind the error
      pready<Thread>(1, send),
      wait(receive, 1),
  };
  parrived(receive, 1, &flags[1]);
  parrived(receive, 0, &flags[2]);
  if (threadIdx.x != 0) return;
  for (int i = 0; i < refused_partition_calls; ++i) p.statuses[i] = static_cast<std::int32_t>(statuses[i]);
  for (int i = 0; i < refused_partition_flags; ++i) p.statuses[refused_partition_calls + i] = flags[i];
}

__global__ void __launch_bounds__(512) partition_pingpong(const __grid_constant__ PartitionPingPong p) {
  __shared__ RankState state;
  Rank rank(p.world, state);
  if (rank.gpu() > 1) return;
  const mpi::Request send(rank, p.send), receive(rank, p.receive);
  for (int i = 0; i < 2 * p.iterations; ++i) {
    if ((i & 1) == rank.gpu())
      pready(i / 2 * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x), send);
    else
      wait(receive, i / 2);
  }
}

}  // namespace

const void* partition_steps_kernel() {
  return reinterpret_cast<const void*>(partition_steps);
}
const void* refused_partitions_kernel() {
  return reinterpret_cast<const void*>(refused_partitions);
}
const void* partition_pingpong_kernel() {
  return reinterpret_cast<const void*>(partition_pingpong);
}
void expected_partition_refusals(std::int32_t (&statuses)[refused_partition_calls]) {
  constexpr Status expected[refused_partition_calls] = {Status::bad_partition,
                                                        Status::bad_partition,
                                                        Status::bad_request,
                                                        Status::bad_request,
                                                        Status::not_started,
                                                        Status::bad_request,
                                                        Status::bad_partition,
                                                        Status::bad_partition,
                                                        Status::ok,
                                                        Status::ok,
                                                        Status::not_started,
                                                        Status::not_started,
                                                        Status::ok};
  for (int i = 0; i < refused_partition_calls; ++i) statuses[i] = static_cast<std::int32_t>(expected[i]);
}

}  // namespace gpudt::initiated::programs
