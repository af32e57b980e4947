// Calls of the driver that wait for launches are left to a thread while gates are taken.
#include "device/memory/in_time.hpp"

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "device/memory/gates.hpp"
#include "device/memory/pool.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/stub_runtime.hpp"

using namespace gpudt;
using namespace gpudt::device;

namespace {

constexpr std::chrono::milliseconds at_once{0};

/// A runtime whose allocations wait while `launching`, and a gate that is taken.
class Launching final : public test::HostMemoryRuntime {
 public:
  Launching() {
    gate_ = gates_.take(0, /*for_graph=*/false);
    REQUIRE(in_time([] {}, long_time));  // the helper thread is there: on a busy machine it may begin late
  }
  ~Launching() override {
    launching = false;
    end_helper();
    if (gate_ != nullptr) give();
  }
  void* mapped_alloc(int ordinal, std::size_t bytes) override {
    while (launching) std::this_thread::yield();
    ++allocations;
    return test::HostMemoryRuntime::mapped_alloc(ordinal, bytes);
  }
  void give() { gates_.give(std::exchange(gate_, nullptr), /*for_graph=*/false); }

  std::atomic<bool> launching{false};
  std::atomic<int> allocations{0};

 private:
  Gates gates_{*this};
  Gate* gate_;
};

}  // namespace

TEST_CASE("in_time: work is done by the caller while no gate is taken, and none is taken meanwhile", "[device]") {
  test::HostMemoryRuntime runtime;
  Gates gates(runtime);
  std::atomic<bool> taken{false};
  std::thread taker;
  Gate* gate = nullptr;
  bool taken_meanwhile = true, alone = false;
  const auto work = [&] {
    taker = std::thread([&] {
      gate = gates.take(0, /*for_graph=*/false);
      taken = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    taken_meanwhile = taken;
    alone = no_gate_is_taken() && in_time([] {}, at_once);
  };
  CHECK(in_time(work, at_once));
  CHECK_FALSE(taken_meanwhile);
  CHECK(alone);
  CHECK_FALSE(no_gate_is_taken());
  taker.join();
  CHECK_FALSE(in_time([] {}, at_once));
  gates.give(gate, /*for_graph=*/false);
  CHECK_THROWS_AS(in_time([] { throw std::runtime_error("refused"); }), std::runtime_error);
  CHECK(in_time([] {}, at_once));
}

TEST_CASE("in_time: work is done by another thread while a gate is taken, and its failure comes back", "[device]") {
  const Launching runtime;
  std::thread::id ran;
  bool alone = true, inner = false, inner_at_once = true;
  CHECK(in_time(
      [&] {
        ran = std::this_thread::get_id();
        alone = no_gate_is_taken();
        inner = in_time([] {});
        inner_at_once = in_time([] {}, at_once);
      },
      long_time));
  CHECK(ran != std::this_thread::get_id());
  CHECK_FALSE(alone);
  CHECK(inner);
  CHECK_FALSE(inner_at_once);
  CHECK_THROWS_AS(in_time([] { throw std::runtime_error("refused"); }, long_time), std::runtime_error);
  end_helper();
  CHECK(in_time([] {}, long_time));
}

TEST_CASE("in_time: who has little time goes on if work takes too long, and who has more waits for it", "[device]") {
  Launching runtime;
  std::atomic<bool> goes_on{false}, done{false};
  CHECK_FALSE(in_time([&] {
    while (!goes_on) std::this_thread::yield();
    done = true;
  }));
  bool ran = false;
  const auto began = std::chrono::steady_clock::now();
  CHECK_FALSE(in_time([&] { ran = true; }));
  CHECK(std::chrono::steady_clock::now() - began < short_time / 2);  // not waited for again
  CHECK_FALSE(ran);
  std::thread opener([&] {
    std::this_thread::sleep_for(2 * short_time);
    goes_on = true;
  });
  CHECK(in_time([&] { ran = true; }, long_time));
  CHECK(ran);
  CHECK(done);
  opener.join();
}

TEST_CASE("in_time: work is done one at a time, also when the last gate is given back", "[device]") {
  Launching runtime;
  std::atomic<int> at_work{0};
  std::atomic<bool> goes_on{false}, together{false};
  const auto work = [&] {
    together = together || ++at_work > 1;
    while (!goes_on) std::this_thread::yield();
    --at_work;
  };
  CHECK_FALSE(in_time(work));
  while (at_work == 0) std::this_thread::yield();  // on a busy machine it times out before it begins
  runtime.give();
  CHECK_FALSE(in_time(work, at_once));
  CHECK_FALSE(in_time(work));
  goes_on = true;
  CHECK(in_time(work, long_time));
  CHECK_FALSE(together);
}

TEST_CASE("in_time: a pool makes blocks while a gate is taken, and goes on without them during a launch", "[device]") {
  Launching runtime;
  const Pool::Owner pool = Pool::make(runtime, {});
  const int before = runtime.allocations;
  { const Staging staging = pool->acquire(StagingKind::mapped, 0, 1 << 20); }
  CHECK(runtime.allocations == before + 1);

  runtime.launching = true;
  const Staging longer_one = pool->acquire(StagingKind::mapped, 0, 100 << 10);  // the idle block is long enough
  CHECK(longer_one.capacity() == 1 << 20);
  CHECK_FALSE(pool->try_acquire(StagingKind::mapped, 0, 100 << 10));
  const Staging ordinary = pool->acquire_packed(0, 3 << 20);
  REQUIRE(ordinary);
  CHECK(ordinary.capacity() >= 3 << 20);
  CHECK(ordinary.memory_kind() == MemoryKind::host);
  CHECK(longer_one.memory_kind() == MemoryKind::pinned);
  std::memset(ordinary.data(), 1, 3 << 20);

  runtime.launching = false;
  CHECK(in_time([] {}, long_time));
  const int made = runtime.allocations;  // one that came too late is not lost
  const Staging late = pool->acquire_packed(0, 128 << 10);
  CHECK(late.memory_kind() == MemoryKind::pinned);
  CHECK(runtime.allocations == made);
  CHECK(pool->acquire_packed(0, 3 << 20).memory_kind() == MemoryKind::pinned);
}

TEST_CASE("in_time: a pool frees nothing while a gate is taken", "[device]") {
  Launching runtime;
  const Pool::Owner pool = Pool::make(runtime, {.cache = 0});
  { const Staging staging = pool->acquire(StagingKind::mapped, 0, 1 << 20); }
  CHECK(pool->statistics(StagingKind::mapped).allocated == 1 << 20);
  runtime.give();
  { const Staging staging = pool->acquire(StagingKind::mapped, 0, 1 << 20); }
  CHECK(pool->statistics(StagingKind::mapped).allocated == 0);
}

TEST_CASE("in_time: what is idle stands in where a pool has reached its limit and may not free", "[device]") {
  Launching runtime;
  const Pool::Owner pool = Pool::make(runtime, {.limit = 4 << 20});
  { const Staging staging = pool->acquire(StagingKind::mapped, 0, 3 << 20); }
  const Staging shorter = pool->try_acquire(StagingKind::mapped, 0, 2 << 20);
  CHECK(shorter.capacity() == 3 << 20);
  CHECK(pool->acquire_packed(0, 1 << 20).memory_kind() == MemoryKind::pinned);
  CHECK_THROWS_AS(pool->acquire_packed(0, 2 << 20), Error);  // in use, so that the limit counts
}
