// Streams and events, copies and launches.
#include "device/cuda/kernels.hpp"
#include "device/cuda/runtime.hpp"

namespace gpudt::device {
namespace {

cudaPitchedPtr pitched(const BoxSide& side, const CopyBox& box) {
  return {side.address, side.pitch, box.width, side.slice / side.pitch};
}

cudaError_t copy_3d(const CopyBox& box, cudaStream_t stream) {
  cudaMemcpy3DParms parameters = {};
  parameters.dstPtr = pitched(box.to, box);
  parameters.srcPtr = pitched(box.from, box);
  parameters.extent = {box.width, box.height, box.depth};
  parameters.kind = cudaMemcpyDefault;
  return cudaMemcpy3DAsync(&parameters, stream);
}

/// False if the runtime has refused a call's arguments.
bool taken(cudaError_t error, const char* call) {
  if (error == cudaErrorInvalidValue || error == cudaErrorInvalidPitchValue || error == cudaErrorNotSupported) {
    cudaGetLastError();
    return false;
  }
  check(error, call);
  return true;
}

}  // namespace

StreamHandle CudaRuntime::stream_create(int ordinal) {
  const Current current(*this, ordinal);
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest), "cudaStreamCreateWithPriority");
  return stream;
}

void CudaRuntime::stream_destroy(int ordinal, StreamHandle stream) noexcept try {
  const Current current(*this, ordinal);
  check(cudaStreamDestroy(stream_of(stream)), "cudaStreamDestroy");
} catch (const std::exception&) {
  // The stream stays.
}

void CudaRuntime::stream_synchronize(int ordinal, StreamHandle stream) {
  const Current current(*this, ordinal);
  check(cudaStreamSynchronize(stream_of(stream)), "cudaStreamSynchronize");
}

void CudaRuntime::stream_check(int ordinal, StreamHandle stream) {
  const Current current(*this, ordinal);
  const cudaError_t error = cudaStreamQuery(stream_of(stream));
  if (error != cudaErrorNotReady) return check(error, "cudaStreamQuery");
  cudaGetLastError();
}

EventHandle CudaRuntime::event_create(int ordinal) {
  const Current current(*this, ordinal);
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  return event;
}

void CudaRuntime::event_destroy(int ordinal, EventHandle event) noexcept try {
  const Current current(*this, ordinal);
  check(cudaEventDestroy(event_of(event)), "cudaEventDestroy");
} catch (const std::exception&) {
  // The event stays.
}

void CudaRuntime::event_record(int ordinal, EventHandle event, StreamHandle stream) {
  const Current current(*this, ordinal);
  check(cudaEventRecord(event_of(event), stream_of(stream)), "cudaEventRecord");
}

void CudaRuntime::stream_wait_event(int ordinal, StreamHandle stream, EventHandle event) {
  const Current current(*this, ordinal);
  check(cudaStreamWaitEvent(stream_of(stream), event_of(event), 0), "cudaStreamWaitEvent");
}

namespace {

/// Whether the stream may be given work or queried. During a capture of a blocking stream either is an error for the
/// legacy default stream and invalidates the capture; cudaStreamIsCapturing() does not.
bool usable(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t error = cudaStreamIsCapturing(stream, &status);
  if (error == cudaErrorStreamCaptureImplicit) {
    cudaGetLastError();
    return false;
  }
  check(error, "cudaStreamIsCapturing");
  return status == cudaStreamCaptureStatusNone;
}

}  // namespace

bool CudaRuntime::signal_default_async(int ordinal, std::uint32_t* flag, std::uint32_t value, bool per_thread) {
  const Selected selected(*this, ordinal);
  cudaStream_t const stream = per_thread ? cudaStreamPerThread : cudaStreamLegacy;
  if (!usable(stream)) return false;
  write_value(stream, flag, value);
  return true;
}

bool CudaRuntime::default_stream_idle(int ordinal, bool while_capturing) {
  const Current current(*this, ordinal);
  if (!usable(cudaStreamLegacy)) return while_capturing;
  const cudaError_t error = cudaStreamQuery(cudaStreamLegacy);
  if (error != cudaErrorNotReady) check(error, "cudaStreamQuery");
  cudaGetLastError();
  return error == cudaSuccess;
}

void CudaRuntime::copy_async(int ordinal, void* to, const void* from, std::size_t bytes, StreamHandle stream) {
  const Current current(*this, ordinal);
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_of(stream)), "cudaMemcpyAsync");
}

bool CudaRuntime::copy_box_async(int ordinal, const CopyBox& box, StreamHandle handle) {
  const Current current(*this, ordinal);
  const cudaStream_t stream = stream_of(handle);
  const cudaError_t error =
      box.depth > 1    ? copy_3d(box, stream)
      : box.height > 1 ? cudaMemcpy2DAsync(box.to.address, box.to.pitch, box.from.address, box.from.pitch, box.width,
                                           box.height, cudaMemcpyDefault, stream)
                       : cudaMemcpyAsync(box.to.address, box.from.address, box.width, cudaMemcpyDefault, stream);
  return taken(error, "copying by the copy engine");
}

#if CUDART_VERSION >= 13000
bool CudaRuntime::copy_runs_async(int ordinal, std::span<const CopyBox> runs, StreamHandle stream) {
  const Current current(*this, ordinal);
  std::array<void*, most_runs> to;
  std::array<const void*, most_runs> from;
  std::array<std::size_t, most_runs> bytes;
  for (std::size_t run = 0; run < runs.size(); ++run) {
    to[run] = runs[run].to.address;
    from[run] = runs[run].from.address;
    bytes[run] = runs[run].width;
  }
  cudaMemcpyAttributes attributes = {};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  std::size_t first_alike = 0;  // index of the first run that the attributes are for
  return taken(cudaMemcpyBatchAsync(to.data(), from.data(), bytes.data(), runs.size(), &attributes, &first_alike, 1,
                                    stream_of(stream)),
               "copying runs by the copy engine");
}
#endif

void CudaRuntime::write_value(cudaStream_t stream, std::uint32_t* flag, std::uint32_t value) const {
  if (driver_->stream_write_value32(stream, reinterpret_cast<CUdeviceptr>(flag), value, 0) != CUDA_SUCCESS)
    throw Error(Failure::runtime, "cuStreamWriteValue32 failed");
}

void CudaRuntime::signal_async(int ordinal, std::uint32_t* flag, std::uint32_t value, StreamHandle stream) {
  const Selected selected(*this, ordinal);
  write_value(stream_of(stream), flag, value);
}

void CudaRuntime::memset_async(int ordinal, void* to, int value, std::size_t bytes, StreamHandle stream) {
  const Current current(*this, ordinal);
  check(cudaMemsetAsync(to, value, bytes, stream_of(stream)), "cudaMemsetAsync");
}

void CudaRuntime::launch(int ordinal, const KernelArgs& args, StreamHandle stream) {
  const Selected selected(*this, ordinal);
  check(static_cast<cudaError_t>(cuda::launch_kernel(args, stream)), "cudaLaunchKernel");
}

void CudaRuntime::launch(int ordinal, const TransferArgs& args, StreamHandle stream) {
  const Selected selected(*this, ordinal);
  check(static_cast<cudaError_t>(cuda::launch_transfer_kernel(args, stream)), "cudaLaunchKernel");
}

void CudaRuntime::launch(int ordinal, const BatchArgs& batch, StreamHandle stream) {
  const Selected selected(*this, ordinal);
  check(static_cast<cudaError_t>(cuda::launch_batch_kernel(batch, stream)), "cudaLaunchKernel");
}

void CudaRuntime::launch(int ordinal, const ReduceArgs& args, StreamHandle stream) {
  const Selected selected(*this, ordinal);
  check(static_cast<cudaError_t>(cuda::launch_reduce_kernel(args, stream)), "cudaLaunchKernel");
}

void CudaRuntime::launch(int ordinal, const CopyBlocksArgs& args, StreamHandle stream) {
  const Selected selected(*this, ordinal);
  check(static_cast<cudaError_t>(cuda::launch_copy_blocks_kernel(args, stream)), "cudaLaunchKernel");
}

void CudaRuntime::launch(int ordinal, const ResidentArgs& args, StreamHandle stream) {
  const Selected selected(*this, ordinal);
  check(static_cast<cudaError_t>(cuda::launch_resident_kernel(args, stream)), "cudaLaunchKernel");
}

}  // namespace gpudt::device
