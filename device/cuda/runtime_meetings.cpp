// Streams of the program, which wait for the host.
#include "device/cuda/runtime.hpp"

namespace gpudt::device {
namespace {

/// The stream's graph, while it is being captured.
cudaGraph_t graph_of(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaGraph_t graph = nullptr;
#if CUDART_VERSION >= 13000
  check(cudaStreamGetCaptureInfo(stream, &status, nullptr, &graph, nullptr, nullptr, nullptr),
        "cudaStreamGetCaptureInfo");
#else
  check(cudaStreamGetCaptureInfo_v2(stream, &status, nullptr, &graph, nullptr, nullptr), "cudaStreamGetCaptureInfo");
#endif
  if (graph == nullptr) throw Error(Failure::runtime, "the capture of the stream has failed");
  return graph;
}

CUstreamBatchMemOpParams store(std::uint32_t* to, std::uint32_t value) {
  CUstreamBatchMemOpParams operation = {};
  operation.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  operation.writeValue.address = reinterpret_cast<CUdeviceptr>(to);
  operation.writeValue.value = value;
  operation.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;  // after all that the stream has written
  return operation;
}

CUstreamBatchMemOpParams wait_for(const GateWait& gate) {
  CUstreamBatchMemOpParams operation = {};
  operation.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  operation.waitValue.address = reinterpret_cast<CUdeviceptr>(gate.done);
  operation.waitValue.value = gate.value;
  operation.waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;  // modulo 2^32
  return operation;
}

}  // namespace

int CudaRuntime::stream_gpu(StreamHandle stream) {
  CUcontext caller = nullptr, of_stream = nullptr;
  CUdevice device = -1;
  driver_->ctx_get_current(&caller);
  if (driver_->stream_get_ctx(static_cast<CUstream>(stream), &of_stream) != CUDA_SUCCESS || of_stream == nullptr ||
      driver_->ctx_set_current(of_stream) != CUDA_SUCCESS)
    throw Error(Failure::runtime, "this is no CUDA stream");
  const CUresult asked = driver_->ctx_get_device(&device);
  driver_->ctx_set_current(caller);
  if (asked != CUDA_SUCCESS || device < 0 || device >= most_gpus)
    throw Error(Failure::runtime, "this CUDA stream belongs to no GPU");
  note_context(device, of_stream);
  return device;
}

bool CudaRuntime::is_captured(int ordinal, StreamHandle stream) {
  const Selected selected(*this, ordinal);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream_of(stream), &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

void CudaRuntime::keep_with_graph(int ordinal, StreamHandle stream, void (*released)(void*), void* data) {
  const Current current(*this, ordinal);
  cudaGraph_t graph = nullptr;
  cudaUserObject_t object = nullptr;
  try {
    graph = graph_of(stream_of(stream));
    check(cudaUserObjectCreate(&object, data, released, 1, cudaUserObjectNoDestructorSync), "cudaUserObjectCreate");
  } catch (const Error&) {
    released(data);
    throw;
  }
  const cudaError_t error = cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove);
  if (error == cudaSuccess) return;
  cudaUserObjectRelease(object, 1);  // calls released()
  fail(error, "cudaGraphRetainUserObject");
}

void CudaRuntime::meet(int ordinal, const Meeting& meeting, StreamHandle stream) {
  const Selected selected(*this, ordinal);
  std::array<CUstreamBatchMemOpParams, 1 + 2 * Meeting::most_waits> operations;
  unsigned count = 0;
  if (meeting.told != nullptr) operations[count++] = store(meeting.told, meeting.value);
  for (std::uint32_t i = 0; i < meeting.waits; ++i) operations[count++] = wait_for(meeting.wait[i]);
  for (std::uint32_t i = 0; i < meeting.waits; ++i)
    if (meeting.wait[i].closes) operations[count++] = store(meeting.wait[i].done, 0);
  const CUresult given = driver_->stream_batch_mem_op(static_cast<CUstream>(stream), count, operations.data(), 0);
  if (given == CUDA_ERROR_NOT_SUPPORTED)
    throw Error(Failure::runtime, "the GPU or its driver has no operations on memory in streams (cuStreamBatchMemOp)");
  if (given != CUDA_SUCCESS) throw Error(Failure::runtime, "cuStreamBatchMemOp failed");
}

}  // namespace gpudt::device
