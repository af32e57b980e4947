#include "device/sim/operations.hpp"

#include <pthread.h>

#include <cstring>
#include <new>

#include "device/sim/capture.hpp"
#include "device/sim/context_lock.hpp"
#include "device/sim/registry.hpp"

namespace gpudt::sim {
namespace {

std::atomic<bool> forked{false};

void watch_forks() {
  [[maybe_unused]] static const int once = pthread_atfork(nullptr, nullptr, [] { forked = true; });
}

constexpr auto streams = Registry<Stream, cudaStream_t>::instance;
constexpr auto events = Registry<Event, cudaEvent_t>::instance;

bool host_side(Kind kind) {
  return kind == Kind::host || kind == Kind::pinned;
}

bool device_side(Kind kind) {
  return kind == Kind::device;
}

/// Whether the direction that the program names fits the memory it gives.
bool direction_fits(cudaMemcpyKind direction, Kind to, Kind from) {
  switch (direction) {
    case cudaMemcpyHostToHost:
      return !device_side(to) && !device_side(from);
    case cudaMemcpyHostToDevice:
      return !host_side(to) && !device_side(from);
    case cudaMemcpyDeviceToHost:
      return !device_side(to) && !host_side(from);
    case cudaMemcpyDeviceToDevice:
      return !host_side(to) && !host_side(from);
    default:
      return direction == cudaMemcpyDefault;
  }
}

cudaError_t submit(const StreamRef& stream, bool blocking, std::function<void()> work) {
  if (const cudaError_t error = capture_forbids(*stream, Use::work)) return error;
  const Point end = stream->submit(Effort::device_work, std::move(work));
  if (blocking) Executor::instance().wait(end);
  return Executor::instance().sticky(stream->device);
}

struct ErrorText {
  cudaError_t error;
  const char* name;
  const char* text;
};

constexpr ErrorText error_texts[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInvalidPitchValue, "cudaErrorInvalidPitchValue", "invalid pitch argument"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver", "CUDA driver version is insufficient"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorDeviceUninitialized, "cudaErrorDeviceUninitialized", "invalid device context"},
    {cudaErrorMapBufferObjectFailed, "cudaErrorMapBufferObjectFailed", "mapping of buffer object failed"},
    {cudaErrorPeerAccessUnsupported, "cudaErrorPeerAccessUnsupported", "peer access is not supported"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorIllegalState, "cudaErrorIllegalState", "the operation cannot be performed in the present state"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    {cudaErrorPeerAccessNotEnabled, "cudaErrorPeerAccessNotEnabled", "peer access has not been enabled"},
    {cudaErrorContextIsDestroyed, "cudaErrorContextIsDestroyed", "context is destroyed"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the memory is already registered"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered", "the memory is not registered"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorNotPermitted, "cudaErrorNotPermitted", "operation not permitted"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {cudaErrorStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {cudaErrorGraphExecUpdateFailure, "cudaErrorGraphExecUpdateFailure",
     "the graph update was not performed because it included changes which violated constraints specific to "
     "instantiated graph update"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

const ErrorText* find_text(cudaError_t error) {
  for (const ErrorText& entry : error_texts)
    if (entry.error == error) return &entry;
  return nullptr;
}

}  // namespace

cudaError_t usable(int device) {
  if (forked.load(std::memory_order_relaxed)) return cudaErrorInitializationError;
  if (device_count() == 0) return cudaErrorNoDevice;
  if (device < 0 || device >= device_count()) return cudaErrorInvalidDevice;
  watch_forks();
  return Executor::instance().sticky(device);
}

// --- handles -------------------------------------------------------------------------------------------------------

cudaStream_t stream_handle(const StreamRef& stream) {
  return streams().add(stream);
}

StreamRef stream_of(cudaStream_t handle, int current_device) {
  if (handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread)
    return Executor::instance().legacy(current_device);
  return streams().find(handle);
}

cudaError_t stream_destroy(cudaStream_t handle) {
  const StreamRef stream = streams().remove(handle);
  if (!stream) return cudaErrorInvalidResourceHandle;
  drop_capture(*stream);
  Executor::instance().destroy(stream);
  return cudaSuccess;
}

cudaError_t stream_query(Stream& stream) {
  if (const cudaError_t error = capture_forbids(stream, Use::question)) return error;
  const bool idle = stream.idle();
  if (const cudaError_t error = Executor::instance().sticky(stream.device)) return error;
  return idle ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t stream_synchronize(Stream& stream) {
  if (const cudaError_t error = capture_forbids(stream, Use::question)) return error;
  Executor::instance().wait(stream.last());
  return Executor::instance().sticky(stream.device);
}

void forget_streams_and_events(int device) {
  drop_captures(device);
  streams().remove_if([device](const Stream& stream) { return stream.device == device; });
  events().remove_if([device](const Event& event) { return event.device == device; });
}

cudaError_t event_create(int device, unsigned flags, cudaEvent_t* event) {
  const bool shared = flags & cudaEventInterprocess;
  if (shared && !(flags & cudaEventDisableTiming)) return cudaErrorInvalidValue;
  std::shared_ptr<EventWords> words;
  if (shared) {
    void* memory = nullptr;
    const cudaError_t error =
        Memory::instance().allocate(Kind::managed, device, sizeof(EventWords), &memory, /*exportable=*/true);
    if (error != cudaSuccess) return error;
    words.reset(new (memory) EventWords, [](EventWords* old) { Memory::instance().release(old, false); });
  } else {
    const ContextChange alone;
    words = std::make_shared<EventWords>();
  }
  *event = events().add(std::make_shared<Event>(device, flags, std::move(words), shared));
  return cudaSuccess;
}

cudaError_t event_open(const cudaIpcEventHandle_t& handle, int device, cudaEvent_t* event) {
  cudaIpcMemHandle_t memory_handle;
  std::memcpy(&memory_handle, &handle, sizeof memory_handle);
  void* memory = nullptr;
  const cudaError_t error = Memory::instance().open_handle(memory_handle, device, device_count(), &memory);
  if (error != cudaSuccess) return error;
  std::shared_ptr<EventWords> words(static_cast<EventWords*>(memory),
                                    [](EventWords* old) { Memory::instance().close_handle(old); });
  constexpr unsigned flags = cudaEventInterprocess | cudaEventDisableTiming;
  *event = events().add(std::make_shared<Event>(device, flags, std::move(words), true));
  return cudaSuccess;
}

cudaError_t event_destroy(cudaEvent_t handle) {
  return events().remove(handle) ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

EventRef event_of(cudaEvent_t handle) {
  return events().find(handle);
}

cudaError_t event_record(Event& event, const StreamRef& stream) {
  const cudaError_t error = capture_forbids(*stream, Use::question);
  if (error == cudaSuccess) event.record(stream);
  return error;
}

cudaError_t event_hold(Event& event, const StreamRef& stream) {
  const cudaError_t error = capture_forbids(*stream, Use::question);
  if (error == cudaSuccess) event.hold(stream);
  return error;
}

// --- work ----------------------------------------------------------------------------------------------------------

cudaError_t copy(Side to, Side from, Rows rows, cudaMemcpyKind kind, const StreamRef& stream, bool blocking) {
  if (rows.width == 0 || rows.height == 0) return Executor::instance().sticky(stream->device);
  if (!to.address || !from.address) return cudaErrorInvalidValue;
  if (rows.height > 1 && (rows.width > to.pitch || rows.width > from.pitch)) return cudaErrorInvalidPitchValue;
  Memory& memory = Memory::instance();
  if (!memory.range_valid(to.address, rows.span(to.pitch)) || !memory.range_valid(from.address, rows.span(from.pitch)))
    return cudaErrorInvalidValue;
  const Kind to_kind = memory.find(to.address).kind, from_kind = memory.find(from.address).kind;
  if (!direction_fits(kind, to_kind, from_kind)) return cudaErrorInvalidValue;
  const bool pageable = to_kind == Kind::host || from_kind == Kind::host;
  return submit(stream, blocking || pageable, [to, from, rows, &memory] {
    char* target = memory.alias(to.address);
    const char* source = memory.alias(from.address);
    for (std::size_t row = 0; row < rows.height; ++row)
      std::memmove(target + row * to.pitch, source + row * from.pitch, rows.width);
  });
}

cudaError_t fill(Side to, int value, Rows rows, const StreamRef& stream, bool blocking) {
  if (rows.width == 0 || rows.height == 0) return Executor::instance().sticky(stream->device);
  Memory& memory = Memory::instance();
  if (memory.find(to.address).kind == Kind::host || !memory.range_valid(to.address, rows.span(to.pitch)))
    return cudaErrorInvalidValue;
  return submit(stream, blocking, [to, value, rows, &memory] {
    for (std::size_t row = 0; row < rows.height; ++row)
      std::memset(memory.alias(to.address) + row * to.pitch, value, rows.width);
  });
}

cudaError_t free_device(void* address) {
  if (!address) return cudaSuccess;
  Memory& memory = Memory::instance();
  const Lookup block = memory.find(address);
  if (block.kind != Kind::device && block.kind != Kind::managed) return cudaErrorInvalidValue;
  Executor::instance().wait_device(block.device);
  const ContextChange alone;
  return memory.release(address, false);
}

cudaError_t free_pinned(void* address) {
  if (!address) return cudaSuccess;
  for (int device = 0; device < device_count(); ++device) Executor::instance().wait_device(device);
  const ContextChange alone;
  return Memory::instance().release(address, true);
}

const char* error_name(cudaError_t error) {
  const ErrorText* text = find_text(error);
  return text ? text->name : "unrecognized error code";
}

const char* error_string(cudaError_t error) {
  const ErrorText* text = find_text(error);
  return text ? text->text : "unrecognized error code";
}

}  // namespace gpudt::sim
