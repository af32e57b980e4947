// Gates, by which streams of the program and the host wait for each other.
#include "device/memory/gates.hpp"

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
