// The simulated device's captures and graphs.
#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <thread>

#include "tests/support/catch.hpp"

namespace {

/// A stream, some pinned and some device memory.
class Place {
 public:
  explicit Place(unsigned flags = cudaStreamNonBlocking) {
    void* address = nullptr;
    REQUIRE(cudaMallocHost(&address, bytes) == cudaSuccess);
    pinned_ = static_cast<volatile char*>(address);
    REQUIRE(cudaMalloc(&device_, bytes) == cudaSuccess);
    REQUIRE(cudaStreamCreateWithFlags(&stream_, flags) == cudaSuccess);
    set_pinned(0);
  }
  ~Place() {
    cudaStreamDestroy(stream_);
    cudaFreeHost(pinned());
    cudaFree(device_);
  }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;
  cudaStream_t stream() const { return stream_; }
  void set_pinned(int value) const { std::memset(pinned(), value, bytes); }
  int first() const { return pinned_[0]; }
  void set(int value) const { REQUIRE(cudaMemsetAsync(device_, value, bytes, stream_) == cudaSuccess); }
  void copy_out() const {
    REQUIRE(cudaMemcpyAsync(pinned(), device_, bytes, cudaMemcpyDeviceToHost, stream_) == cudaSuccess);
  }
  void copy_in() const {
    REQUIRE(cudaMemcpyAsync(device_, pinned(), bytes, cudaMemcpyHostToDevice, stream_) == cudaSuccess);
  }
  void synchronize() const { REQUIRE(cudaStreamSynchronize(stream_) == cudaSuccess); }
  cudaGraph_t capture(const std::function<void()>& work) const {
    REQUIRE(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    work();
    cudaGraph_t graph = nullptr;
    REQUIRE(cudaStreamEndCapture(stream_, &graph) == cudaSuccess);
    return graph;
  }

 private:
  static constexpr std::size_t bytes = 1000;
  char* pinned() const { return const_cast<char*>(pinned_); }
  volatile char* pinned_ = nullptr;
  void* device_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

cudaGraphExec_t instantiate(cudaGraph_t graph) {
  cudaGraphExec_t executable = nullptr;
  REQUIRE(cudaGraphInstantiate(&executable, graph) == cudaSuccess);
  return executable;
}

cudaStreamCaptureStatus status_of(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  REQUIRE(cudaStreamIsCapturing(stream, &status) == cudaSuccess);
  return status;
}

/// Ends a capture that has been invalidated.
void check_invalidated(cudaStream_t stream) {
  CHECK(status_of(stream) == cudaStreamCaptureStatusInvalidated);
  CHECK(cudaLaunchHostFunc(
            stream, [](void*) {}, nullptr) == cudaErrorStreamCaptureInvalidated);
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated);
  CHECK(graph == nullptr);
  CHECK(status_of(stream) == cudaStreamCaptureStatusNone);
  cudaGetLastError();
}

template <class Condition>
bool soon(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!condition() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return condition();
}

}  // namespace

TEST_CASE("sim: captured work is done at each launch of the graph, and in order", "[sim]") {
  const Place place;
  place.set(7);
  place.synchronize();
  cudaGraph_t under_capture = nullptr;
  static std::atomic<int> calls;
  calls = 0;
  const cudaGraph_t graph = place.capture([&] {
    unsigned long long id = 0;
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    CHECK(cudaStreamGetCaptureInfo(place.stream(), &status, &id, &under_capture) == cudaSuccess);
    CHECK(status == cudaStreamCaptureStatusActive);
    CHECK(id != 0);
    place.copy_out();
    place.set(9);
    CHECK(cudaLaunchHostFunc(
              place.stream(), [](void*) { ++calls; }, nullptr) == cudaSuccess);
  });
  CHECK(under_capture == graph);
  CHECK(status_of(place.stream()) == cudaStreamCaptureStatusNone);
  place.synchronize();
  CHECK(place.first() == 0);
  const cudaGraphExec_t executable = instantiate(graph);
  REQUIRE(cudaGraphDestroy(graph) == cudaSuccess);
  for (const int wanted : {7, 9}) {
    REQUIRE(cudaGraphLaunch(executable, place.stream()) == cudaSuccess);
    place.synchronize();
    CHECK(place.first() == wanted);
  }
  CHECK(calls == 2);
  REQUIRE(cudaGraphExecDestroy(executable) == cudaSuccess);
  CHECK(cudaGraphLaunch(executable, place.stream()) == cudaErrorInvalidValue);
  CHECK(cudaGraphDestroy(graph) == cudaErrorInvalidValue);
  cudaGetLastError();
}

TEST_CASE("sim: a graph is launched in a graph, and in several streams one after the other", "[sim]") {
  const Place place, other;
  static std::atomic<int> running, calls;
  running = calls = 0;
  const auto alone = [](void*) {
    if (++running == 1) ++calls;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    --running;
  };
  const cudaGraph_t graph =
      place.capture([&] { CHECK(cudaLaunchHostFunc(place.stream(), alone, nullptr) == cudaSuccess); });
  const cudaGraphExec_t inner = instantiate(graph);
  const cudaGraph_t around = place.capture([&] {
    for (int i = 0; i < 2; ++i) CHECK(cudaGraphLaunch(inner, place.stream()) == cudaSuccess);
  });
  const cudaGraphExec_t executable = instantiate(around);
  for (int i = 0; i < 3; ++i)
    for (const Place* const each : {&place, &other})
      REQUIRE(cudaGraphLaunch(executable, each->stream()) == cudaSuccess);
  place.synchronize();
  other.synchronize();
  CHECK(calls == 12);
  for (const cudaGraphExec_t each : {inner, executable}) CHECK(cudaGraphExecDestroy(each) == cudaSuccess);
  for (const cudaGraph_t each : {graph, around}) CHECK(cudaGraphDestroy(each) == cudaSuccess);
}

TEST_CASE("sim: an executable graph is updated by one with the same sorts of operations", "[sim]") {
  const Place place;
  const cudaGraph_t first = place.capture([&] { place.set(1), place.copy_out(); });
  const cudaGraph_t second = place.capture([&] { place.set(2), place.copy_out(); });
  const cudaGraph_t shorter = place.capture([&] { place.set(3); });
  const cudaGraph_t turned = place.capture([&] { place.copy_out(), place.set(4); });
  const cudaGraphExec_t executable = instantiate(first);
  cudaGraphExecUpdateResultInfo result;
  CHECK(cudaGraphExecUpdate(executable, shorter, &result) == cudaErrorGraphExecUpdateFailure);
  CHECK(result.result == cudaGraphExecUpdateErrorTopologyChanged);
  CHECK(cudaGraphExecUpdate(executable, turned, &result) == cudaErrorGraphExecUpdateFailure);
  CHECK(result.result == cudaGraphExecUpdateErrorNodeTypeChanged);
  cudaGetLastError();
  for (const int wanted : {1, 2}) {
    REQUIRE(cudaGraphLaunch(executable, place.stream()) == cudaSuccess);
    place.synchronize();
    CHECK(place.first() == wanted);
    CHECK(cudaGraphExecUpdate(executable, second, &result) == cudaSuccess);
    CHECK(result.result == cudaGraphExecUpdateSuccess);
  }
  CHECK(cudaGraphExecDestroy(executable) == cudaSuccess);
  for (const cudaGraph_t each : {first, second, shorter, turned}) CHECK(cudaGraphDestroy(each) == cudaSuccess);
}

TEST_CASE("sim: what waits for a stream that is being captured fails and invalidates the capture", "[sim]") {
  const Place place;
  cudaEvent_t event = nullptr;
  REQUIRE(cudaEventCreate(&event) == cudaSuccess);
  const auto wrong = GENERATE(0, 1, 2, 3, 4, 5);
  REQUIRE(cudaStreamBeginCapture(place.stream(), cudaStreamCaptureModeRelaxed) == cudaSuccess);
  CHECK(cudaStreamBeginCapture(place.stream(), cudaStreamCaptureModeRelaxed) == cudaErrorIllegalState);
  CHECK(status_of(place.stream()) == cudaStreamCaptureStatusActive);
  void* address = nullptr;
  const std::array<std::function<cudaError_t()>, 6> calls = {
      [&] { return cudaStreamSynchronize(place.stream()); },
      [&] { return cudaStreamQuery(place.stream()); },
      [&] { return cudaDeviceSynchronize(); },
      [&] { return cudaEventRecord(event, place.stream()); },
      [&] { return cudaStreamWaitEvent(place.stream(), event, 0); },
      [&] { return cudaMallocAsync(&address, 8, place.stream()); }};
  CHECK(calls.at(static_cast<std::size_t>(wrong))() == cudaErrorStreamCaptureUnsupported);
  CHECK(cudaStreamSynchronize(place.stream()) == cudaErrorStreamCaptureInvalidated);
  check_invalidated(place.stream());
  CHECK(cudaStreamSynchronize(place.stream()) == cudaSuccess);
  CHECK(cudaEventDestroy(event) == cudaSuccess);
}

TEST_CASE("sim: the legacy default stream cannot be used while a blocking stream is being captured", "[sim]") {
  const Place blocking(cudaStreamDefault), other;
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeRelaxed) == cudaErrorStreamCaptureUnsupported);
  REQUIRE(cudaStreamBeginCapture(other.stream(), cudaStreamCaptureModeRelaxed) == cudaSuccess);
  CHECK(cudaStreamQuery(nullptr) == cudaSuccess);
  CHECK(cudaStreamEndCapture(other.stream(), &graph) == cudaSuccess);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  REQUIRE(cudaStreamBeginCapture(blocking.stream(), cudaStreamCaptureModeRelaxed) == cudaSuccess);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  CHECK(cudaStreamIsCapturing(nullptr, &status) == cudaErrorStreamCaptureImplicit);
  CHECK(status_of(blocking.stream()) == cudaStreamCaptureStatusActive);
  CHECK(cudaStreamQuery(nullptr) == cudaErrorStreamCaptureImplicit);
  check_invalidated(blocking.stream());
}

TEST_CASE("sim: calls that might break a capture are errors, by its mode and the thread's", "[sim]") {
  const Place place;
  const auto mode =
      GENERATE(cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed);
  REQUIRE(cudaStreamBeginCapture(place.stream(), mode) == cudaSuccess);
  const auto free_nothing = [] { return cudaFree(nullptr); };
  cudaStreamCaptureMode relaxed = cudaStreamCaptureModeRelaxed;
  REQUIRE(cudaThreadExchangeStreamCaptureMode(&relaxed) == cudaSuccess);
  CHECK(free_nothing() == cudaSuccess);
  REQUIRE(cudaThreadExchangeStreamCaptureMode(&relaxed) == cudaSuccess);
  cudaError_t there = cudaSuccess, end_there = cudaSuccess;
  cudaGraph_t graph = nullptr;
  std::thread([&] {
    there = free_nothing();
    if (mode != cudaStreamCaptureModeRelaxed) end_there = cudaStreamEndCapture(place.stream(), &graph);
  }).join();
  CHECK(there == (mode == cudaStreamCaptureModeGlobal ? cudaErrorStreamCaptureUnsupported : cudaSuccess));
  CHECK(end_there == (mode == cudaStreamCaptureModeRelaxed ? cudaSuccess : cudaErrorStreamCaptureWrongThread));
  CHECK(free_nothing() == (mode == cudaStreamCaptureModeRelaxed ? cudaSuccess : cudaErrorStreamCaptureUnsupported));
  if (mode != cudaStreamCaptureModeRelaxed) return check_invalidated(place.stream());
  CHECK(cudaStreamEndCapture(place.stream(), &graph) == cudaSuccess);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
}

TEST_CASE("sim: a user object goes when the graph and all that was made of it are gone", "[sim]") {
  const Place place;
  static std::atomic<int> gone;
  static std::thread::id here;
  gone = 0;
  here = std::this_thread::get_id();
  const cudaHostFn_t destroy = [](void* data) {
    if (std::this_thread::get_id() != here) gone += *static_cast<int*>(data);
  };
  static int one = 1, ten = 10;
  cudaUserObject_t moved = nullptr, dropped = nullptr;
  REQUIRE(cudaUserObjectCreate(&moved, &one, destroy, 1, cudaUserObjectNoDestructorSync) == cudaSuccess);
  REQUIRE(cudaUserObjectCreate(&dropped, &ten, destroy, 2, cudaUserObjectNoDestructorSync) == cudaSuccess);
  const cudaGraph_t graph = place.capture([&] { place.set(1); });
  CHECK(cudaGraphRetainUserObject(graph, moved, 1, cudaGraphUserObjectMove) == cudaSuccess);
  CHECK(cudaUserObjectRelease(moved) == cudaErrorInvalidValue);  // it is the graph's
  CHECK(cudaUserObjectRelease(dropped) == cudaSuccess);
  CHECK(gone == 0);
  CHECK(cudaUserObjectRelease(dropped) == cudaSuccess);
  CHECK(soon([] { return gone == 10; }));
  const cudaGraphExec_t executable = instantiate(graph);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  static std::atomic<bool> opened;
  opened = false;
  CHECK(cudaLaunchHostFunc(
            place.stream(), [](void*) { opened.wait(false); }, nullptr) == cudaSuccess);
  CHECK(cudaGraphLaunch(executable, place.stream()) == cudaSuccess);
  CHECK(cudaGraphExecDestroy(executable) == cudaSuccess);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(gone == 10);  // the launch is under way
  opened = true;
  opened.notify_all();
  CHECK(soon([] { return gone == 11; }));
  cudaGetLastError();
}
