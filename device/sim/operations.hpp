// What the two faces of the simulated device share, the CUDA names (cuda_api.cpp) and the table for libgpudt-pmpi.so
// (sim_api.cpp): handles, and checked operations on named devices and streams.
#pragma once

#include <cstddef>
#include <functional>

#include "device/sim/executor.hpp"
#include "device/sim/memory.hpp"

namespace gpudt::sim {

/// cudaSuccess if `device` can be used: it exists, this is not a forked child, and nothing has failed on it.
cudaError_t usable(int device);

// Handles are looked up, so that a stale one is an error and not a crash. nullptr: no such handle.
cudaStream_t stream_handle(const StreamRef& stream);
StreamRef stream_of(cudaStream_t handle, int current_device);  ///< knows the default streams
cudaError_t stream_destroy(cudaStream_t handle);
cudaError_t stream_query(Stream& stream);
cudaError_t stream_synchronize(Stream& stream);
void forget_streams_and_events(int device);

cudaError_t event_create(int device, unsigned flags, cudaEvent_t* event);
cudaError_t event_open(const cudaIpcEventHandle_t& handle, int device, cudaEvent_t* event);
cudaError_t event_destroy(cudaEvent_t handle);
EventRef event_of(cudaEvent_t handle);
// Not in a stream that is being captured.
cudaError_t event_record(Event& event, const StreamRef& stream);
cudaError_t event_hold(Event& event, const StreamRef& stream);

/// Rows of bytes at a pitch; one row for plain memory.
struct Rows {
  std::size_t width = 0, height = 1;
  std::size_t span(std::size_t pitch) const { return height == 0 ? 0 : (height - 1) * pitch + width; }
};
struct Side {
  void* address;
  std::size_t pitch;
};

/// With `blocking`, or when one side is pageable, returns once the copy is done.
cudaError_t copy(Side to, Side from, Rows rows, cudaMemcpyKind kind, const StreamRef& stream, bool blocking);
cudaError_t fill(Side to, int value, Rows rows, const StreamRef& stream, bool blocking);

cudaError_t free_device(void* address);  ///< waits for the device, as cudaFree does
cudaError_t free_pinned(void* address);

const char* error_name(cudaError_t error);
const char* error_string(cudaError_t error);

}  // namespace gpudt::sim
