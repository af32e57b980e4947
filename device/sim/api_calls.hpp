// What the CUDA runtime's functions of the simulated device share: the current device, the last error, and checks.
#pragma once

#include "device/sim/capture.hpp"
#include "device/sim/operations.hpp"

namespace gpudt::sim {

constexpr int greatest_priority = -5;  ///< of streams

/// The calling thread's current device and latest error.
inline thread_local int current_device = 0;
inline thread_local cudaError_t last_error = cudaSuccess;

/// Remembers an error for cudaGetLastError().
inline cudaError_t note(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}

/// Runs action(), which returns a cudaError_t, if the current device is usable.
template <class Action>
cudaError_t call(Action&& action) {
  const cudaError_t error = usable(current_device);
  return note(error == cudaSuccess ? action() : error);
}

/// call() for a function that captures may forbid.
template <class Action>
cudaError_t call_unsafe(Action&& action) {
  return call([&] {
    const cudaError_t error = capture_forbids_unsafe();
    return error == cudaSuccess ? action() : error;
  });
}

/// call() for a function that takes one of the program's streams.
template <class Action>
cudaError_t call_stream(cudaStream_t handle, Action&& action) {
  return call([&] {
    const StreamRef stream = stream_of(handle, current_device);
    return stream ? action(stream) : cudaErrorInvalidResourceHandle;
  });
}

/// call() for a function that takes an event.
template <class Action>
cudaError_t call_event(cudaEvent_t handle, Action&& action) {
  return call([&] {
    const EventRef event = event_of(handle);
    return event ? action(*event) : cudaErrorInvalidResourceHandle;
  });
}

inline StreamRef legacy() {
  return stream_of(nullptr, current_device);
}

inline bool valid_device(int device) {
  return device >= 0 && device < device_count();
}

}  // namespace gpudt::sim
