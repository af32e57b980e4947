#include "initiated/programs/dcuda_kernels.hpp"

#include "initiated/dcuda.cuh"

namespace gpudt::initiated::programs {
namespace {

/// As dCUDA's programs are written: each rank keeps a piece of a row and ghost pieces of both neighbours, in a window
/// of three pieces that begins with the left one. On one device windows overlap, so that nothing is copied there.
__global__ void __launch_bounds__(128) ring(dcuda_context_handle dcuda) {
  __shared__ dcuda_state gst;
  dcuda_gpu_init(dcuda, gst);
  void* data = nullptr;
  dcuda_get_data(gst, &data);
  auto& ring = *static_cast<DcudaRing*>(data);
  int rank, size, device_rank, device_size;
  dcuda_comm_rank(gst, DCUDA_COMM_WORLD, &rank);
  dcuda_comm_size(gst, DCUDA_COMM_WORLD, &size);
  dcuda_comm_rank(gst, DCUDA_COMM_DEVICE, &device_rank);
  dcuda_comm_size(gst, DCUDA_COMM_DEVICE, &device_size);
  const auto expect = [&](bool ok) {
    if (!ok) atomicAdd(&ring.wrong, 1ull);
  };
  expect(size % device_size == 0 && rank % device_size == device_rank);

  const int words = ring.words;
  const long long piece = static_cast<long long>(words * sizeof(double));
  double* const left = ring.field + device_rank * words;  // the neighbour's piece, or its copy
  double* const mine = left + words;
  double* const right = mine + words;
  dcuda_win win, device_win, small;
  dcuda_win_create(gst, DCUDA_COMM_WORLD, left, 3 * piece, &win);
  dcuda_win_create(gst, DCUDA_COMM_DEVICE, mine, piece, &device_win);
  dcuda_start_cpu_timer(gst);
  const bool has_left = rank > 0, has_right = rank + 1 < size;
  const int neighbours = (has_left ? 1 : 0) + (has_right ? 1 : 0);
  for (int step = 0; step < ring.steps; ++step) {
    for (int i = threadIdx.x; i < words; i += blockDim.x) mine[i] = step * 1e6 + rank * 1e3 + i;
    __syncthreads();
    if (has_left) dcuda_put_notify(gst, win, rank - 1, 2 * piece, piece, mine, step);
    if (has_right) dcuda_put_notify(gst, win, rank + 1, 0, piece, mine, step);
    if (neighbours > 0) dcuda_wait_notifications(gst, step, neighbours);
    for (int i = threadIdx.x; i < words; i += blockDim.x) {
      if (has_left) expect(left[i] == step * 1e6 + (rank - 1) * 1e3 + i);
      if (has_right) expect(right[i] == step * 1e6 + (rank + 1) * 1e3 + i);
    }
    // The neighbours may write again: told without data.
    const int done = ring.steps + step;
    if (has_left) dcuda_notify(gst, rank - 1, DCUDA_COMM_WORLD, done);
    if (has_right) dcuda_notify(gst, rank + 1, DCUDA_COMM_WORLD, done);
    if (neighbours > 0)
      while (dcuda_test_notifications(gst, done, neighbours) == 0) {
      }
  }
  dcuda_stop_cpu_timer(gst);
  dcuda_win_flush(gst, win);
  dcuda_comm_barrier(gst, DCUDA_COMM_WORLD);

  // The earlier version's: what the next rank of the device has.
  const int next = (device_rank + 1) % device_size;
  if (device_size > 1) {
    dcuda_comm_barrier(gst, DCUDA_COMM_DEVICE);
    if (device_rank == 0) {
      dcuda_get_notify(gst, device_win, next, 0, piece, left, 3);
      for (int i = threadIdx.x; i < words; i += blockDim.x)
        expect(left[i] == (ring.steps - 1) * 1e6 + (rank - device_rank + next) * 1e3 + i);
    }
    if (device_rank == 1) dcuda_wait_notifications(gst, 3, 1);
  }
  dcuda_comm_barrier(gst, DCUDA_COMM_WORLD);
  // Numbers of windows are used again.
  dcuda_win_free(gst, device_win);
  dcuda_win_create(gst, DCUDA_COMM_DEVICE, mine, piece, &small);
  if (threadIdx.x == 0) expect(small == device_win);
  dcuda_win_free(gst, small);
  dcuda_win_free(gst, win);
  if (rank == 0 && threadIdx.x == 0)
    dcuda_log_get(gst) << "log of rank " << rank << " of " << size << ", " << ring.steps << " steps"
                       << dcuda_log::flush;
  dcuda_gpu_finish(gst);
}

}  // namespace

dcuda_kernel_t dcuda_ring_kernel() {
  return ring;
}

}  // namespace gpudt::initiated::programs
