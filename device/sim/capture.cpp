#include "device/sim/capture.hpp"

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "base/mutex.hpp"

namespace gpudt::sim {
namespace {

struct Capture {
  StreamRef stream;
  cudaStreamCaptureMode mode;
  std::thread::id thread;
  unsigned long long id;
  GraphRef graph = std::make_shared<Graph>();
  bool invalid = false;
};

/// Those under way; mostly none, or one.
struct Captures {
  Mutex mutex;
  std::vector<Capture> all GUARDED_BY(mutex);
  unsigned long long last_id GUARDED_BY(mutex) = 0;
  std::atomic<bool> any{false};  ///< so that other work needs no lock

  std::vector<Capture>::iterator find(const Stream& stream) REQUIRES(mutex) {
    return std::find_if(all.begin(), all.end(), [&](const Capture& each) { return each.stream.get() == &stream; });
  }
  /// Invalidates those for which `hit` is true; returns `error` if there are any.
  template <class Hit>
  cudaError_t invalidate(cudaError_t error, Hit hit) {
    if (!any.load()) return cudaSuccess;
    const LockGuard lock(mutex);
    cudaError_t found = cudaSuccess;
    for (Capture& each : all) {
      if (!hit(each)) continue;
      each.invalid = true;
      found = error;
    }
    return found;
  }
  template <class Hit>
  void drop(Hit hit) {
    std::vector<Capture> dropped;  // destroyed without the lock
    const LockGuard lock(mutex);
    const auto kept = std::partition(all.begin(), all.end(), [&](const Capture& each) { return !hit(each); });
    std::move(kept, all.end(), std::back_inserter(dropped));
    all.erase(kept, all.end());
    any = !all.empty();
  }
};

Captures& captures() {
  static auto* const made = new Captures;  // workers may outlive main()
  return *made;
}

bool blocks(const Stream& stream, int device) {
  return stream.device == device && !(stream.flags & cudaStreamNonBlocking);
}

}  // namespace

std::shared_ptr<void> user_object(void (*destroy)(void*), void* data) {
  return {data, [destroy](void* given) {
            static const auto* const thread = new auto(std::make_shared<Stream>(0, cudaStreamNonBlocking, 0, false));
            (*thread)->put(Effort::bookkeeping, [destroy, given] { destroy(given); });
          }};
}

cudaError_t begin_capture(const StreamRef& stream, cudaStreamCaptureMode mode) {
  if (stream->legacy) return cudaErrorStreamCaptureUnsupported;
  if (mode < cudaStreamCaptureModeGlobal || mode > cudaStreamCaptureModeRelaxed) return cudaErrorInvalidValue;
  Captures& captures = sim::captures();
  const LockGuard lock(captures.mutex);
  if (captures.find(*stream) != captures.all.end()) return cudaErrorIllegalState;
  captures.all.push_back({stream, mode, std::this_thread::get_id(), ++captures.last_id});
  captures.any = true;
  return cudaSuccess;
}

cudaError_t end_capture(const Stream& stream, GraphRef& graph) {
  Captures& captures = sim::captures();
  bool invalid = false;
  {
    const LockGuard lock(captures.mutex);
    const auto at = captures.find(stream);
    if (at == captures.all.end()) return cudaErrorIllegalState;
    if (at->mode != cudaStreamCaptureModeRelaxed && at->thread != std::this_thread::get_id())
      return cudaErrorStreamCaptureWrongThread;
    invalid = at->invalid;
    graph = at->graph;
  }
  drop_capture(stream);
  return invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
}

CaptureState capture_state(const Stream& stream) {
  Captures& captures = sim::captures();
  if (!captures.any.load()) return {};
  const LockGuard lock(captures.mutex);
  const auto at = captures.find(stream);
  if (at == captures.all.end()) return {};
  if (at->invalid) return {cudaStreamCaptureStatusInvalidated, at->id, nullptr};
  return {cudaStreamCaptureStatusActive, at->id, at->graph};
}

void drop_capture(const Stream& stream) {
  captures().drop([&](const Capture& each) { return each.stream.get() == &stream; });
}

void drop_captures(int device) {
  captures().drop([&](const Capture& each) { return each.stream->device == device; });
}

bool captured(const Stream& stream, Effort effort, const std::function<void()>& work) {
  Captures& captures = sim::captures();
  if (!captures.any.load()) return false;
  const LockGuard lock(captures.mutex);
  const auto at = captures.find(stream);
  if (at == captures.all.end()) return false;
  at->graph->operations.push_back({effort, work});
  return true;
}

cudaError_t capture_forbids(const Stream& stream, Use use) {
  if (stream.legacy) {
    const auto held_back = [&](const Capture& each) { return blocks(*each.stream, stream.device); };
    if (use != Use::look) return captures().invalidate(cudaErrorStreamCaptureImplicit, held_back);
    Captures& captures = sim::captures();
    const LockGuard lock(captures.mutex);
    return std::any_of(captures.all.begin(), captures.all.end(), held_back) ? cudaErrorStreamCaptureImplicit
                                                                            : cudaSuccess;
  }
  if (use == Use::look) return cudaSuccess;
  if (capture_state(stream).status == cudaStreamCaptureStatusInvalidated) return cudaErrorStreamCaptureInvalidated;
  return captures().invalidate(cudaErrorStreamCaptureUnsupported, [&](const Capture& each) {
    return use == Use::question && each.stream.get() == &stream;
  });
}

cudaError_t capture_forbids_synchronizing(int device) {
  return captures().invalidate(cudaErrorStreamCaptureUnsupported,
                               [device](const Capture& each) { return each.stream->device == device; });
}

cudaError_t capture_forbids_unsafe() {
  if (capture_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  return captures().invalidate(cudaErrorStreamCaptureUnsupported, [](const Capture& each) {
    if (each.thread == std::this_thread::get_id()) return each.mode != cudaStreamCaptureModeRelaxed;
    return capture_mode == cudaStreamCaptureModeGlobal && each.mode == cudaStreamCaptureModeGlobal;
  });
}

}  // namespace gpudt::sim
