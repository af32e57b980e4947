// The four calls of GPI on GPUs (Daoud, Watad and Silberstein, GPUrdma, section 6), over Rank: GPUs are ranks, and a
// call is made by all threads of any block. Notifications are GPI's: each segment has numbered flags, which hold what
// was notified last until they are reset.
#pragma once

#include <climits>

#include "initiated/device.cuh"
#include "initiated/gaspi_host.hpp"

constexpr unsigned GASPI_BLOCK = 0xFFFFFFFFu;  ///< a timeout: none

enum gpu_gaspi_return { GASPI_SUCCESS = 0, GASPI_TIMEOUT = 1, GASPI_ERROR = -1 };

/// In shared memory.
struct gpu_gaspi_state {
  gpudt::initiated::RankState rank;
  const gpu_gaspi_context* context;
  int first;
};

namespace gpudt_gaspi {

/// Bytes from the begin of the window of flags.
__device__ inline std::int64_t offset_of(const gpu_gaspi_context& context, int segment, int id) {
  return (static_cast<std::int64_t>(segment) * context.notifications + id) *
         static_cast<std::int64_t>(sizeof(std::uint64_t));
}
/// Of this GPU.
__device__ inline std::uint64_t* flag(const gpu_gaspi_context& context, int segment, int id) {
  return reinterpret_cast<std::uint64_t*>(context.flags.base + offset_of(context, segment, id));
}
__device__ inline gpu_gaspi_return answer(gpudt::initiated::Status status) {
  return status == gpudt::initiated::Status::ok ? GASPI_SUCCESS : GASPI_ERROR;
}
__device__ inline bool is_segment(int segment) {
  return segment >= 0 && segment < gpu_gaspi_segments;
}

}  // namespace gpudt_gaspi

__device__ inline void gpu_gaspi_init(const gpu_gaspi_context& context, gpu_gaspi_state& state) {
  if (threadIdx.x == 0) state.context = &context;
  const gpudt::initiated::Rank rank(context.world, state.rank);  // ends with a barrier of the block
}

/// `queue` is there for GPI's sake: blocks do not share any. Returns at once; what was written may be seen by the
/// target behind a notification.
__device__ inline gpu_gaspi_return gpu_gaspi_write(gpu_gaspi_state& state, int segment_local, long long offset_local,
                                                   int rank, int segment_remote, long long offset_remote,
                                                   long long size, [[maybe_unused]] int queue = 0,
                                                   [[maybe_unused]] unsigned timeout_ms = GASPI_BLOCK) {
  using namespace gpudt::initiated;
  const gpu_gaspi_context& context = *state.context;
  if (!gpudt_gaspi::is_segment(segment_local) || !gpudt_gaspi::is_segment(segment_remote)) return GASPI_ERROR;
  Rank self(context.world, state.rank, Rank::Again());
  return gpudt_gaspi::answer(self.put(at(context.segment[segment_remote], rank, offset_remote),
                                      here(context.segment[segment_local].base + offset_local), size));
}

/// Sets flag `id` of the segment on `rank` to `value`, not 0, behind what the block has written there.
__device__ inline gpu_gaspi_return gpu_gaspi_notify(gpu_gaspi_state& state, int segment_remote, int rank, int id,
                                                    unsigned value, [[maybe_unused]] int queue = 0,
                                                    [[maybe_unused]] unsigned timeout_ms = GASPI_BLOCK) {
  using namespace gpudt::initiated;
  const gpu_gaspi_context& context = *state.context;
  if (!gpudt_gaspi::is_segment(segment_remote) || rank < 0 || rank >= context.world.gpus || id < 0 ||
      id >= context.notifications || value == 0)
    return GASPI_ERROR;
  Rank self(context.world, state.rank, Rank::Again());
  const auto offset = gpudt_gaspi::offset_of(context, segment_remote, id);
  return gpudt_gaspi::answer(self.store_behind(at(context.flags, rank, offset), value));
}

__device__ inline gpu_gaspi_return gpu_gaspi_write_notify(gpu_gaspi_state& state, int segment_local,
                                                          long long offset_local, int rank, int segment_remote,
                                                          long long offset_remote, long long size, int id,
                                                          unsigned value, int queue = 0,
                                                          unsigned timeout_ms = GASPI_BLOCK) {
  const gpu_gaspi_return written =
      gpu_gaspi_write(state, segment_local, offset_local, rank, segment_remote, offset_remote, size, queue, timeout_ms);
  return written != GASPI_SUCCESS ? written
                                  : gpu_gaspi_notify(state, segment_remote, rank, id, value, queue, timeout_ms);
}

/// Waits until one of flags [begin, begin + count) of this GPU's segment is set: the lowest goes to `*first`. It stays
/// set until gpu_gaspi_notify_reset.
__device__ inline gpu_gaspi_return gpu_gaspi_notify_waitsome(gpu_gaspi_state& state, int segment, int begin, int count,
                                                             int* first, unsigned timeout_ms = GASPI_BLOCK) {
  using namespace gpudt::initiated;
  const gpu_gaspi_context& context = *state.context;
  if (!gpudt_gaspi::is_segment(segment) || begin < 0 || count < 1 || begin + count > context.notifications)
    return GASPI_ERROR;
  const std::uint64_t start = detail::nanoseconds();
  detail::WaitTimer timer(context.world, context.world.gpu,
                          {"gpu_gaspi_notify_waitsome", {"segment", "begin", "count"}, {segment, begin, count}});
  for (;;) {
    __syncthreads();
    if (threadIdx.x == 0) state.first = INT_MAX;
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x))
      if (detail::acquire(gpudt_gaspi::flag(context, segment, begin + i)) != 0) atomicMin(&state.first, begin + i);
    const bool late = timeout_ms != GASPI_BLOCK && detail::nanoseconds() - start > timeout_ms * 1000000ull;
    // One answer for the block: the flag, else whether any thread's clock says so.
    const int any_late = __syncthreads_or(late ? 1 : 0);
    if (state.first != INT_MAX) break;
    if (any_late != 0) return GASPI_TIMEOUT;
    timer.poll();
  }
  *first = state.first;
  return GASPI_SUCCESS;
}

/// What flag `id` of this GPU's segment held goes to `*old`; the flag is 0 afterwards.
__device__ inline gpu_gaspi_return gpu_gaspi_notify_reset(gpu_gaspi_state& state, int segment, int id, unsigned* old) {
  using namespace gpudt::initiated;
  if (!gpudt_gaspi::is_segment(segment) || id < 0 || id >= state.context->notifications) return GASPI_ERROR;
  __syncthreads();
  if (threadIdx.x == 0)
    state.first = static_cast<int>(
        atomicExch(reinterpret_cast<unsigned long long*>(gpudt_gaspi::flag(*state.context, segment, id)), 0ull));
  __syncthreads();
  *old = static_cast<unsigned>(state.first);
  return GASPI_SUCCESS;
}
