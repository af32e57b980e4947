// Gates, by which streams of the program and the host wait for each other.
#include "device/memory/gates.hpp"

#include <atomic>
#include <chrono>
#include <thread>

#include "base/mutex.hpp"
#include "device/transfer/stream_mark.hpp"
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

TEST_CASE("gates: a mark is where a stream comes to one, unless that is given up before", "[device]") {
  test::HostMemoryRuntime runtime;
  device::Gates gates(runtime);
  device::Gate* const gate = gates.take(0, /*for_graph=*/false);
  for (int round = 0; round < 2; ++round) {
    device::Meeting meeting;
    const std::uint32_t number = gate->next();
    gate->tell_in(meeting, number);
    *meeting.told = number - 1;
    const device::StreamMark mark(*gate, number);
    CHECK_FALSE(mark.reached());
    *meeting.told = number;
    CHECK(mark.reached());
    gate->give_up(number);
    CHECK(mark.reached());  // the stream has been there
    *meeting.told = number + 1;
    CHECK(mark.reached());
    *meeting.told = number;
  }
  const std::uint32_t number = gate->next();
  const device::StreamMark mark(*gate, number);
  CHECK_FALSE(mark.reached());
  gate->give_up(number);
  CHECK_THROWS_AS(mark.reached(), device::Error);
  gates.give(gate, /*for_graph=*/false);
}

TEST_CASE("gates: the marks of a thread that is ordered by a stream are its own", "[device]") {
  test::HostMemoryRuntime runtime;
  device::Gates gates(runtime);
  device::Gate* const gate = gates.take(0, /*for_graph=*/false);
  device::Meeting meeting;
  gate->tell_in(meeting, 0);
  *meeting.told = 0;
  {
    const device::OrderedByStream ordered;
    CHECK(device::mark_default_stream(0).reached());
    {
      const device::OrderedByStream early(/*ordered=*/true, device::StreamMark(*gate, gate->next()));
      CHECK_FALSE(device::mark_default_stream(0).reached());
    }
    CHECK(device::mark_default_stream(0).reached());
  }
  gates.give(gate, /*for_graph=*/false);
}
