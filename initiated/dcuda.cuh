// dCUDA's interface for kernels (Gysi et al.; thesis, sections 3.3.2 and 3.3.3), over Rank: ranks are thread blocks,
// and a call is made by all threads of one, unless it says otherwise. dcuda_get and dcuda_get_notify are the earlier
// version's. Tags are not limited to 255, nor sizes to 2^31. Layouts, sources and wildcards: by dcuda_rank().
#pragma once

#include <cstdio>

#include "initiated/dcuda_host.hpp"
#include "initiated/device.cuh"

using dcuda_comm = int;
constexpr dcuda_comm DCUDA_COMM_WORLD = 0, DCUDA_COMM_DEVICE = 1;
using dcuda_win = int;
constexpr dcuda_win DCUDA_WIN_NONE = -1;

/// In shared memory.
struct dcuda_state {
  gpudt::initiated::RankState rank;
  dcuda_context* context;
  unsigned used[2];  ///< windows that there are, of each communicator
};

/// The rank for everything that has no name here. Any thread.
__device__ inline gpudt::initiated::Rank dcuda_rank(dcuda_state& gst) {
  return gpudt::initiated::Rank(gst.context->world, gst.rank, gpudt::initiated::Rank::Again());
}

__device__ inline void dcuda_comm_barrier(dcuda_state& gst, dcuda_comm comm) {
  comm == DCUDA_COMM_WORLD ? dcuda_rank(gst).barrier() : dcuda_rank(gst).device_barrier();
}

/// All ranks; a barrier.
__device__ inline void dcuda_gpu_init(dcuda_context_handle dcuda, dcuda_state& gst) {
  if (threadIdx.x == 0) {
    gst.context = dcuda;
    gst.used[0] = gst.used[1] = 0;
  }
  __syncthreads();
  gpudt::initiated::Rank(dcuda->world, gst.rank).barrier();
}
/// All ranks; a barrier. Nothing may be called behind it.
__device__ inline void dcuda_gpu_finish(dcuda_state& gst) {
  dcuda_rank(gst).barrier();
}

/// Any thread.
__device__ inline void dcuda_get_data(dcuda_state& gst, void** gpu_data) {
  *gpu_data = gst.context->data;
}
__device__ inline void dcuda_comm_size(dcuda_state& gst, dcuda_comm comm, int* size) {
  *size = comm == DCUDA_COMM_WORLD ? gst.context->world.size() : gst.context->world.ranks.per_gpu;
}
__device__ inline void dcuda_comm_rank(dcuda_state& gst, dcuda_comm comm, int* rank) {
  *rank = comm == DCUDA_COMM_WORLD ? dcuda_rank(gst).rank() : dcuda_rank(gst).local_rank();
}

/// By all ranks of the device; the clock is block 0's, in nanoseconds of the GPU's global timer.
__device__ inline void dcuda_start_cpu_timer(dcuda_state& gst) {
  if (blockIdx.x == 0 && threadIdx.x == 0) gst.context->started = gpudt::initiated::detail::nanoseconds();
}
__device__ inline void dcuda_stop_cpu_timer(dcuda_state& gst) {
  if (blockIdx.x != 0 || threadIdx.x != 0 || gst.context->timings >= dcuda_most_timings) return;
  const auto took = static_cast<double>(gpudt::initiated::detail::nanoseconds() - gst.context->started);
  gst.context->milliseconds[gst.context->timings++] = took * 1e-6;
}

namespace gpudt_dcuda {

/// Windows of the world come first, then those of devices.
__device__ inline dcuda_comm comm_of(dcuda_win win) {
  return win < dcuda_most_windows ? DCUDA_COMM_WORLD : DCUDA_COMM_DEVICE;
}
__device__ inline int world_rank(const dcuda_state& gst, dcuda_comm comm, int rank) {
  return comm == DCUDA_COMM_WORLD ? rank : gst.context->world.gpu * gst.context->world.ranks.per_gpu + rank;
}
__device__ inline long long place_at(const dcuda_state& gst, dcuda_win win, int rank) {
  return static_cast<long long>(sizeof(dcuda_place)) * (win * static_cast<long long>(gst.context->world.size()) + rank);
}
/// Where `offset` of a rank's window is. Beyond the window: a place that Rank refuses.
__device__ inline gpudt::initiated::Remote remote(const dcuda_state& gst, dcuda_win win, int rank, long long offset,
                                                  long long size) {
  const int target = world_rank(gst, comm_of(win), rank);
  if (target < 0 || target >= gst.context->world.size()) return gpudt::initiated::at(gst.context->heap, target, 0);
  const volatile dcuda_place* const place =
      reinterpret_cast<const dcuda_place*>(gst.context->places.base + place_at(gst, win, target));
  const bool within = offset >= 0 && offset + size <= place->bytes;
  return gpudt::initiated::at(gst.context->heap, target, within ? place->offset + offset : -1);
}

}  // namespace gpudt_dcuda

/// All ranks of the communicator; a barrier among them. `winbase` lies in memory of dcuda_host_malloc.
__device__ inline void dcuda_win_create(dcuda_state& gst, dcuda_comm comm, void* winbase, long long size,
                                        dcuda_win* win) {
  using namespace gpudt::initiated;
  const int slot = __ffs(static_cast<int>(~gst.used[comm])) - 1;
  const dcuda_context& context = *gst.context;
  const long long offset = static_cast<char*>(winbase) - context.heap.base;
  const bool fits = slot < dcuda_most_windows && offset >= 0 && size >= 0 && offset + size <= context.heap.bytes;
  const dcuda_win made = slot + (comm == DCUDA_COMM_WORLD ? 0 : dcuda_most_windows);
  Rank rank(context.world, gst.rank, Rank::Again());
  __syncthreads();  // all have read what is used
  if (slot < dcuda_most_windows) {
    const long long at_place = gpudt_dcuda::place_at(gst, made, rank.rank());
    auto* const place = reinterpret_cast<dcuda_place*>(context.places.base + at_place);
    if (threadIdx.x == 0) {
      *place = {offset, fits ? size : 0};
      gst.used[comm] |= 1u << slot;
    }
    __syncthreads();
    if (comm == DCUDA_COMM_WORLD)
      for (int gpu = 0; gpu < rank.gpus(); ++gpu)
        if (gpu != rank.gpu())
          rank.put(at(context.places, gpu * context.world.ranks.per_gpu, at_place), here(place), sizeof *place);
  }
  dcuda_comm_barrier(gst, comm);
  *win = fits ? made : DCUDA_WIN_NONE;
}
/// All ranks of its communicator; a barrier among them.
__device__ inline void dcuda_win_free(dcuda_state& gst, dcuda_win win) {
  if (win == DCUDA_WIN_NONE) return;
  const dcuda_comm comm = gpudt_dcuda::comm_of(win);
  dcuda_comm_barrier(gst, comm);
  if (threadIdx.x == 0) gst.used[comm] &= ~(1u << win % dcuda_most_windows);
  __syncthreads();
}

__device__ inline void dcuda_notify(dcuda_state& gst, int rank, dcuda_comm comm, int tag) {
  dcuda_rank(gst).notify(gpudt_dcuda::world_rank(gst, comm, rank), tag);
}
__device__ inline void dcuda_put(dcuda_state& gst, dcuda_win win, int rank, long long offset, long long size,
                                 void* buffer) {
  dcuda_rank(gst).put(gpudt_dcuda::remote(gst, win, rank, offset, size), gpudt::initiated::here(buffer), size);
}
__device__ inline void dcuda_put_notify(dcuda_state& gst, dcuda_win win, int rank, long long offset, long long size,
                                        void* buffer, int tag) {
  dcuda_rank(gst).put_notify(gpudt_dcuda::remote(gst, win, rank, offset, size), gpudt::initiated::here(buffer), size,
                             tag);
}
__device__ inline void dcuda_get(dcuda_state& gst, dcuda_win win, int rank, long long offset, long long size,
                                 void* buffer) {
  dcuda_rank(gst).get(gpudt::initiated::here(buffer), gpudt_dcuda::remote(gst, win, rank, offset, size), size);
}
__device__ inline void dcuda_get_notify(dcuda_state& gst, dcuda_win win, int rank, long long offset, long long size,
                                        void* buffer, int tag) {
  dcuda_rank(gst).get_notify(gpudt::initiated::here(buffer), gpudt_dcuda::remote(gst, win, rank, offset, size), size,
                             tag);
}
__device__ inline void dcuda_win_flush(dcuda_state& gst, dcuda_win) {
  dcuda_rank(gst).flush();
}
/// 1 if there were `count` notifications with the tag, which are consumed; else 0.
__device__ inline int dcuda_test_notifications(dcuda_state& gst, int tag, int count) {
  using namespace gpudt::initiated;
  return dcuda_rank(gst).test_notifications({any_value, any_value, tag}, count) == Status::ok ? 1 : 0;
}
__device__ inline void dcuda_wait_notifications(dcuda_state& gst, int tag, int count) {
  using namespace gpudt::initiated;
  dcuda_rank(gst).wait_notifications({any_value, any_value, tag}, count);
}

/// log << "sum " << value << log.flush: by each thread that calls it; pieces are printed as they come.
struct dcuda_log {
  struct Flush {};
  static constexpr Flush flush = {};
  __device__ const dcuda_log& operator<<(const char* text) const { return say("%s", text); }
  __device__ const dcuda_log& operator<<(int value) const { return say("%d", value); }
  __device__ const dcuda_log& operator<<(long long value) const { return say("%lld", value); }
  __device__ const dcuda_log& operator<<(double value) const { return say("%g", value); }
  __device__ const dcuda_log& operator<<(Flush) const { return say("%s", "\n"); }

 private:
  template <class Value>
  __device__ const dcuda_log& say(const char* format, Value value) const {
    printf(format, value);
    return *this;
  }
};
__device__ inline dcuda_log dcuda_log_get(dcuda_state&) {
  return {};
}
