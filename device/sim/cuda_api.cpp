// The CUDA runtime's C names, exported without versions: preloaded, they also serve programs linked to a versioned
// libcudart. Each call checks, acts on the calling thread's current device, and notes its error as CUDA does.
#include <cstdio>
#include <cstring>
#include <mutex>
#include <set>
#include <utility>

#include "device/sim/operations.hpp"

namespace {

using gpudt::sim::copy;
using gpudt::sim::event_of;
using gpudt::sim::EventRef;
using gpudt::sim::Executor;
using gpudt::sim::fill;
using gpudt::sim::Kind;
using gpudt::sim::Lookup;
using gpudt::sim::Memory;
using gpudt::sim::stream_of;
using gpudt::sim::StreamRef;
using gpudt::sim::usable;

constexpr int greatest_priority = -5;
constexpr std::size_t pitch_alignment = 512;
constexpr int multiprocessors = 8;
constexpr int bus_base = 0x10;  // the PCI bus of device 0

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t note(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}

/// Runs action(), which returns a cudaError_t, if the current device is usable.
template <class Action>
cudaError_t call(Action&& action) {
  const cudaError_t error = usable(current_device);
  return note(error == cudaSuccess ? action() : error);
}

template <class Action>
cudaError_t call_stream(cudaStream_t handle, Action&& action) {
  return call([&] {
    const StreamRef stream = stream_of(handle, current_device);
    return stream ? action(stream) : cudaErrorInvalidResourceHandle;
  });
}

template <class Action>
cudaError_t call_event(cudaEvent_t handle, Action&& action) {
  return call([&] {
    const EventRef event = event_of(handle);
    return event ? action(*event) : cudaErrorInvalidResourceHandle;
  });
}

cudaError_t allocate(Kind kind, void** address, std::size_t size, bool exportable, unsigned flags = 0) {
  return call([&] {
    if (!address) return cudaErrorInvalidValue;
    return Memory::instance().allocate(kind, current_device, size, address, exportable, flags);
  });
}

StreamRef legacy() {
  return stream_of(nullptr, current_device);
}

cudaError_t create_stream(cudaStream_t* stream, unsigned flags, int priority) {
  return call([&] {
    if (!stream || flags > cudaStreamNonBlocking) return cudaErrorInvalidValue;
    *stream = stream_handle(Executor::instance().create(current_device, flags, priority));
    return cudaSuccess;
  });
}

cudaError_t record(cudaEvent_t handle, cudaStream_t stream_handle) {
  return call_event(handle, [&](auto& event) {
    const StreamRef stream = stream_of(stream_handle, current_device);
    if (!stream || stream->device != event.device) return cudaErrorInvalidResourceHandle;
    event.record(stream);
    return cudaSuccess;
  });
}

cudaError_t elapsed(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return call([&] {
    const EventRef first = event_of(start), second = event_of(end);
    if (!milliseconds) return cudaErrorInvalidValue;
    if (!first || !second || ((first->flags | second->flags) & cudaEventDisableTiming) || !first->recorded() ||
        !second->recorded())
      return cudaErrorInvalidResourceHandle;
    if (!first->done() || !second->done()) return cudaErrorNotReady;
    *milliseconds = std::chrono::duration<float, std::milli>(second->time() - first->time()).count();
    return cudaSuccess;
  });
}

std::mutex peers_mutex;
std::set<std::pair<int, int>>& peers() {
  static auto* enabled = new std::set<std::pair<int, int>>;
  return *enabled;
}

bool valid_device(int device) {
  return device >= 0 && device < gpudt::sim::device_count();
}

void fill_properties(cudaDeviceProp& properties, int device) {
  std::memset(&properties, 0, sizeof properties);
  std::snprintf(properties.name, sizeof properties.name, "gpudt simulated device");
  std::memcpy(properties.uuid.bytes, "gpudt-sim", sizeof "gpudt-sim");
  properties.uuid.bytes[sizeof properties.uuid.bytes - 1] = static_cast<char>(device);
  properties.totalGlobalMem = Memory::device_bytes;
  properties.sharedMemPerBlock = 48 << 10;
  properties.regsPerBlock = 65536;
  properties.warpSize = 32;
  properties.memPitch = 0x7fffffff;
  properties.maxThreadsPerBlock = 1024;
  for (int i = 0; i < 3; ++i) {
    properties.maxThreadsDim[i] = i < 2 ? 1024 : 64;
    properties.maxGridSize[i] = i < 1 ? 0x7fffffff : 65535;
  }
  properties.totalConstMem = 64 << 10;
  properties.major = 9;
  properties.multiProcessorCount = multiprocessors;
  properties.canMapHostMemory = 1;
  properties.concurrentKernels = 1;
  properties.pciBusID = bus_base + device;
  properties.asyncEngineCount = 2;
  properties.unifiedAddressing = 1;
  properties.maxThreadsPerMultiProcessor = 2048;
  properties.streamPrioritiesSupported = 1;
  properties.managedMemory = 1;
  properties.concurrentManagedAccess = 1;
  properties.canUseHostPointerForRegisteredMem = 1;
  properties.hostRegisterSupported = 1;
  properties.memoryPoolsSupported = 1;
  properties.ipcEventSupported = 1;
}

/// The beginning of CUDA 12's cudaDeviceProp; what follows it is given as zeros.
struct Properties12 {
  char name[256];
  cudaUUID_t uuid;
  char luid[8];
  unsigned luidDeviceNodeMask;
  std::size_t totalGlobalMem, sharedMemPerBlock;
  int regsPerBlock, warpSize;
  std::size_t memPitch;
  int maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3], clockRate;
  std::size_t totalConstMem;
  int major, minor;
  std::size_t textureAlignment, texturePitchAlignment;
  int deviceOverlap, multiProcessorCount, kernelExecTimeoutEnabled, integrated, canMapHostMemory, computeMode;
};
constexpr std::size_t properties12_bytes = 1032;

}  // namespace

// --- errors --------------------------------------------------------------------------------------------------------

cudaError_t cudaPeekAtLastError(void) {
  const cudaError_t sticky = valid_device(current_device) ? Executor::instance().sticky(current_device) : cudaSuccess;
  return sticky != cudaSuccess ? sticky : last_error;
}

cudaError_t cudaGetLastError(void) {
  const cudaError_t error = cudaPeekAtLastError();
  last_error = cudaSuccess;
  return error;
}

const char* cudaGetErrorString(cudaError_t error) {
  return gpudt::sim::error_string(error);
}
const char* cudaGetErrorName(cudaError_t error) {
  return gpudt::sim::error_name(error);
}

// --- devices -------------------------------------------------------------------------------------------------------

cudaError_t cudaRuntimeGetVersion(int* version) {
  if (!version) return note(cudaErrorInvalidValue);
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  return cudaRuntimeGetVersion(version);
}

cudaError_t cudaGetDeviceCount(int* count) {
  if (!count) return note(cudaErrorInvalidValue);
  *count = gpudt::sim::device_count();
  return note(*count > 0 ? cudaSuccess : cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device) {
  const cudaError_t error = usable(device);
  if (error == cudaSuccess) current_device = device;
  return note(error);
}

cudaError_t cudaInitDevice(int device, unsigned int, unsigned int) {
  return note(usable(device));
}

cudaError_t cudaGetDevice(int* device) {
  return call([&] {
    if (!device) return cudaErrorInvalidValue;
    *device = current_device;
    return cudaSuccess;
  });
}

cudaError_t cudaSetDeviceFlags(unsigned int) {
  return cudaSuccess;
}

cudaError_t cudaGetDeviceFlags(unsigned int* flags) {
  if (!flags) return note(cudaErrorInvalidValue);
  *flags = cudaDeviceMapHost;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (!properties) return note(cudaErrorInvalidValue);
  if (!valid_device(device)) return note(cudaErrorInvalidDevice);
  fill_properties(*properties, device);
  return cudaSuccess;
}

/// What CUDA 12's header maps cudaGetDeviceProperties to; its structure is another one.
extern "C" __attribute__((visibility("default"))) cudaError_t cudaGetDeviceProperties_v2(void* properties, int device) {
  cudaDeviceProp now;
  if (const cudaError_t error = cudaGetDeviceProperties(&now, device)) return error;
  if (!properties) return note(cudaErrorInvalidValue);
  Properties12 old = {};
  std::memcpy(old.name, now.name, sizeof old.name);
  old.uuid = now.uuid;
  old.totalGlobalMem = now.totalGlobalMem;
  old.sharedMemPerBlock = now.sharedMemPerBlock;
  old.regsPerBlock = now.regsPerBlock;
  old.warpSize = now.warpSize;
  old.memPitch = now.memPitch;
  old.maxThreadsPerBlock = now.maxThreadsPerBlock;
  std::memcpy(old.maxThreadsDim, now.maxThreadsDim, sizeof old.maxThreadsDim);
  std::memcpy(old.maxGridSize, now.maxGridSize, sizeof old.maxGridSize);
  old.totalConstMem = now.totalConstMem;
  old.major = now.major;
  old.deviceOverlap = 1;
  old.multiProcessorCount = now.multiProcessorCount;
  old.canMapHostMemory = now.canMapHostMemory;
  std::memset(properties, 0, properties12_bytes);
  std::memcpy(properties, &old, sizeof old);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (!value) return note(cudaErrorInvalidValue);
  cudaDeviceProp properties;
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, device)) return error;
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY:
      *value = properties.maxThreadsPerBlock;
      break;
    case cudaDevAttrMaxBlockDimZ:
      *value = properties.maxThreadsDim[2];
      break;
    case cudaDevAttrMaxGridDimX:
      *value = properties.maxGridSize[0];
      break;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ:
      *value = properties.maxGridSize[1];
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = static_cast<int>(properties.sharedMemPerBlock);
      break;
    case cudaDevAttrTotalConstantMemory:
      *value = static_cast<int>(properties.totalConstMem);
      break;
    case cudaDevAttrWarpSize:
      *value = properties.warpSize;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = properties.multiProcessorCount;
      break;
    case cudaDevAttrPciBusId:
      *value = properties.pciBusID;
      break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = properties.maxThreadsPerMultiProcessor;
      break;
    case cudaDevAttrAsyncEngineCount:
      *value = properties.asyncEngineCount;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = properties.major;
      break;
    case cudaDevAttrGpuOverlap:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrStreamPrioritiesSupported:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrConcurrentManagedAccess:
    case cudaDevAttrCanUseHostPointerForRegisteredMem:
    case cudaDevAttrHostRegisterSupported:
    case cudaDevAttrMemoryPoolsSupported:
      *value = 1;
      break;
    default:
      *value = 0;
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void) {
  return call([] {
    Executor::instance().wait_device(current_device);
    return Executor::instance().sticky(current_device);
  });
}

cudaError_t cudaDeviceReset(void) {
  const cudaError_t error = usable(current_device);
  if (error != cudaSuccess && error != Executor::instance().sticky(current_device)) return note(error);
  Executor& executor = Executor::instance();
  executor.wait_device(current_device);
  executor.destroy_device_streams(current_device);
  gpudt::sim::forget_streams_and_events(current_device);
  Memory::instance().release_device(current_device);
  executor.set_sticky(current_device, cudaSuccess);
  last_error = cudaSuccess;
  const std::lock_guard lock(peers_mutex);
  std::erase_if(peers(),
                [](const auto& pair) { return pair.first == current_device || pair.second == current_device; });
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  if (!can) return note(cudaErrorInvalidValue);
  if (!valid_device(device) || !valid_device(peer)) return note(cudaErrorInvalidDevice);
  *can = device != peer && gpudt::sim::devices_are_peers();
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags) {
  return call([&] {
    if (flags != 0) return cudaErrorInvalidValue;
    if (!valid_device(peer) || peer == current_device) return cudaErrorInvalidDevice;
    if (!gpudt::sim::devices_are_peers()) return cudaErrorPeerAccessUnsupported;
    const std::lock_guard lock(peers_mutex);
    return peers().insert({current_device, peer}).second ? cudaSuccess : cudaErrorPeerAccessAlreadyEnabled;
  });
}

cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  return call([&] {
    const std::lock_guard lock(peers_mutex);
    return peers().erase({current_device, peer}) ? cudaSuccess : cudaErrorPeerAccessNotEnabled;
  });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = greatest_priority;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
  if (!id || length <= 0) return note(cudaErrorInvalidValue);
  if (!valid_device(device)) return note(cudaErrorInvalidDevice);
  std::snprintf(id, static_cast<std::size_t>(length), "0000:%02X:00.0", static_cast<unsigned>(bus_base + device));
  return cudaSuccess;
}

cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* id) {
  unsigned domain = 0, bus = 0;
  if (!device || !id || std::sscanf(id, "%x:%x", &domain, &bus) != 2) return note(cudaErrorInvalidValue);
  const int number = static_cast<int>(bus) - bus_base;
  if (!valid_device(number)) return note(cudaErrorInvalidDevice);
  *device = number;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
  return call([&] {
    if (!available || !total) return cudaErrorInvalidValue;
    *available = Memory::instance().available(current_device);
    *total = Memory::device_bytes;
    return cudaSuccess;
  });
}

// --- memory --------------------------------------------------------------------------------------------------------

cudaError_t cudaMalloc(void** address, size_t size) {
  return allocate(Kind::device, address, size, true);
}

cudaError_t cudaMallocPitch(void** address, size_t* pitch, size_t width, size_t height) {
  if (!pitch) return note(cudaErrorInvalidValue);
  *pitch = (width + pitch_alignment - 1) / pitch_alignment * pitch_alignment;
  return cudaMalloc(address, *pitch * height);
}

cudaError_t cudaFree(void* address) {
  return call([&] { return gpudt::sim::free_device(address); });
}

cudaError_t cudaMallocHost(void** address, size_t size) {
  return allocate(Kind::pinned, address, size, false);
}

cudaError_t cudaHostAlloc(void** address, size_t size, unsigned int flags) {
  return allocate(Kind::pinned, address, size, false, flags);
}

cudaError_t cudaFreeHost(void* address) {
  return call([&] { return gpudt::sim::free_pinned(address); });
}

cudaError_t cudaHostRegister(void* address, size_t size, unsigned int flags) {
  return call([&] { return Memory::instance().register_host(address, size, current_device, flags); });
}

cudaError_t cudaHostUnregister(void* address) {
  return call([&] { return Memory::instance().unregister_host(address); });
}

cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned int flags) {
  return call([&] {
    if (!device || flags != 0 || Memory::instance().find(host).kind != Kind::pinned) return cudaErrorInvalidValue;
    *device = host;
    return cudaSuccess;
  });
}

cudaError_t cudaHostGetFlags(unsigned int* flags, void* host) {
  return call([&] {
    const Lookup found = Memory::instance().find(host);
    if (!flags || found.kind != Kind::pinned) return cudaErrorInvalidValue;
    *flags = found.flags | cudaHostAllocMapped;
    return cudaSuccess;
  });
}

cudaError_t cudaMallocManaged(void** address, size_t size, unsigned int flags) {
  if (size == 0 || (flags != cudaMemAttachGlobal && flags != cudaMemAttachHost)) return note(cudaErrorInvalidValue);
  return allocate(Kind::managed, address, size, false);
}

cudaError_t cudaMallocAsync(void** address, size_t size, cudaStream_t stream) {
  return call_stream(stream, [&](const StreamRef& found) {
    if (!address) return cudaErrorInvalidValue;
    return Memory::instance().allocate(Kind::device, found->device, size, address);
  });
}

cudaError_t cudaMallocFromPoolAsync(void** address, size_t size, cudaMemPool_t, cudaStream_t stream) {
  return cudaMallocAsync(address, size, stream);
}

cudaError_t cudaFreeAsync(void* address, cudaStream_t stream) {
  return call_stream(stream, [&](const StreamRef& found) {
    if (Memory::instance().find(address).begin != address) return cudaErrorInvalidValue;
    found->submit(gpudt::sim::Effort::bookkeeping, [address] { Memory::instance().release(address, false); });
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  // Only a name: one pool per device, which needs no state.
  static char pools[Executor::max_devices];
  if (!pool) return note(cudaErrorInvalidValue);
  if (!valid_device(device)) return note(cudaErrorInvalidDevice);
  *pool = reinterpret_cast<cudaMemPool_t>(&pools[device]);
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  return call([&] {
    if (!attributes) return cudaErrorInvalidValue;
    const Memory* memory = Memory::existing();
    const Lookup found = memory ? memory->find(address) : Lookup{};
    void* const plain = const_cast<void*>(address);
    attributes->type = static_cast<cudaMemoryType>(found.kind);
    attributes->device = found.kind == Kind::host ? cudaInvalidDeviceId : found.device;
    attributes->devicePointer = found.kind == Kind::host ? nullptr : plain;
    attributes->hostPointer = found.kind == Kind::device ? nullptr : plain;
    return cudaSuccess;
  });
}

// --- copies --------------------------------------------------------------------------------------------------------

cudaError_t cudaMemcpy(void* to, const void* from, size_t count, cudaMemcpyKind kind) {
  return cudaMemcpy2D(to, count, from, count, count, 1, kind);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t count, cudaMemcpyKind kind, cudaStream_t stream) {
  return cudaMemcpy2DAsync(to, count, from, count, count, 1, kind, stream);
}

cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                         cudaMemcpyKind kind) {
  return call([&] {
    return copy({to, to_pitch}, {const_cast<void*>(from), from_pitch}, {width, height}, kind, legacy(), true);
  });
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  return call_stream(stream, [&](const StreamRef& found) {
    return copy({to, to_pitch}, {const_cast<void*>(from), from_pitch}, {width, height}, kind, found, false);
  });
}

cudaError_t cudaMemcpyPeer(void* to, int to_device, const void* from, int from_device, size_t count) {
  if (!valid_device(to_device) || !valid_device(from_device)) return note(cudaErrorInvalidDevice);
  return cudaMemcpy(to, from, count, cudaMemcpyDeviceToDevice);
}

cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, size_t count,
                                cudaStream_t stream) {
  if (!valid_device(to_device) || !valid_device(from_device)) return note(cudaErrorInvalidDevice);
  return cudaMemcpyAsync(to, from, count, cudaMemcpyDeviceToDevice, stream);
}

cudaError_t cudaMemset(void* address, int value, size_t count) {
  return cudaMemset2D(address, count, value, count, 1);
}

cudaError_t cudaMemsetAsync(void* address, int value, size_t count, cudaStream_t stream) {
  return cudaMemset2DAsync(address, count, value, count, 1, stream);
}

cudaError_t cudaMemset2D(void* address, size_t pitch, int value, size_t width, size_t height) {
  return call([&] { return fill({address, pitch}, value, {width, height}, legacy(), true); });
}

cudaError_t cudaMemset2DAsync(void* address, size_t pitch, int value, size_t width, size_t height,
                              cudaStream_t stream) {
  return call_stream(stream, [&](const StreamRef& found) {
    return fill({address, pitch}, value, {width, height}, found, false);
  });
}

// --- streams -------------------------------------------------------------------------------------------------------

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return create_stream(stream, cudaStreamDefault, 0);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  return create_stream(stream, flags, 0);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags, int priority) {
  return create_stream(stream, flags, std::max(greatest_priority, std::min(priority, 0)));
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return call([&] { return gpudt::sim::stream_destroy(stream); });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return call_stream(stream, [](const StreamRef& found) { return stream_synchronize(*found); });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return call_stream(stream, [](const StreamRef& found) { return stream_query(*found); });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
  return call_event(event, [&](auto& found) {
    const StreamRef waiting = stream_of(stream, current_device);
    if (!waiting) return cudaErrorInvalidResourceHandle;
    found.hold(waiting);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  return call_stream(stream, [&](const StreamRef& found) {
    if (!priority) return cudaErrorInvalidValue;
    *priority = found->priority;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned int* flags) {
  return call_stream(stream, [&](const StreamRef& found) {
    if (!flags) return cudaErrorInvalidValue;
    *flags = found->flags;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return call_stream(stream, [&](const StreamRef&) {
    if (!status) return cudaErrorInvalidValue;
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
  });
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  static thread_local cudaStreamCaptureMode current = cudaStreamCaptureModeGlobal;
  if (!mode) return note(cudaErrorInvalidValue);
  std::swap(*mode, current);
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* user_data) {
  return call_stream(stream, [&](const StreamRef& found) {
    if (!function) return cudaErrorInvalidValue;
    found->submit(gpudt::sim::Effort::bookkeeping, [function, user_data, device = found->device] {
      if (Executor::instance().sticky(device) == cudaSuccess) function(user_data);
    });
    return cudaSuccess;
  });
}

// --- events --------------------------------------------------------------------------------------------------------

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  return call([&] {
    if (!event) return cudaErrorInvalidValue;
    return gpudt::sim::event_create(current_device, flags, event);
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return record(event, stream);
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int) {
  return record(event, stream);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return call_event(event, [](auto& found) { return found.done() ? cudaSuccess : cudaErrorNotReady; });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return call_event(event, [](auto& found) {
    found.wait();
    return Executor::instance().sticky(found.device);
  });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return elapsed(milliseconds, start, end);
}

/// What late CUDA 12 headers map cudaEventElapsedTime to.
extern "C" __attribute__((visibility("default"))) cudaError_t cudaEventElapsedTime_v2(float* milliseconds,
                                                                                      cudaEvent_t start,
                                                                                      cudaEvent_t end) {
  return elapsed(milliseconds, start, end);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return call([&] { return gpudt::sim::event_destroy(event); });
}

// --- other processes -----------------------------------------------------------------------------------------------

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* address) {
  return call([&] { return handle ? Memory::instance().export_handle(address, handle) : cudaErrorInvalidValue; });
}

cudaError_t cudaIpcOpenMemHandle(void** address, cudaIpcMemHandle_t handle, unsigned int flags) {
  return call([&] {
    if (!address || flags != cudaIpcMemLazyEnablePeerAccess) return cudaErrorInvalidValue;
    return Memory::instance().open_handle(handle, gpudt::sim::device_count(), address);
  });
}

cudaError_t cudaIpcCloseMemHandle(void* address) {
  return call([&] {
    Executor::instance().wait_device(current_device);
    return Memory::instance().close_handle(address);
  });
}

cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
  return call_event(event, [&](auto& found) {
    if (!handle || !(found.flags & cudaEventInterprocess)) return cudaErrorInvalidResourceHandle;
    cudaIpcMemHandle_t memory;
    const cudaError_t error = Memory::instance().export_handle(found.words(), &memory);
    if (error == cudaSuccess) std::memcpy(handle, &memory, sizeof *handle);
    return error;
  });
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle) {
  return call([&] {
    if (!event) return cudaErrorInvalidValue;
    return gpudt::sim::event_open(handle, current_device, event);
  });
}
