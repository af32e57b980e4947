// Gates, by which streams of the program and the host wait for each other.
#include "device/memory/gates.hpp"

#include <atomic>
#include <chrono>
#include <thread>

#include "base/mutex.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/stub_runtime.hpp"

using namespace gpudt;

TEST_CASE("gates: one at which a stream may still wait does not close for a graph", "[device]") {
  test::HostMemoryRuntime runtime;
  device::Gates gates(runtime);
  device::Gate* const plain = gates.take(0, /*for_graph=*/false);
  const std::uint32_t number = plain->next();
  device::Meeting meeting;
  plain->wait_in(meeting, number, /*closes=*/false);
  plain->open(number);
  gates.give(plain, /*for_graph=*/false);  // the stream has not come to its wait yet
  device::Gate* const in_graph = gates.take(0, /*for_graph=*/true);
  CHECK(in_graph != plain);
  CHECK(*meeting.wait[0].done == number);
  device::Gate* const next = gates.take(0, /*for_graph=*/false);
  CHECK(next == plain);
  CHECK(next->next() == number + 1);
  CHECK(device::Gates::any_taken());
  gates.give(in_graph, /*for_graph=*/true);
  gates.give(next, /*for_graph=*/false);
  CHECK_FALSE(device::Gates::any_taken());
}

TEST_CASE("gates: none is taken while the host waits for streams", "[device]") {
  test::HostMemoryRuntime runtime;
  device::Gates gates(runtime);
  std::atomic<bool> waited{false}, waited_before{false};
  std::thread taker;
  device::Gate* gate = nullptr;
  {
    const LockGuard waiting(device::Gates::taking);
    taker = std::thread([&] {
      gate = gates.take(0, /*for_graph=*/false);
      waited_before = waited.load();
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK_FALSE(device::Gates::any_taken());
    waited = true;
  }
  taker.join();
  CHECK(waited_before);
  gates.give(gate, /*for_graph=*/false);
}
