// The simulated device's streams and events: asynchrony and order. Host functions that wait for the test hold streams
// back, so that nothing depends on time.
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "tests/support/catch.hpp"

namespace {

/// Holds a stream back from when it is put there until it is opened, at the latest by its end.
class StreamGate {
 public:
  ~StreamGate() { open(); }
  void put(cudaStream_t stream) {
    // The host function has a share in what it waits for: it may still be leaving when the gate goes.
    const auto wait = [](void* given) {
      const std::unique_ptr<Share> share(static_cast<Share*>(given));
      (*share)->wait(false);
    };
    auto share = std::make_unique<Share>(opened_);
    REQUIRE(cudaLaunchHostFunc(stream, wait, share.get()) == cudaSuccess);
    share.release();
  }
  void open() {
    *opened_ = true;
    opened_->notify_all();
  }

 private:
  using Share = std::shared_ptr<std::atomic<bool>>;
  Share opened_ = std::make_shared<std::atomic<bool>>(false);
};

cudaStream_t new_stream(unsigned flags = cudaStreamNonBlocking) {
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&stream, flags) == cudaSuccess);
  return stream;
}

/// An int in pinned and one in device memory.
struct Cells {
  volatile int* pinned = nullptr;
  int* device = nullptr;
  Cells() {
    void* address = nullptr;
    REQUIRE(cudaMallocHost(&address, sizeof(int)) == cudaSuccess);
    pinned = static_cast<int*>(address);
    REQUIRE(cudaMalloc(&address, sizeof(int)) == cudaSuccess);
    device = static_cast<int*>(address);
    *pinned = 0;
    REQUIRE(cudaMemset(device, 1, sizeof(int)) == cudaSuccess);
  }
  ~Cells() {
    cudaFreeHost(const_cast<int*>(pinned));
    cudaFree(device);
  }
  void fetch(cudaStream_t stream) const {
    REQUIRE(cudaMemcpyAsync(const_cast<int*>(pinned), device, sizeof(int), cudaMemcpyDeviceToHost, stream) ==
            cudaSuccess);
  }
};

constexpr int ones = 0x01010101;

}  // namespace

TEST_CASE("sim: copies to pinned memory are asynchronous and in order", "[sim]") {
  const Cells cells;
  const cudaStream_t stream = new_stream();
  StreamGate gate;
  gate.put(stream);
  cells.fetch(stream);
  REQUIRE(cudaMemsetAsync(cells.device, 2, sizeof(int), stream) == cudaSuccess);
  CHECK(cudaStreamQuery(stream) == cudaErrorNotReady);
  CHECK(*cells.pinned == 0);
  gate.open();
  REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
  CHECK(*cells.pinned == ones);  // the copy was before the memset
  CHECK(cudaStreamQuery(stream) == cudaSuccess);
  REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
  CHECK(cudaStreamQuery(stream) == cudaErrorInvalidResourceHandle);
  CHECK(cudaGetLastError() == cudaErrorInvalidResourceHandle);
}

TEST_CASE("sim: streams are independent", "[sim]") {
  const Cells cells;
  const cudaStream_t held = new_stream(), free = new_stream();
  StreamGate gate;
  gate.put(held);
  cells.fetch(free);
  REQUIRE(cudaStreamSynchronize(free) == cudaSuccess);
  CHECK(*cells.pinned == ones);
  CHECK(cudaStreamQuery(held) == cudaErrorNotReady);
  gate.open();
  REQUIRE(cudaStreamDestroy(held) == cudaSuccess);
  REQUIRE(cudaStreamDestroy(free) == cudaSuccess);
}

TEST_CASE("sim: the legacy default stream waits for blocking streams and they for it", "[sim]") {
  const Cells cells;
  const cudaStream_t blocking = new_stream(cudaStreamDefault), non_blocking = new_stream();
  SECTION("it for them") {
    StreamGate gate;
    gate.put(blocking);
    cells.fetch(cudaStreamLegacy);
    REQUIRE(cudaStreamSynchronize(non_blocking) == cudaSuccess);
    CHECK(cudaStreamQuery(nullptr) == cudaErrorNotReady);
    CHECK(*cells.pinned == 0);
  }
  SECTION("they for it") {
    StreamGate gate;
    gate.put(nullptr);
    cells.fetch(blocking);
    CHECK(cudaStreamQuery(blocking) == cudaErrorNotReady);
    REQUIRE(cudaMemsetAsync(cells.device, 1, sizeof(int), non_blocking) == cudaSuccess);
    CHECK(cudaStreamSynchronize(non_blocking) == cudaSuccess);  // it does not wait
    CHECK(*cells.pinned == 0);
  }
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  CHECK(*cells.pinned == ones);
  REQUIRE(cudaStreamDestroy(blocking) == cudaSuccess);
  REQUIRE(cudaStreamDestroy(non_blocking) == cudaSuccess);
}

TEST_CASE("sim: events", "[sim]") {
  const Cells cells;
  const cudaStream_t first = new_stream(), second = new_stream();
  cudaEvent_t start = nullptr, end = nullptr;
  REQUIRE(cudaEventCreate(&start) == cudaSuccess);
  REQUIRE(cudaEventCreate(&end) == cudaSuccess);
  CHECK(cudaEventQuery(end) == cudaSuccess);  // nothing recorded
  float milliseconds = -1;
  CHECK(cudaEventElapsedTime(&milliseconds, start, end) == cudaErrorInvalidResourceHandle);
  cudaGetLastError();

  StreamGate gate;
  REQUIRE(cudaEventRecord(start, first) == cudaSuccess);
  REQUIRE(cudaEventSynchronize(start) == cudaSuccess);
  gate.put(first);
  REQUIRE(cudaEventRecord(end, first) == cudaSuccess);
  REQUIRE(cudaStreamWaitEvent(second, end, cudaEventWaitDefault) == cudaSuccess);
  cells.fetch(second);
  CHECK(cudaEventQuery(end) == cudaErrorNotReady);
  CHECK(cudaEventElapsedTime(&milliseconds, start, end) == cudaErrorNotReady);
  CHECK(cudaStreamQuery(second) == cudaErrorNotReady);
  CHECK(*cells.pinned == 0);
  CHECK(cudaPeekAtLastError() == cudaSuccess);  // "not ready" is no error
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  gate.open();
  REQUIRE(cudaEventSynchronize(end) == cudaSuccess);
  REQUIRE(cudaStreamSynchronize(second) == cudaSuccess);
  CHECK(*cells.pinned == ones);
  REQUIRE(cudaEventElapsedTime(&milliseconds, start, end) == cudaSuccess);
  CHECK(milliseconds >= 5.0f);
  REQUIRE(cudaEventDestroy(start) == cudaSuccess);
  REQUIRE(cudaEventDestroy(end) == cudaSuccess);
  CHECK(cudaEventQuery(end) == cudaErrorInvalidResourceHandle);
  cudaGetLastError();
  REQUIRE(cudaStreamDestroy(first) == cudaSuccess);
  REQUIRE(cudaStreamDestroy(second) == cudaSuccess);
}

TEST_CASE("sim: a destroyed stream and event still do their work", "[sim]") {
  const Cells cells;
  const cudaStream_t stream = new_stream();
  cudaEvent_t event = nullptr;
  REQUIRE(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
  {
    StreamGate gate;
    gate.put(stream);
    cells.fetch(stream);
    REQUIRE(cudaEventRecord(event, stream) == cudaSuccess);
    REQUIRE(cudaEventDestroy(event) == cudaSuccess);
    REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
  }
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  CHECK(*cells.pinned == ones);
}

TEST_CASE("sim: many threads with streams of their own", "[sim]") {
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int number = 0; number < 8; ++number) {
    threads.emplace_back([number, &wrong] {
      bool good = cudaSetDevice(number % 2) == cudaSuccess;
      cudaStream_t stream = nullptr;
      good = good && cudaStreamCreate(&stream) == cudaSuccess;
      for (int round = 0; round < 50; ++round) {
        void *device = nullptr, *pinned = nullptr;
        good = good && cudaMalloc(&device, 5000) == cudaSuccess && cudaMallocHost(&pinned, 5000) == cudaSuccess;
        good = good && cudaMemsetAsync(device, number, 5000, stream) == cudaSuccess &&
               cudaMemcpyAsync(pinned, device, 5000, cudaMemcpyDefault, stream) == cudaSuccess &&
               cudaStreamSynchronize(stream) == cudaSuccess;
        for (int i = 0; good && i < 5000; ++i) good = static_cast<char*>(pinned)[i] == number;
        good = good && cudaFree(device) == cudaSuccess && cudaFreeHost(pinned) == cudaSuccess;
      }
      good = good && cudaStreamDestroy(stream) == cudaSuccess;
      if (!good) ++wrong;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}
