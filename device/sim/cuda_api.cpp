// The CUDA runtime's C names, exported without versions: preloaded, they also serve programs linked to a versioned
// libcudart. Each call checks, acts on the calling thread's current device, and notes its error as CUDA does.
#include <algorithm>
#include <cstring>

#include "device/sim/api_calls.hpp"
#include "device/sim/capture.hpp"

namespace {

using gpudt::sim::call;
using gpudt::sim::call_event;
using gpudt::sim::call_stream;
using gpudt::sim::call_unsafe;
using gpudt::sim::copy;
using gpudt::sim::current_device;
using gpudt::sim::event_of;
using gpudt::sim::EventRef;
using gpudt::sim::Executor;
using gpudt::sim::fill;
using gpudt::sim::greatest_priority;
using gpudt::sim::Kind;
using gpudt::sim::legacy;
using gpudt::sim::Lookup;
using gpudt::sim::Memory;
using gpudt::sim::note;
using gpudt::sim::stream_of;
using gpudt::sim::StreamRef;
using gpudt::sim::Use;
using gpudt::sim::valid_device;

constexpr std::size_t pitch_alignment = 512;

cudaError_t allocate(Kind kind, void** address, std::size_t size, bool exportable, unsigned flags = 0) {
  return call_unsafe([&] {
    if (!address) return cudaErrorInvalidValue;
    return Memory::instance().allocate(kind, current_device, size, address, exportable, flags);
  });
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
    return event_record(event, stream);
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

}  // namespace

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
  return call_unsafe([&] { return gpudt::sim::free_device(address); });
}

cudaError_t cudaMallocHost(void** address, size_t size) {
  return allocate(Kind::pinned, address, size, false);
}

cudaError_t cudaHostAlloc(void** address, size_t size, unsigned int flags) {
  return allocate(Kind::pinned, address, size, false, flags);
}

cudaError_t cudaFreeHost(void* address) {
  return call_unsafe([&] { return gpudt::sim::free_pinned(address); });
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
    if (const cudaError_t error = capture_forbids(*found, Use::question)) return error;
    return Memory::instance().allocate(Kind::device, found->device, size, address);
  });
}

cudaError_t cudaMallocFromPoolAsync(void** address, size_t size, cudaMemPool_t, cudaStream_t stream) {
  return cudaMallocAsync(address, size, stream);
}

cudaError_t cudaFreeAsync(void* address, cudaStream_t stream) {
  return call_stream(stream, [&](const StreamRef& found) {
    if (Memory::instance().find(address).begin != address) return cudaErrorInvalidValue;
    if (const cudaError_t error = capture_forbids(*found, Use::question)) return error;
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
  return call_unsafe([&] {
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
  return call_unsafe([&] { return fill({address, pitch}, value, {width, height}, legacy(), true); });
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
    return event_hold(found, waiting);
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

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* user_data) {
  return call_stream(stream, [&](const StreamRef& found) {
    if (!function) return cudaErrorInvalidValue;
    if (const cudaError_t error = capture_forbids(*found, Use::work)) return error;
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

/// The headers of the last CUDA 12 releases map cudaEventElapsedTime to this name.
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
    return Memory::instance().open_handle(handle, current_device, gpudt::sim::device_count(), address);
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
