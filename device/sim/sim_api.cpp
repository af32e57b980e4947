// The table by which libgpudt-pmpi.so uses the simulated device.
#include "device/sim/sim_api.h"

#include <fcntl.h>

#include <cstring>
#include <memory>

#include "device/sim/capture.hpp"
#include "device/sim/operations.hpp"

namespace gpudt::sim {
namespace {

gpudt_sim_kind classify(const void* address, int* device) {
  const Memory* memory = Memory::existing();
  const Lookup found = memory ? memory->find(address) : Lookup{};
  *device = found.device;
  return static_cast<gpudt_sim_kind>(found.kind);
}

void device_range(const char** begin, std::size_t* bytes, std::ptrdiff_t* distance) {
  const Memory& memory = Memory::instance();
  *begin = memory.device_begin();
  *bytes = memory.device_zone_bytes();
  *distance = memory.alias_distance();
}

int device_malloc(int device, std::size_t bytes, void** address) {
  if (const cudaError_t error = usable(device)) return error;
  return Memory::instance().allocate(Kind::device, device, bytes, address, /*exportable=*/true);
}

int pinned_malloc(int device, std::size_t bytes, void** address) {
  if (const cudaError_t error = usable(device)) return error;
  return Memory::instance().allocate(Kind::pinned, device, bytes, address);
}

int pinned_register(int device, void* address, std::size_t bytes) {
  if (const cudaError_t error = usable(device)) return error;
  return Memory::instance().register_host(address, bytes, device, cudaHostRegisterMapped | cudaHostRegisterPortable);
}

int is_pinned(const void* first, const void* last) {
  const Memory* memory = Memory::existing();
  if (memory == nullptr) return 0;
  const Lookup begin = memory->find(first), end = memory->find(last);
  const bool one = begin.kind == Kind::pinned && end.kind == Kind::pinned && begin.begin == end.begin;
  return one && (begin.flags & cudaHostRegisterReadOnly) == 0 ? 1 : 0;
}

int allocation_of(const void* address, gpudt_sim_allocation* allocation) {
  const Memory* memory = Memory::existing();
  const Lookup found = memory ? memory->find(address) : Lookup{};
  if (found.kind != Kind::device) return 0;
  *allocation = {found.id, found.begin, found.bytes, found.exportable ? 1 : 0};
  return 1;
}

int can_access_peer(int device, int peer) {
  return device == peer || devices_are_peers() ? 1 : 0;
}

int mps_enabled() {
  return gpudt::sim::mps_enabled() ? 1 : 0;
}

int ipc_export(const void* address, void* handle) {
  cudaIpcMemHandle_t made;
  const cudaError_t error = Memory::instance().export_handle(address, &made);
  if (error == cudaSuccess) std::memcpy(handle, &made, sizeof made);
  return error;
}

int ipc_open(int device, const void* handle, void** address) {
  cudaIpcMemHandle_t given;
  static_assert(sizeof given == gpudt_sim_handle_bytes);
  std::memcpy(&given, handle, sizeof given);
  return Memory::instance().open_handle(given, device, device_count(), address);
}

int ipc_close(int device, void* address) {
  Executor::instance().wait_device(device);
  return Memory::instance().close_handle(address);
}

int piece_of(const void* address, gpudt_sim_piece* piece) {
  const Memory* memory = Memory::existing();
  Lookup found;
  int file = -1;
  if (memory == nullptr || !memory->piece(address, found, file)) return 0;
  *piece = {found.id, found.begin, found.bytes, found.device};
  return 1;
}

int share_piece(const void* begin, int* file) {
  Lookup found;
  int own = -1;
  if (!Memory::instance().piece(begin, found, own)) return cudaErrorInvalidValue;
  *file = fcntl(own, F_DUPFD_CLOEXEC, 0);
  return *file >= 0 ? cudaSuccess : cudaErrorUnknown;
}

int map_pieces(int device, std::size_t count, const int* files, const std::size_t* sizes, void** address) {
  if (const cudaError_t error = usable(device)) return error;
  return Memory::instance().map_objects(count, files, sizes, address);
}

int unmap_pieces(int device, void* address, std::size_t bytes) {
  Executor::instance().wait_device(device);
  const cudaError_t error = Memory::instance().unmap(address, bytes);
  return error == cudaSuccess ? Memory::instance().unreserve(address, bytes) : error;
}

StreamRef find_stream(void* stream) {
  return stream_of(static_cast<cudaStream_t>(stream), 0);
}

constexpr int highest_priority = -5;

int create_stream(int device, void** stream) {
  if (const cudaError_t error = usable(device)) return error;
  *stream = stream_handle(Executor::instance().create(device, cudaStreamNonBlocking, highest_priority));
  return cudaSuccess;
}

template <class Action>
int with_stream(void* handle, Action action) {
  const StreamRef stream = find_stream(handle);
  if (!stream) return cudaErrorInvalidResourceHandle;
  if (const cudaError_t error = usable(stream->device)) return error;
  return action(stream);
}

int synchronize_stream(void* handle) {
  return with_stream(handle, [](const StreamRef& stream) { return stream_synchronize(*stream); });
}

int query_stream(void* handle) {
  return with_stream(handle, [](const StreamRef& stream) { return stream_query(*stream); });
}

int device_of_stream(void* handle, int* device) {
  return with_stream(handle, [&](const StreamRef& stream) {
    *device = stream->device;
    return cudaSuccess;
  });
}

int wait_event(void* handle, void* event_handle) {
  const EventRef event = event_of(static_cast<cudaEvent_t>(event_handle));
  if (!event) return cudaErrorInvalidResourceHandle;
  return with_stream(handle, [&](const StreamRef& stream) { return event_hold(*event, stream); });
}

int create_event(int device, void** event) {
  if (const cudaError_t error = usable(device)) return error;
  cudaEvent_t handle = nullptr;
  const cudaError_t error = event_create(device, cudaEventDisableTiming, &handle);
  *event = handle;
  return error;
}

int record_event(void* event_handle, void* handle) {
  const EventRef event = event_of(static_cast<cudaEvent_t>(event_handle));
  if (!event) return cudaErrorInvalidResourceHandle;
  return with_stream(handle, [&](const StreamRef& stream) { return event_record(*event, stream); });
}

int query_default(int device) {
  if (const cudaError_t error = usable(device)) return error;
  const StreamRef legacy = Executor::instance().legacy(device);
  if (const cudaError_t error = capture_forbids(*legacy, Use::look)) return error;
  return Executor::instance().default_idle(device) ? stream_query(*legacy) : cudaErrorNotReady;
}

int copy_async(void* to, const void* from, std::size_t bytes, void* handle) {
  return with_stream(handle, [&](const StreamRef& stream) {
    return copy({to, bytes}, {const_cast<void*>(from), bytes}, {bytes}, cudaMemcpyDefault, stream, false);
  });
}

int copy_rows_async(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t width,
                    std::size_t height, void* handle) {
  return with_stream(handle, [&](const StreamRef& stream) {
    return copy({to, to_pitch}, {const_cast<void*>(from), from_pitch}, {width, height}, cudaMemcpyDefault, stream,
                false);
  });
}

int memset_async(void* address, int value, std::size_t bytes, void* handle) {
  return with_stream(handle, [&](const StreamRef& stream) {
    return fill({address, bytes}, value, {bytes}, stream, false);
  });
}

int submit(Stream& stream, void (*kernel)(void*), const void* args, std::size_t bytes) {
  if (const cudaError_t error = capture_forbids(stream, Use::work)) return error;
  std::shared_ptr<char[]> copied(new char[bytes]);
  std::memcpy(copied.get(), args, bytes);
  stream.submit(Effort::device_work, [kernel, copied] { kernel(copied.get()); });
  return cudaSuccess;
}

int launch(void* handle, void (*kernel)(void*), const void* args, std::size_t bytes) {
  return with_stream(handle, [&](const StreamRef& stream) { return submit(*stream, kernel, args, bytes); });
}

int launch_default(int device, void (*kernel)(void*), const void* args, std::size_t bytes) {
  if (const cudaError_t error = usable(device)) return error;
  const StreamRef legacy = Executor::instance().legacy(device);
  const cudaError_t error = capture_forbids(*legacy, Use::look);
  return error == cudaSuccess ? submit(*legacy, kernel, args, bytes) : error;
}

int is_captured(void* handle) {
  const StreamRef stream = find_stream(handle);
  return stream && capture_state(*stream).status != cudaStreamCaptureStatusNone ? 1 : 0;
}

int keep_with_graph(void* handle, void (*released)(void*), void* data) {
  return with_stream(handle, [&](const StreamRef& stream) {
    const GraphRef graph = capture_state(*stream).graph;
    if (!graph) return cudaErrorStreamCaptureInvalidated;
    graph->kept.push_back(user_object(released, data));
    return cudaSuccess;
  });
}

constexpr gpudt_sim_api_table table = {
    .version = GPUDT_SIM_API_VERSION,
    .device_count = device_count,
    .in_use = [] { return Memory::existing() != nullptr ? 1 : 0; },
    .classify = classify,
    .device_range = device_range,
    .device_malloc = device_malloc,
    .device_free = [](void* address) -> int { return free_device(address); },
    .pinned_malloc = pinned_malloc,
    .pinned_free = [](void* address) -> int { return free_pinned(address); },
    .pinned_register = pinned_register,
    .pinned_unregister = [](void* address) -> int { return Memory::instance().unregister_host(address); },
    .is_pinned = is_pinned,
    .allocation_of = allocation_of,
    .can_access_peer = can_access_peer,
    .mps_enabled = mps_enabled,
    .ipc_export = ipc_export,
    .ipc_open = ipc_open,
    .ipc_close = ipc_close,
    .piece_of = piece_of,
    .share_piece = share_piece,
    .map_pieces = map_pieces,
    .unmap_pieces = unmap_pieces,
    .stream_create = create_stream,
    .stream_destroy = [](void* stream) -> int { return stream_destroy(static_cast<cudaStream_t>(stream)); },
    .stream_synchronize = synchronize_stream,
    .stream_query = query_stream,
    .stream_device = device_of_stream,
    .stream_wait_event = wait_event,
    .event_create = create_event,
    .event_destroy = [](void* event) -> int { return event_destroy(static_cast<cudaEvent_t>(event)); },
    .event_record = record_event,
    .default_launch = launch_default,
    .default_query = query_default,
    .copy_async = copy_async,
    .copy_rows_async = copy_rows_async,
    .memset_async = memset_async,
    .launch = launch,
    .is_captured = is_captured,
    .keep_with_graph = keep_with_graph,
    .error_string = [](int error) { return error_string(static_cast<cudaError_t>(error)); },
};

}  // namespace
}  // namespace gpudt::sim

extern "C" const gpudt_sim_api_table* gpudt_sim_api(void) {
  return &gpudt::sim::table;
}
