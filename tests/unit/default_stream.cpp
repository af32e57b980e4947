// Marks in the program's default stream, and transfers that begin when they have been reached.
#include "device/transfer/default_stream.hpp"

#include <cuda_runtime_api.h>
#include <mpi.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "datatype/decode.hpp"
#include "device/device.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/stub_runtime.hpp"

namespace {

using namespace gpudt;
using device::DefaultStream;
using device::Direction;
using device::Order;
using device::StreamMark;
using device::Transfer;

/// A stream that comes to its marks when the test says so.
class SignalRuntime : public test::HostMemoryRuntime {
 public:
  bool signal_default_async(int, std::uint32_t* flag, std::uint32_t value, bool) override {
    if (!captures) signals.push_back({flag, value});
    return !captures;
  }
  bool default_stream_idle(int, bool) override { return idle; }
  /// The marks are numbered from 0.
  void come_to(std::size_t mark) const { *signals[mark].flag = signals[mark].value; }

  struct Signal {
    std::uint32_t* flag;
    std::uint32_t value;
  };
  bool captures = false, idle = false;
  std::vector<Signal> signals;
};

/// A default stream without room for more, where a launch waits.
class FullRuntime final : public SignalRuntime {
 public:
  bool signal_default_async(int ordinal, std::uint32_t* flag, std::uint32_t value, bool per_thread) override {
    while (full) {
      launching = true;
      std::this_thread::yield();
    }
    return SignalRuntime::signal_default_async(ordinal, flag, value, per_thread);
  }
  std::atomic<bool> full{false}, launching{false};
};

/// The default stream waits until this object's end, or release().
class HeldStream {
 public:
  HeldStream() {
    const auto wait = [](void* held) {
      while (!static_cast<std::atomic<bool>*>(held)->load()) std::this_thread::yield();
    };
    REQUIRE(cudaLaunchHostFunc(nullptr, wait, &released_) == cudaSuccess);
  }
  ~HeldStream() { release(); }
  HeldStream(const HeldStream&) = delete;
  HeldStream& operator=(const HeldStream&) = delete;
  void release() {
    released_ = true;
    cudaStreamSynchronize(nullptr);
  }

 private:
  std::atomic<bool> released_{false};
};

/// The engine, on rows of device memory that hold `before`.
struct StreamSession {
  explicit StreamSession(device::Config config = {}, Order order = Order::default_stream) {
    config.order = order;
    device::start(config);
    REQUIRE(cudaMalloc(&memory, bytes) == cudaSuccess);
    REQUIRE(cudaMemset(memory, before, bytes) == cudaSuccess);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    packed = device::acquire(device::StagingKind::mapped, 0, bytes);
    std::memset(packed.data(), 0, bytes);
    pack(0, {}).wait();  // all that takes a while the first time is there from now on
    std::memset(packed.data(), 0, bytes);
  }
  ~StreamSession() {
    cudaFree(memory);
    packed = {};
    device::stop();
  }
  StreamSession(const StreamSession&) = delete;
  StreamSession& operator=(const StreamSession&) = delete;
  Transfer pack(std::size_t row, const StreamMark& after) const {
    return device::start(Direction::pack, 0, *layout, row_bytes / 8, static_cast<char*>(memory) + row * row_bytes, 0,
                         row_bytes, static_cast<char*>(packed.data()) + row * row_bytes, device::MemoryKind::pinned,
                         after);
  }
  /// Whether the row has been packed, and holds nothing but `value`.
  bool holds(std::size_t row, char value) const {
    const std::vector<char> wanted(row_bytes, value);
    return std::memcmp(static_cast<char*>(packed.data()) + row * row_bytes, wanted.data(), row_bytes) == 0;
  }

  static constexpr std::size_t rows = 4, row_bytes = 512, bytes = rows * row_bytes;
  static constexpr char before = 1, later = 2;
  datatype::LayoutRef layout = datatype::decode(MPI_DOUBLE);
  void* memory = nullptr;
  device::Staging packed;
};

}  // namespace

TEST_CASE("default stream: who waits for a mark does not wait for a launch there", "[device]") {
  FullRuntime runtime;
  DefaultStream stream(runtime, 0, Order::default_stream);
  const std::uint64_t first = stream.mark();
  runtime.full = true;
  std::thread marker([&] { stream.mark(); });
  while (!runtime.launching) std::this_thread::yield();
  std::atomic<bool> answered{false};
  std::thread asker([&] {
    stream.reached(first);
    answered = true;
  });
  for (int i = 0; i < 30'000 && !answered; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(answered);
  runtime.full = false;
  marker.join();
  asker.join();
  CHECK_FALSE(stream.reached(first));
  runtime.come_to(0);
  CHECK(stream.reached(first));
  runtime.come_to(1);
  CHECK(stream.reached(first + 1));
}

TEST_CASE("default stream: marks of one stream are reached in order", "[kernel]") {
  SignalRuntime runtime;
  DefaultStream stream(runtime, 0, Order::default_stream);
  const std::uint64_t first = stream.mark(), second = stream.mark(), third = stream.mark();
  CHECK_FALSE(stream.reached(first));
  runtime.come_to(0);
  runtime.come_to(1);
  CHECK(stream.reached(second));
  CHECK(stream.reached(first));
  CHECK_FALSE(stream.reached(third));
  CHECK_FALSE(stream.reached(stream.mark()));
  stream.lose();
  CHECK(stream.reached(third));
}

TEST_CASE("default stream: marks of several threads' streams are reached each by itself", "[kernel]") {
  SignalRuntime runtime;
  DefaultStream stream(runtime, 0, Order::per_thread);
  const std::uint64_t first = stream.mark(), second = stream.mark();
  runtime.come_to(1);
  CHECK(stream.reached(second));
  CHECK_FALSE(stream.reached(first));
  runtime.come_to(0);
  CHECK(stream.reached(first));
}

TEST_CASE("default stream: marks that nobody asks about do not pile up", "[kernel]") {
  SignalRuntime runtime;
  DefaultStream stream(runtime, 0, Order::per_thread);
  std::set<const std::uint32_t*> words;
  for (std::size_t i = 0; i < 10000; ++i) {
    stream.mark();
    runtime.come_to(i);
    words.insert(runtime.signals[i].flag);
  }
  CHECK(words.size() < 100);
}

TEST_CASE("default stream: there is nothing to wait for while it cannot be used", "[kernel]") {
  SignalRuntime runtime;
  runtime.captures = true;
  DefaultStream stream(runtime, 0, Order::default_stream);
  CHECK(stream.mark() == 0);
  CHECK(stream.reached(0));
}

TEST_CASE("default stream: a mark in an idle stream has been reached", "[kernel]") {
  SignalRuntime runtime;
  runtime.idle = true;
  DefaultStream stream(runtime, 0, Order::default_stream);
  CHECK(stream.mark() == 0);
  CHECK(runtime.signals.empty());
}

TEST_CASE("default stream: transfers begin together when their mark has been reached", "[device]") {
  device::Config config;
  config.way = device::Way::kernel;
  const StreamSession session(config);
  HeldStream held;
  REQUIRE(cudaMemsetAsync(session.memory, StreamSession::later, StreamSession::bytes, nullptr) == cudaSuccess);
  const StreamMark mark = device::mark_default_stream(0);
  CHECK_FALSE(mark.reached());
  std::vector<Transfer> transfers;
  for (std::size_t row = 1; row < StreamSession::rows; ++row) transfers.push_back(session.pack(row, mark));
  for (Transfer& transfer : transfers) CHECK_FALSE(transfer.done());
  session.pack(0, {}).wait();  // is not behind them
  CHECK(session.holds(0, StreamSession::before));
  CHECK(session.holds(1, 0));
  const device::Movements before = device::movements();
  held.release();
  mark.wait();
  for (Transfer& transfer : transfers) transfer.wait();
  const device::Movements after = device::movements();
  for (std::size_t row = 1; row < StreamSession::rows; ++row) CHECK(session.holds(row, StreamSession::later));
  CHECK(after.batches - before.batches == 1);
  CHECK(after.batched - before.batched == StreamSession::rows - 1);
}

TEST_CASE("default stream: a transfer that is destroyed before its mark has been reached never begins", "[device]") {
  const StreamSession session;
  HeldStream held;
  const StreamMark mark = device::mark_default_stream(0);
  { const Transfer dropped = session.pack(0, mark); }
  Transfer other = session.pack(1, mark);
  held.release();
  other.wait();
  CHECK(session.holds(0, 0));
  CHECK(session.holds(1, StreamSession::before));
}

TEST_CASE("default stream: nothing waits for it if that is not wanted", "[device]") {
  const StreamSession session({}, Order::none);
  const HeldStream held;
  session.pack(0, device::mark_default_stream(0)).wait();
  CHECK(session.holds(0, StreamSession::before));
}
