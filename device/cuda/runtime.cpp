// The Runtime of real GPUs, over a static CUDA runtime library of its own: the program's library, whatever its
// version, and its last error are not touched.
//
// All work of a GPU goes to one context: that of the program's memory, as a rule the primary one, which the program's
// CUDA runtime uses too. At the first call that needs it all kernels are loaded (a few milliseconds), because loading
// one later might have to wait for the program's kernels.
#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstring>
#include <string>

#include "base/mutex.hpp"
#include "device/cuda/driver.hpp"
#include "device/cuda/kernels.hpp"
#include "device/host_pages.hpp"
#include "device/runtime.hpp"

namespace gpudt::device {
namespace {

constexpr int most_gpus = 64;

[[noreturn]] void fail(cudaError_t error, const char* call) {
  cudaGetLastError();  // leaves no trace of it, unless it is sticky
  const Failure failure = error == cudaErrorMemoryAllocation ? Failure::out_of_memory : Failure::runtime;
  throw Error(failure, std::string(call) + ": " + cudaGetErrorName(error) + " (" + cudaGetErrorString(error) + ")");
}

void check(cudaError_t error, const char* call) {
  if (error != cudaSuccess) fail(error, call);
}

cudaStream_t stream_of(StreamHandle stream) {
  return static_cast<cudaStream_t>(stream);
}
cudaEvent_t event_of(EventHandle event) {
  return static_cast<cudaEvent_t>(event);
}

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

class CudaRuntime final : public Runtime {
 public:
  explicit CudaRuntime(std::unique_ptr<const cuda::Driver> driver) : driver_(std::move(driver)) {}

  const char* name() const noexcept override { return "cuda"; }
  Location classify(const void* address) noexcept override;
  Traits traits(int ordinal) override;
  void forget(int ordinal) noexcept override;
  void* mapped_alloc(int ordinal, std::size_t bytes) override;
  void mapped_free(void* address) noexcept override;
  bool host_register(int ordinal, void* address, std::size_t bytes) override;
  void host_unregister(void* address) noexcept override;
  void* device_alloc(int ordinal, std::size_t bytes) override;
  void device_free(int ordinal, void* address) noexcept override;
  StreamHandle stream_create(int ordinal) override;
  void stream_destroy(int ordinal, StreamHandle stream) noexcept override;
  void stream_synchronize(int ordinal, StreamHandle stream) override;
  void stream_check(int ordinal, StreamHandle stream) override;
  EventHandle event_create(int ordinal) override;
  void event_destroy(int ordinal, EventHandle event) noexcept override;
  void event_record(int ordinal, EventHandle event, StreamHandle stream) override;
  bool event_done(int ordinal, EventHandle event) override;
  bool signal_default_async(int ordinal, std::uint32_t* flag, std::uint32_t value, bool per_thread) override;
  bool default_stream_idle(int ordinal, bool while_capturing) override;
  void stream_wait_event(int ordinal, StreamHandle stream, EventHandle event) override;
  void copy_async(int ordinal, void* to, const void* from, std::size_t bytes, StreamHandle stream) override;
  bool copy_box_async(int ordinal, const CopyBox& box, StreamHandle stream) override;
#if CUDART_VERSION >= 13000
  bool copies_runs_together() const noexcept override {
    return true;
  }
  bool copy_runs_async(int ordinal, const CopyPlan& runs, std::int64_t first, std::int64_t last,
                       StreamHandle stream) override;
#endif
  void signal_async(int ordinal, std::uint32_t* flag, std::uint32_t value, StreamHandle stream) override;
  void memset_async(int ordinal, void* to, int value, std::size_t bytes, StreamHandle stream) override;
  void launch(int ordinal, const KernelArgs& args, StreamHandle stream) override;
  void launch(int ordinal, const TransferArgs& args, StreamHandle stream) override;
  void launch(int ordinal, const BatchArgs& batch, StreamHandle stream) override;
  void launch(int ordinal, const ReduceArgs& args, StreamHandle stream) override;
  void launch(int ordinal, const CopyBlocksArgs& args, StreamHandle stream) override;
  void launch(int ordinal, const ResidentArgs& args, StreamHandle stream) override;
  bool allocation_of(const void* address, Allocation& allocation) noexcept override;
  std::uint64_t allocation_id(const void* address) noexcept override;
  std::size_t granule() const noexcept override {
    return std::size_t{2} << 20;  // the driver reserves addresses for GPUs in multiples of its pages
  }
  bool in_use() noexcept override;
  int find_gpu(const GpuId& id) noexcept override;
  bool can_access_peer(int ordinal, int peer) override;
  void enable_peer_access(int ordinal, int peer) override;
  IpcHandle ipc_export(int ordinal, void* base) override;
  void* ipc_open(int ordinal, const IpcHandle& handle) override;
  void ipc_close(int ordinal, void* address) noexcept override;

 private:
  class Selected;
  class Relaxed;
  class Current;
  CUcontext context(int ordinal);
  void note_context(int ordinal, CUcontext context) noexcept;
  void write_value(cudaStream_t stream, std::uint32_t* flag, std::uint32_t value) const;
  int any_prepared() const noexcept;
  GpuId id_of(int ordinal) const noexcept;

  std::unique_ptr<const cuda::Driver> driver_;
  std::array<std::atomic<CUcontext>, most_gpus> contexts_ = {};  ///< that are used
  std::array<std::atomic<CUcontext>, most_gpus> seen_ = {};      ///< of the memory that was seen before
  Mutex preparing_;
  HostPages host_pages_;
};

/// While it lives, calls that a capture in the program would forbid are legal in this thread and do not break it.
class CudaRuntime::Relaxed {
 public:
  Relaxed() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~Relaxed() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  Relaxed(const Relaxed&) = delete;
  Relaxed& operator=(const Relaxed&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

/// While it lives, the context that is used on a GPU is the thread's current one. The context that was current before,
/// perhaps none, is restored: selecting the caller's device instead could create a context on it. This is enough for
/// what a capture forbids nobody: launches and writes to streams of our own.
class CudaRuntime::Selected {
 public:
  Selected(CudaRuntime& runtime, int ordinal) : driver_(*runtime.driver_) {
    driver_.ctx_get_current(&caller_);  // fails only if the driver is not initialised: no context either
    const CUcontext wanted = runtime.context(ordinal);
    if (wanted == caller_) return;
    if (driver_.ctx_set_current(wanted) != CUDA_SUCCESS) fail(cudaErrorDeviceUninitialized, "select a GPU");
    switched_ = true;
  }
  ~Selected() {
    if (switched_) driver_.ctx_set_current(caller_);
  }
  Selected(const Selected&) = delete;
  Selected& operator=(const Selected&) = delete;

 private:
  const cuda::Driver& driver_;
  CUcontext caller_ = nullptr;
  bool switched_ = false;
};

/// The same, for all other calls.
class CudaRuntime::Current : Selected {
 public:
  using Selected::Selected;

 private:
  Relaxed relaxed_;  // while there is a context
};

/// The context that is used on a GPU: that of the memory of this GPU which was seen first, since kernels of one context
/// wait for those of others, else the primary one. The first time, the kernels are loaded.
CUcontext CudaRuntime::context(int ordinal) {
  if (ordinal < 0 || ordinal >= most_gpus) fail(cudaErrorInvalidDevice, "select a GPU");
  auto& known = contexts_[static_cast<std::size_t>(ordinal)];
  if (const CUcontext context = known.load(std::memory_order_acquire)) return context;
  LockGuard lock(preparing_);
  if (const CUcontext context = known.load(std::memory_order_acquire)) return context;
  CUcontext caller = nullptr;
  driver_->ctx_get_current(&caller);
  const CUcontext of_memory = seen_[static_cast<std::size_t>(ordinal)].load(std::memory_order_acquire);
  cudaError_t error = cudaSuccess;
  if (of_memory == nullptr || driver_->ctx_set_current(of_memory) != CUDA_SUCCESS) error = cudaSetDevice(ordinal);
  if (error == cudaSuccess) {
    const Relaxed relaxed;
    error = cudaFree(nullptr);  // creates the context where cudaSetDevice does not
    if (error == cudaSuccess) error = static_cast<cudaError_t>(cuda::load_kernels());
    if (error == cudaSuccess) error = static_cast<cudaError_t>(cuda::load_transfer_kernels());
    if (error == cudaSuccess) error = static_cast<cudaError_t>(cuda::load_batch_kernel());
    if (error == cudaSuccess) error = static_cast<cudaError_t>(cuda::load_resident_kernel());
    if (error == cudaSuccess) error = static_cast<cudaError_t>(cuda::load_reduce_kernels());
    if (error == cudaSuccess) error = static_cast<cudaError_t>(cuda::load_copy_blocks_kernel());
  }
  CUcontext context = nullptr;
  driver_->ctx_get_current(&context);
  driver_->ctx_set_current(caller);
  check(error, "select a GPU and load the kernels");
  known.store(context, std::memory_order_release);
  return context;
}

void CudaRuntime::forget(int ordinal) noexcept {
  contexts_[static_cast<std::size_t>(ordinal)].store(nullptr);
  seen_[static_cast<std::size_t>(ordinal)].store(nullptr);
}

/// A GPU whose context exists, or -1.
int CudaRuntime::any_prepared() const noexcept {
  for (int ordinal = 0; ordinal < most_gpus; ++ordinal)
    if (contexts_[static_cast<std::size_t>(ordinal)].load(std::memory_order_acquire)) return ordinal;
  return -1;
}

Location CudaRuntime::classify(const void* address) noexcept {
  // One query, of the kind that takes pageable memory for an answer (all zeros): the query for a single attribute
  // fails there, and a failure costs the driver several times as much as an answer.
  unsigned type = 0, managed = 0;
  int ordinal = -1;
  CUcontext context = nullptr;  // null of memory that belongs to none, as a pool's
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_CONTEXT};
  void* values[] = {&type, &managed, &ordinal, static_cast<void*>(&context)};
  // An uninitialised driver answers with an error: then there is no device memory.
  if (driver_->pointer_get_attributes(4, attributes, values, reinterpret_cast<CUdeviceptr>(address)) != CUDA_SUCCESS ||
      type == 0)
    return {};
  if (type == CU_MEMORYTYPE_HOST && managed == 0) return {MemoryKind::pinned, -1};
  if (ordinal < 0) return {};
  if (context != nullptr && ordinal < most_gpus) note_context(ordinal, context);
  return {managed != 0 ? MemoryKind::managed : MemoryKind::device, ordinal};
}

void CudaRuntime::note_context(int ordinal, CUcontext context) noexcept {
  auto& seen = seen_[static_cast<std::size_t>(ordinal)];
  CUcontext none = nullptr;
  if (seen.load(std::memory_order_relaxed) == nullptr) seen.compare_exchange_strong(none, context);
}

Traits CudaRuntime::traits(int ordinal) {
  const Current current(*this, ordinal);
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties");
  return {properties.multiProcessorCount, properties.name, id_of(ordinal), 10 * properties.major + properties.minor};
}

/// All zeros if the driver does not tell, which equals no GPU's.
GpuId CudaRuntime::id_of(int ordinal) const noexcept {
  CUuuid uuid = {};
  GpuId id = {};
  static_assert(sizeof uuid == sizeof id);
  if (driver_->device_get_uuid(&uuid, ordinal) == CUDA_SUCCESS) std::memcpy(id.data(), &uuid, sizeof id);
  return id;
}

int CudaRuntime::find_gpu(const GpuId& id) noexcept {
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess) cudaGetLastError();
  for (int ordinal = 0; ordinal < gpus; ++ordinal)
    if (id_of(ordinal) == id && id != GpuId{}) return ordinal;
  return -1;
}

bool CudaRuntime::allocation_of(const void* address, Allocation& allocation) noexcept {
  unsigned type = 0, managed = 0;
  unsigned long long id = 0, exportable = 0;  // the latter is a bool, of a size that is not documented
  CUdeviceptr base = 0;
  std::size_t size = 0;
  CUpointer_attribute attributes[] = {
      CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
      CU_POINTER_ATTRIBUTE_BUFFER_ID,   CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
      CU_POINTER_ATTRIBUTE_RANGE_SIZE,  CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE};
  void* values[] = {&type, &managed, &id, &base, &size, &exportable};
  if (driver_->pointer_get_attributes(6, attributes, values, reinterpret_cast<CUdeviceptr>(address)) != CUDA_SUCCESS ||
      type != CU_MEMORYTYPE_DEVICE || base == 0)
    return false;
  allocation = {id, base, size, exportable != 0 && managed == 0};
  return true;
}

std::uint64_t CudaRuntime::allocation_id(const void* address) noexcept {
  unsigned long long id = 0;
  CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_BUFFER_ID;
  void* values[] = {&id};
  const CUresult got = driver_->pointer_get_attributes(1, &attribute, values, reinterpret_cast<CUdeviceptr>(address));
  return got == CUDA_SUCCESS ? id : 0;
}

bool CudaRuntime::in_use() noexcept {
  unsigned type = 0;
  CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
  void* values[] = {&type};
  const CUresult got = driver_->pointer_get_attributes(1, &attribute, values, reinterpret_cast<CUdeviceptr>(&type));
  return got != CUDA_ERROR_NOT_INITIALIZED;
}

bool CudaRuntime::can_access_peer(int ordinal, int peer) {
  int can = 0;
  check(cudaDeviceCanAccessPeer(&can, ordinal, peer), "cudaDeviceCanAccessPeer");
  return can != 0;
}

void CudaRuntime::enable_peer_access(int ordinal, int peer) {
  const Current current(*this, ordinal);
  const cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
  if (error != cudaErrorPeerAccessAlreadyEnabled) return check(error, "cudaDeviceEnablePeerAccess");
  cudaGetLastError();
}

IpcHandle CudaRuntime::ipc_export(int ordinal, void* base) {
  const Current current(*this, ordinal);
  cudaIpcMemHandle_t made;
  check(cudaIpcGetMemHandle(&made, base), "cudaIpcGetMemHandle");
  IpcHandle handle;
  static_assert(sizeof made == sizeof handle);
  std::memcpy(handle.data(), &made, sizeof handle);
  return handle;
}

void* CudaRuntime::ipc_open(int ordinal, const IpcHandle& handle) {
  const Current current(*this, ordinal);
  cudaIpcMemHandle_t given;
  std::memcpy(&given, handle.data(), sizeof given);
  void* address = nullptr;
  check(cudaIpcOpenMemHandle(&address, given, cudaIpcMemLazyEnablePeerAccess), "cudaIpcOpenMemHandle");
  return address;
}

void CudaRuntime::ipc_close(int ordinal, void* address) noexcept try {
  const Current current(*this, ordinal);
  check(cudaIpcCloseMemHandle(address), "cudaIpcCloseMemHandle");
} catch (const std::exception&) {
  // As with memory that cannot be given back.
}

/// Not cudaHostAlloc, whose memory goes with the context.
void* CudaRuntime::mapped_alloc(int ordinal, std::size_t bytes) {
  void* const address = host_pages_.allocate(bytes);
  try {
    if (host_register(ordinal, address, bytes)) return address;
  } catch (const Error&) {
    host_pages_.free(address);
    throw;
  }
  host_pages_.free(address);
  throw Error(Failure::out_of_memory,
              "cudaHostRegister: " + std::to_string(bytes) + " bytes of host memory cannot be mapped into the GPUs");
}

void CudaRuntime::mapped_free(void* address) noexcept {
  host_unregister(address);
  host_pages_.free(address);
}

bool CudaRuntime::host_register(int ordinal, void* address, std::size_t bytes) {
  const Current current(*this, ordinal);
  void* seen = nullptr;  // by the GPU
  if (cudaHostRegister(address, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable) == cudaSuccess) {
    if (cudaHostGetDevicePointer(&seen, address, 0) == cudaSuccess && seen == address) return true;
    cudaHostUnregister(address);
  }
  cudaGetLastError();
  return false;
}

void CudaRuntime::host_unregister(void* address) noexcept try {
  const Current current(*this, any_prepared());
  check(cudaHostUnregister(address), "cudaHostUnregister");
} catch (const std::exception&) {
  // As with memory that cannot be given back.
}

void* CudaRuntime::device_alloc(int ordinal, std::size_t bytes) {
  const Current current(*this, ordinal);
  void* address = nullptr;
  check(cudaMalloc(&address, bytes), "cudaMalloc");
  return address;
}

void CudaRuntime::device_free(int ordinal, void* address) noexcept try {
  const Current current(*this, ordinal);
  check(cudaFree(address), "cudaFree");
} catch (const std::exception&) {
  // As above.
}

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
  // As above.
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
  // As above.
}

void CudaRuntime::event_record(int ordinal, EventHandle event, StreamHandle stream) {
  const Current current(*this, ordinal);
  check(cudaEventRecord(event_of(event), stream_of(stream)), "cudaEventRecord");
}

bool CudaRuntime::event_done(int ordinal, EventHandle event) {
  const Current current(*this, ordinal);
  const cudaError_t error = cudaEventQuery(event_of(event));
  if (error == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  check(error, "cudaEventQuery");
  return true;
}

void CudaRuntime::stream_wait_event(int ordinal, StreamHandle stream, EventHandle event) {
  const Current current(*this, ordinal);
  check(cudaStreamWaitEvent(stream_of(stream), event_of(event), 0), "cudaStreamWaitEvent");
}

namespace {

/// Whether work may be given to the stream, or asked for. A capture of a blocking stream makes either an error for the
/// legacy default stream, and invalidates the capture; this question does neither.
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
bool CudaRuntime::copy_runs_async(int ordinal, const CopyPlan& runs, std::int64_t first, std::int64_t last,
                                  StreamHandle stream) {
  const Current current(*this, ordinal);
  std::array<void*, CopyPlan::most_together> to;
  std::array<const void*, CopyPlan::most_together> from;
  std::array<std::size_t, CopyPlan::most_together> bytes;
  const auto count = static_cast<std::size_t>(last - first);
  for (std::size_t run = 0; run < count; ++run) {
    const CopyBox box = runs[first + static_cast<std::int64_t>(run)];
    to[run] = box.to.address;
    from[run] = box.from.address;
    bytes[run] = box.width;
  }
  cudaMemcpyAttributes attributes = {};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  std::size_t first_alike = 0;  // of the runs that the attributes are for
  return taken(cudaMemcpyBatchAsync(to.data(), from.data(), bytes.data(), count, &attributes, &first_alike, 1,
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

}  // namespace

std::unique_ptr<Runtime> make_cuda_runtime(std::string* why) {
  std::string obstacle;
  auto driver = cuda::load_driver(why ? *why : obstacle);
  if (!driver) return nullptr;
  return std::make_unique<CudaRuntime>(std::move(driver));
}

}  // namespace gpudt::device
