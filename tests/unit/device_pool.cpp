// Staging pools, over a runtime that counts and can be made to fail.
#include <atomic>
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "device/memory/pool.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/stub_runtime.hpp"

namespace {

using namespace gpudt::device;

constexpr std::size_t KiB = 1 << 10, MiB = 1 << 20;

/// Plain memory instead of pinned and device memory; no streams.
class CountingRuntime final : public gpudt::test::StubRuntime {
 public:
  ~CountingRuntime() override {
    for (const auto& entry : live) std::free(entry.first);
  }
  void* mapped_alloc(int, std::size_t bytes) override { return allocate(bytes); }
  void mapped_free(int, void* address) noexcept override { release(address); }
  void* device_alloc(int, std::size_t bytes) override { return allocate(bytes); }
  void device_free(int, void* address) noexcept override { release(address); }

  std::size_t bytes() const {
    std::size_t sum = 0;
    for (const auto& entry : live) sum += entry.second;
    return sum;
  }

  std::mutex mutex;
  std::map<void*, std::size_t> live;
  std::vector<std::size_t> freed;  // sizes, in order
  std::size_t allocations = 0;
  std::size_t memory = ~std::size_t(0);  // what there is

 private:
  void* allocate(std::size_t size) {
    const std::lock_guard lock(mutex);
    if (size > memory - bytes()) throw Error(Failure::out_of_memory, "no memory");
    void* address = std::aligned_alloc(4096, (size + 4095) / 4096 * 4096);
    live[address] = size;
    ++allocations;
    return address;
  }
  void release(void* address) {
    const std::lock_guard lock(mutex);
    freed.push_back(live.at(address));
    live.erase(address);
    std::free(address);
  }
};

Pool::Bounds unbounded() {
  return {};
}

std::string message_of(Pool& pool, StagingKind kind, std::size_t bytes) {
  try {
    pool.acquire(kind, 0, bytes);
  } catch (const Error& error) {
    CHECK(error.failure() == Failure::out_of_memory);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("pool: size classes", "[device]") {
  std::size_t last = 0;
  for (std::size_t bytes = 0; bytes < 40 * MiB; bytes += bytes / 50 + 1) {
    const std::size_t rounded = Pool::class_bytes(bytes);
    REQUIRE(rounded >= bytes);
    REQUIRE(rounded >= last);
    REQUIRE(rounded % 512 == 0);
    REQUIRE(Pool::class_bytes(rounded) == rounded);
    if (bytes > MiB) {
      REQUIRE(rounded - bytes <= bytes / 8);
    }
    last = rounded;
  }
  CHECK(Pool::class_bytes(MiB) == MiB);
  CHECK(Pool::class_bytes(MiB + 1) == MiB + MiB / 8);
}

TEST_CASE("pool: blocks are reused by kind and GPU", "[device]") {
  CountingRuntime runtime;
  const auto pool = Pool::make(runtime, unbounded());
  void* first = nullptr;
  {
    const Staging block = pool->acquire(StagingKind::device, 0, 3 * MiB);
    first = block.data();
    CHECK(block.capacity() >= 3 * MiB);
  }
  CHECK(pool->acquire(StagingKind::device, 0, 3 * MiB - 1).data() == first);
  CHECK(runtime.allocations == 1);
  CHECK(pool->acquire(StagingKind::device, 1, 3 * MiB).data() != first);
  CHECK(pool->acquire(StagingKind::mapped, 0, 3 * MiB).data() != first);
  CHECK(runtime.allocations == 3);
  CHECK(pool->acquire(StagingKind::mapped, 0, 3 * MiB - 1));
  CHECK(runtime.allocations == 3);
}

TEST_CASE("pool: what is lost with the context of one GPU is not used with another", "[device]") {
  CountingRuntime runtime;
  const auto pool = Pool::make(runtime, unbounded());
  for (const StagingKind kind : {StagingKind::mapped, StagingKind::device}) {
    const Staging other = pool->acquire(kind, 1, MiB);
    Staging held = pool->acquire(kind, 0, MiB);
    void* const lost = held.data();
    pool->acquire(kind, 0, 2 * MiB) = {};
    pool->lose(0);
    CHECK(pool->acquire(kind, 1, 2 * MiB));
    CHECK(pool->acquire(kind, 0, MiB).data() != lost);
    held = {};
    CHECK(pool->statistics(kind).in_use == MiB);
  }
}

TEST_CASE("pool: small blocks share slabs and do not overlap", "[device]") {
  CountingRuntime runtime;
  const auto pool = Pool::make(runtime, unbounded());
  std::vector<Staging> blocks;
  std::map<char*, std::size_t> ranges;
  for (std::size_t i = 0; i < 2000; ++i) {
    blocks.push_back(pool->acquire(StagingKind::mapped, 0, 1 + i % 1500));
    REQUIRE(reinterpret_cast<std::uintptr_t>(blocks.back().data()) % 256 == 0);
    ranges[static_cast<char*>(blocks.back().data())] = blocks.back().capacity();
  }
  REQUIRE(ranges.size() == blocks.size());
  const char* end = nullptr;
  for (const auto& [begin, bytes] : ranges) {
    REQUIRE((end == nullptr || begin >= end));
    end = begin + bytes;
  }
  CHECK(runtime.allocations < 20);
  const std::size_t before = runtime.allocations;
  blocks.clear();
  for (std::size_t i = 0; i < 2000; ++i) blocks.push_back(pool->acquire(StagingKind::mapped, 0, 1 + i % 1500));
  CHECK(runtime.allocations == before);
}

TEST_CASE("pool: moved blocks are returned once", "[device]") {
  CountingRuntime runtime;
  const auto pool = Pool::make(runtime, unbounded());
  Staging a = pool->acquire(StagingKind::mapped, 0, MiB), b = pool->acquire(StagingKind::mapped, 0, MiB);
  void* const kept = a.data();
  b = std::move(a);
  CHECK(b.data() == kept);
  CHECK_FALSE(a);
  CHECK(pool->statistics(StagingKind::mapped).in_use == MiB);
  b = {};
  CHECK(pool->statistics(StagingKind::mapped).in_use == 0);
}

TEST_CASE("pool: statistics and their peaks", "[device]") {
  CountingRuntime runtime;
  const auto pool = Pool::make(runtime, {0, 2 * MiB});
  {
    const Staging a = pool->acquire(StagingKind::device, 0, MiB), b = pool->acquire(StagingKind::device, 0, 2 * MiB);
    const auto now = pool->statistics(StagingKind::device);
    CHECK(now.in_use == 3 * MiB);
    CHECK(now.allocated == 3 * MiB);
    CHECK(pool->statistics(StagingKind::mapped).peak_allocated == 0);
  }
  const auto now = pool->statistics(StagingKind::device);
  CHECK(now.in_use == 0);
  CHECK(now.peak_in_use == 3 * MiB);
  CHECK(now.peak_allocated == 3 * MiB);
  CHECK(now.allocated == runtime.bytes());
  CHECK(now.allocated <= 2 * MiB);
}

TEST_CASE("pool: idle memory above the bound is freed, what was used last at last", "[device]") {
  CountingRuntime runtime;
  const auto pool = Pool::make(runtime, {0, 4 * MiB});
  std::vector<Staging> blocks;
  for (const std::size_t size : {1, 2, 3, 6}) blocks.push_back(pool->acquire(StagingKind::mapped, 0, size * MiB));
  for (Staging& block : blocks) block = {};
  CHECK(runtime.freed == std::vector<std::size_t>{1 * MiB, 2 * MiB, 3 * MiB, 6 * MiB});
  // Many of one length, after others: none of them is freed and allocated again.
  runtime.freed.clear();
  pool->acquire(StagingKind::mapped, 0, 2 * MiB) = {};
  for (int round = 0; round < 3; ++round) {
    const Staging a = pool->acquire(StagingKind::mapped, 0, 2 * MiB - KiB);
    const Staging b = pool->acquire(StagingKind::mapped, 0, 2 * MiB - KiB);
  }
  CHECK(pool->statistics(StagingKind::mapped).allocated == 4 * MiB);
  CHECK(runtime.freed.empty());
}

TEST_CASE("pool: the limit", "[device]") {
  CountingRuntime runtime;
  const auto pool = Pool::make(runtime, {8 * MiB, ~std::size_t(0)});
  Staging held = pool->acquire(StagingKind::mapped, 0, 5 * MiB);
  SECTION("says what it is, what was asked for and what is in use") {
    const std::string message = message_of(*pool, StagingKind::device, 4 * MiB);
    CHECK(message.find("GPUDT_STAGING_LIMIT") != std::string::npos);
    CHECK(message.find(std::to_string(8 * MiB)) != std::string::npos);
    CHECK(message.find(std::to_string(4 * MiB)) != std::string::npos);
    CHECK(message.find(std::to_string(5 * MiB)) != std::string::npos);
    CHECK(runtime.bytes() == 5 * MiB);
    CHECK(pool->acquire(StagingKind::device, 0, 3 * MiB));
  }
  SECTION("idle blocks make way, of whatever kind") {
    held = {};
    CHECK(pool->acquire(StagingKind::device, 0, 4 * MiB));
    CHECK(runtime.freed == std::vector<std::size_t>{5 * MiB});
  }
  SECTION("slabs shrink to what is left") {
    const Staging most = pool->acquire(StagingKind::mapped, 0, 3 * MiB - 384 * KiB);
    std::vector<Staging> small;
    while (small.size() < 100000 && message_of(*pool, StagingKind::mapped, 4 * KiB).empty())
      small.push_back(pool->acquire(StagingKind::mapped, 0, 4 * KiB));
    CHECK(runtime.bytes() <= 8 * MiB);
    CHECK(runtime.bytes() + 4 * KiB > 8 * MiB);
    CHECK(small.size() > 2);
  }
  SECTION("requests beyond all sense") {
    CHECK_FALSE(message_of(*pool, StagingKind::mapped, ~std::size_t(0)).empty());
    CHECK_FALSE(message_of(*pool, StagingKind::mapped, ~std::size_t(0) / 2).empty());
  }
}

TEST_CASE("pool: a small limit has room for short blocks of several lengths", "[device]") {
  CountingRuntime runtime;
  const auto pool = Pool::make(runtime, {32 * KiB, ~std::size_t(0)});
  std::vector<Staging> held;
  for (const std::size_t bytes : {KiB, KiB / 2, 4 * KiB, 2 * KiB, KiB})
    held.push_back(pool->acquire(StagingKind::mapped, 0, bytes));
  CHECK(runtime.bytes() <= 32 * KiB);
}

TEST_CASE("pool: when the runtime has no memory, idle blocks are freed and it is asked again", "[device]") {
  CountingRuntime runtime;
  runtime.memory = 4 * MiB;
  const auto pool = Pool::make(runtime, unbounded());
  pool->acquire(StagingKind::mapped, 0, 3 * MiB);
  CHECK(pool->acquire(StagingKind::mapped, 0, 2 * MiB));
  CHECK(runtime.freed == std::vector<std::size_t>{3 * MiB});
  CHECK(message_of(*pool, StagingKind::mapped, 5 * MiB) == "no memory");
  CHECK(pool->statistics(StagingKind::mapped).allocated == runtime.bytes());
}

TEST_CASE("pool: closed with blocks still held", "[device]") {
  CountingRuntime runtime;
  auto pool = Pool::make(runtime, unbounded());
  Staging a = pool->acquire(StagingKind::mapped, 0, 100), b = pool->acquire(StagingKind::device, 0, MiB);
  pool.reset();
  CHECK(runtime.live.empty());
  a = {};
  b = {};
  CHECK(runtime.freed.size() == 2);
}

TEST_CASE("pool: threads", "[device]") {
  CountingRuntime runtime;
  const auto pool = Pool::make(runtime, {64 * MiB, 4 * MiB});
  std::vector<std::thread> threads;
  std::atomic<int> damaged{0};
  for (int number = 0; number < 8; ++number) {
    threads.emplace_back([&, number] {
      std::vector<Staging> held(20);
      unsigned random = static_cast<unsigned>(number) + 1;
      for (int i = 0; i < 3000; ++i) {
        random = random * 1664525 + 1013904223;
        Staging& slot = held[random >> 24 & 15];
        if (slot && *static_cast<int*>(slot.data()) != number) ++damaged;
        slot = pool->acquire(StagingKind::mapped, 0, random >> 8 & 0x3ffff);
        *static_cast<int*>(slot.data()) = number;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(damaged == 0);
  const auto now = pool->statistics(StagingKind::mapped);
  CHECK(now.in_use == 0);
  CHECK(now.allocated == runtime.bytes());
  CHECK(now.allocated <= 4 * MiB);
  CHECK(now.peak_allocated <= 64 * MiB);
}
