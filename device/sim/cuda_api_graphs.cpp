// The CUDA runtime's names of captures, graphs and user objects; cuda_api.cpp has the others.
#include <algorithm>
#include <atomic>
#include <utility>

#include "base/mutex.hpp"
#include "device/sim/api_calls.hpp"
#include "device/sim/capture.hpp"
#include "device/sim/registry.hpp"

namespace {

using gpudt::LockGuard;
using gpudt::Mutex;
using gpudt::sim::call;
using gpudt::sim::call_stream;
using gpudt::sim::capture_forbids;
using gpudt::sim::Effort;
using gpudt::sim::Executor;
using gpudt::sim::Graph;
using gpudt::sim::GraphRef;
using gpudt::sim::note;
using gpudt::sim::Operation;
using gpudt::sim::Registry;
using gpudt::sim::StreamRef;
using gpudt::sim::Use;

/// What is launched: a graph as it was when this was made or updated.
struct Executable {
  Mutex mutex;
  std::shared_ptr<const Graph> graph GUARDED_BY(mutex);
  gpudt::sim::Point last GUARDED_BY(mutex);  ///< of its launches, which follow each other also in several streams
};

/// The references that the program has to a user object.
struct References {
  References(std::shared_ptr<void> named, unsigned references) : object(std::move(named)), count(references) {}
  std::shared_ptr<void> object;
  std::atomic<unsigned> count;
};

constexpr auto graphs = Registry<Graph, cudaGraph_t>::instance;
constexpr auto executables = Registry<Executable, cudaGraphExec_t>::instance;
constexpr auto user_objects = Registry<References, cudaUserObject_t>::instance;

cudaError_t capture_info(cudaStream_t handle, cudaStreamCaptureStatus* status, unsigned long long* id,
                         cudaGraph_t* graph) {
  return call_stream(handle, [&](const StreamRef& stream) {
    if (!status) return cudaErrorInvalidValue;
    if (const cudaError_t error = capture_forbids(*stream, Use::look)) return error;
    const gpudt::sim::CaptureState state = capture_state(*stream);
    *status = state.status;
    if (id && state.id != 0) *id = state.id;
    if (graph && state.graph) *graph = graphs().add(state.graph);
    return cudaSuccess;
  });
}

cudaError_t launch(Executable& executable, const StreamRef& stream) {
  if (const cudaError_t error = capture_forbids(*stream, Use::work)) return error;
  const LockGuard lock(executable.mutex);
  const auto run = [graph = executable.graph, before = executable.last, device = stream->device] {
    if (before.stream) Executor::instance().wait(before);
    for (const Operation& operation : graph->operations) gpudt::sim::Stream::perform(device, operation);
  };
  executable.last = stream->submit(Effort::bookkeeping, run);
  return Executor::instance().sticky(stream->device);
}

/// Each of the runtime's sorts of operations has a type of its own.
bool same_sort(const Operation& one, const Operation& other) {
  return one.effort == other.effort && one.work.target_type() == other.work.target_type();
}

cudaGraphExecUpdateResult update(Executable& executable, const Graph& graph) {
  const LockGuard lock(executable.mutex);
  const auto &now = executable.graph->operations, &next = graph.operations;
  if (now.size() != next.size()) return cudaGraphExecUpdateErrorTopologyChanged;
  if (!std::equal(now.begin(), now.end(), next.begin(), same_sort)) return cudaGraphExecUpdateErrorNodeTypeChanged;
  executable.graph = std::make_shared<const Graph>(graph);
  return cudaGraphExecUpdateSuccess;
}

/// Takes references that the program has given back, or that a graph has taken over.
cudaError_t release(cudaUserObject_t handle, unsigned count) {
  const auto references = user_objects().find(handle);
  if (!references || count == 0 || references->count < count) return cudaErrorInvalidValue;
  if (references->count.fetch_sub(count) == count) user_objects().remove(handle);
  return cudaSuccess;
}

}  // namespace

// --- captures --------------------------------------------------------------------------------------------------------

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return call_stream(stream, [&](const StreamRef& found) { return begin_capture(found, mode); });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return call_stream(stream, [&](const StreamRef& found) {
    if (!graph) return cudaErrorInvalidValue;
    GraphRef made;
    const cudaError_t error = end_capture(*found, made);
    *graph = error == cudaSuccess ? graphs().add(made) : nullptr;
    if (error == cudaErrorStreamCaptureInvalidated) graphs().remove(reinterpret_cast<cudaGraph_t>(made.get()));
    return error;
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return capture_info(stream, status, nullptr, nullptr);
}

/// The graph has no nodes that a program could name.
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id,
                                     cudaGraph_t* graph, const cudaGraphNode_t** dependencies,
                                     const cudaGraphEdgeData** edges, size_t* count) {
  if (dependencies) *dependencies = nullptr;
  if (edges) *edges = nullptr;
  if (count) *count = 0;
  return capture_info(stream, status, id, graph);
}

/// The name in the headers of CUDA 12.
extern "C" __attribute__((visibility("default"))) cudaError_t cudaStreamGetCaptureInfo_v2(
    cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t* graph,
    const cudaGraphNode_t** dependencies, size_t* count) {
  return cudaStreamGetCaptureInfo(stream, status, id, graph, dependencies, nullptr, count);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  if (!mode || *mode < cudaStreamCaptureModeGlobal || *mode > cudaStreamCaptureModeRelaxed)
    return note(cudaErrorInvalidValue);
  std::swap(*mode, gpudt::sim::capture_mode);
  return cudaSuccess;
}

// --- graphs ----------------------------------------------------------------------------------------------------------

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  return call([&] {
    const GraphRef found = graphs().find(graph);
    if (!executable || !found) return cudaErrorInvalidValue;
    const auto made = std::make_shared<Executable>();
    const LockGuard lock(made->mutex);
    made->graph = std::make_shared<const Graph>(*found);
    *executable = executables().add(made);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiate(executable, graph, flags);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  return call_stream(stream, [&](const StreamRef& found) {
    const auto launched = executables().find(executable);
    return launched ? launch(*launched, found) : cudaErrorInvalidValue;
  });
}

cudaError_t cudaGraphExecUpdate(cudaGraphExec_t executable, cudaGraph_t graph, cudaGraphExecUpdateResultInfo* result) {
  return call([&] {
    const auto updated = executables().find(executable);
    const GraphRef found = graphs().find(graph);
    if (!updated || !found || !result) return cudaErrorInvalidValue;
    *result = {update(*updated, *found), nullptr, nullptr};
    return result->result == cudaGraphExecUpdateSuccess ? cudaSuccess : cudaErrorGraphExecUpdateFailure;
  });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  return note(executables().remove(executable) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return note(graphs().remove(graph) ? cudaSuccess : cudaErrorInvalidValue);
}

// --- user objects ----------------------------------------------------------------------------------------------------

cudaError_t cudaUserObjectCreate(cudaUserObject_t* object, void* data, cudaHostFn_t destroy, unsigned int count,
                                 unsigned int flags) {
  if (!object || !destroy || count == 0 || flags != cudaUserObjectNoDestructorSync) return note(cudaErrorInvalidValue);
  *object = user_objects().add(std::make_shared<References>(gpudt::sim::user_object(destroy, data), count));
  return cudaSuccess;
}

cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned int count) {
  return note(release(object, count));
}

cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object, unsigned int count,
                                      unsigned int flags) {
  const GraphRef found = graphs().find(graph);
  const auto references = user_objects().find(object);
  if (!found || !references || count == 0) return note(cudaErrorInvalidValue);
  found->kept.insert(found->kept.end(), count, references->object);
  return flags & cudaGraphUserObjectMove ? cudaUserObjectRelease(object, count) : cudaSuccess;
}
