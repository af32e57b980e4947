// Memory that its owner has freed is unmapped, and what takes its place is mapped.
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "device/memory/in_time.hpp"
#include "tests/support/peer_pair.hpp"

namespace {

using namespace gpudt::test;

/// A pair of which every mapping is to be closed in the end, but one.
struct TellingPair : Telling {
  TellingPair() = default;
  ~TellingPair() {
    for (const auto& slot : table->slots) CHECK(slot.mapped_by(all_importers) == (&slot == counted));
  }
  TellingPair(const TellingPair&) = delete;
  TellingPair& operator=(const TellingPair&) = delete;

  bool is_mappable(std::uint64_t address, Importers by = all_importers) {
    Exported made = {};
    return exporter.export_memory(0, gpu, reinterpret_cast<void*>(address), made, by);
  }
  Exported described(std::uint64_t address) {
    Exported made = {};
    REQUIRE(exporter.export_memory(0, gpu, reinterpret_cast<void*>(address), made, no_importers));
    return made;
  }
  const ExportTable::Slot* counted = nullptr;  ///< which alone is mapped in the end
};

TEST_CASE("peers: what its owner has freed is unmapped", "[device]") {
  TellingPair pair;
  for (const std::uint64_t i : {1, 5, 9}) {
    pair.theirs.allocate(i * page, page);
    REQUIRE(pair.import(pair.exported(i * page)));
  }
  for (int i = 0; i < 4; ++i) pair.poll();
  CHECK(pair.ours.open.size() == 3);
  pair.theirs.allocations.erase(page);
  pair.theirs.allocations.erase(9 * page);
  for (int i = 0; i < 2; ++i) pair.poll();
  CHECK(pair.ours.open.size() == 1);
  CHECK(pair.exporter.statistics().exports == 1);
  pair.theirs.allocations.clear();
  pair.poll();
  CHECK(pair.ours.open.empty());
  CHECK(pair.ours.wrong == 0);
}

/// A gate that is taken.
class TakenGate {
 public:
  TakenGate() : gate_(gates_.take(0, /*for_graph=*/false)) {
    REQUIRE(in_time([] {}, long_time));  // the helper thread is there: on a busy machine it may begin late
  }
  ~TakenGate() {
    end_helper();
    gates_.give(gate_, /*for_graph=*/false);
  }
  TakenGate(const TakenGate&) = delete;
  TakenGate& operator=(const TakenGate&) = delete;

 private:
  HostMemoryRuntime runtime_;
  Gates gates_{runtime_};
  Gate* gate_;
};

TEST_CASE("peers: mapping that a launch keeps waiting times out, and others find what it has mapped", "[device]") {
  TellingPair pair;
  pair.theirs.allocate(page, page);
  pair.theirs.allocate(5 * page, page);
  const Exported first = pair.exported(page), second = pair.exported(5 * page);
  {
    const TakenGate gate;
    REQUIRE(pair.import(second));
    pair.ours.launching = true;
    std::string why;
    CHECK_FALSE(pair.import(first, &why));
    CHECK(why.find("timed out") != std::string::npos);
    CHECK(pair.import(second));
    pair.ours.launching = false;
    REQUIRE(in_time([] {}, long_time));
    CHECK(pair.ours.opens == 2);
    CHECK(pair.importer.imported_memory(0, 5, first));
  }
  pair.theirs.allocations.clear();
  for (int i = 0; i < 2; ++i) pair.poll();
  CHECK(pair.ours.open.empty());
  CHECK(pair.ours.wrong == 0);
}

/// While a gate is taken: a mapping has timed out, and a launch keeps it waiting until `ours.launching` is false.
struct LatePair : TellingPair {
  LatePair() {
    theirs.allocate(page, page);
    given = exported(page);
    gate.emplace();
    ours.launching = true;
    CHECK_FALSE(import(given));
    while (!ours.waits) std::this_thread::yield();  // on a busy machine it times out before it begins
  }
  Exported given{};
  std::optional<TakenGate> gate;
};

TEST_CASE("peers: memory that is freed while it is mapped is unmapped", "[device]") {
  LatePair pair;
  pair.theirs.allocations.clear();
  pair.poll();
  pair.ours.launching = false;
  pair.gate.reset();
  pair.poll();
  CHECK(pair.ours.opens == 1);
  CHECK(pair.ours.open.empty());
}

TEST_CASE("peers: what is mapped when a context ends is not kept, and nobody waits for it", "[device]") {
  LatePair pair;
  pair.importer.lose(0);
  pair.ours.launching = false;
  REQUIRE(in_time([] {}, long_time));
  CHECK_FALSE(pair.importer.imported_memory(0, 5, pair.given));
  CHECK(pair.importer.statistics().imports == 0);
}

TEST_CASE("peers: what was unmapped is not held again", "[device]") {
  TellingPair pair;
  pair.theirs.allocate(page, page);
  const KnownMapping known(pair.import(pair.exported(page)));
  CHECK(pair.importer.hold_again(known));
  pair.theirs.allocations.clear();
  pair.poll();
  CHECK_FALSE(pair.importer.hold_again(known));
}

TEST_CASE("peers: what is held, or would wait for the GPU, is unmapped later", "[device]") {
  TellingPair pair;
  pair.theirs.allocate(page, page);
  Mapping held = pair.import(pair.exported(page));
  pair.theirs.allocations.clear();
  pair.poll();
  CHECK(pair.ours.open.size() == 1);
  const auto until_closed = [&] {
    int polls = 0;
    for (; !pair.ours.open.empty() && polls < 1000000; ++polls) pair.poll();
    return pair.ours.open.empty();
  };
  pair.ours.busy = true;
  held = {};
  for (int i = 0; i < 100; ++i) pair.poll();
  CHECK(pair.ours.open.size() == 1);
  pair.ours.busy = false;
  CHECK(until_closed());
  CHECK(pair.ours.wrong == 0);
}

TEST_CASE("peers: new memory is not mappable where others have older memory mapped", "[device]") {
  TellingPair pair;
  pair.theirs.allocate(4 * stub_granule, stub_granule);
  const Exported before = pair.exported(4 * stub_granule);
  REQUIRE(pair.import(before));
  pair.theirs.allocate(4 * stub_granule, page);  // freed and allocated anew
  pair.theirs.allocate(8 * stub_granule, page);  // elsewhere
  CHECK_FALSE(pair.is_mappable(4 * stub_granule));
  CHECK(pair.is_mappable(8 * stub_granule));
  pair.ours.busy = true;
  pair.poll();
  std::string why;
  CHECK_FALSE(pair.import(pair.described(4 * stub_granule), &why));
  CHECK(why == "memory that was mapped in its place cannot be unmapped while the GPU works");
  CHECK_FALSE(pair.is_mappable(4 * stub_granule + 100));
  pair.ours.busy = false;
  CHECK(pair.import(pair.described(4 * stub_granule), &why));  // which closes the older one
  CHECK(pair.is_mappable(4 * stub_granule));
  CHECK(pair.ours.open.size() == 1);
  CHECK_FALSE(pair.import(before, &why));  // told before, used after
  CHECK(why == "its owner has freed the memory");
  CHECK(pair.import(pair.exported(4 * stub_granule), &why));  // no refusal is remembered
  pair.theirs.allocations.clear();
  for (int i = 0; i < 2; ++i) pair.poll();
  CHECK(pair.ours.open.empty());
}

TEST_CASE("peers: memory beside what others have mapped waits as well, within the driver's pages", "[device]") {
  TellingPair pair;
  pair.theirs.allocate(4 * stub_granule, stub_granule / 4);
  const Mapping held = pair.import(pair.exported(4 * stub_granule));
  pair.counted = &pair.table->slots[pair.exported(4 * stub_granule).slot];
  pair.theirs.allocations.clear();
  pair.theirs.allocate(4 * stub_granule + stub_granule / 2, stub_granule / 4);
  CHECK_FALSE(pair.is_mappable(4 * stub_granule + stub_granule / 2));
  pair.importer.unmap_freed();
  CHECK_FALSE(pair.is_mappable(4 * stub_granule + stub_granule / 2));  // held
}

TEST_CASE("peers: memory that has a neighbour freed goes on to be mappable", "[device]") {
  TellingPair pair;
  pair.theirs.allocate(4 * stub_granule, stub_granule / 4);
  pair.theirs.allocate(4 * stub_granule + stub_granule / 2, stub_granule / 4);
  REQUIRE(pair.is_mappable(4 * stub_granule + stub_granule / 2));
  const Mapping held = pair.import(pair.exported(4 * stub_granule));
  pair.counted = &pair.table->slots[pair.exported(4 * stub_granule).slot];
  pair.theirs.allocations.erase(4 * stub_granule);
  pair.poll();
  CHECK(pair.is_mappable(4 * stub_granule + stub_granule / 2));
}

TEST_CASE("peers: older memory that one process has mapped does not concern the others", "[device]") {
  TellingPair pair;
  Peers laggard(pair.ours), late(pair.ours);
  const auto import = [&](Peers& peers, int number) {
    return bool{peers.import_memory(0, {5, pair.table.get(), number}, pair.described(page), nullptr)};
  };
  const Importers quick = Importers::process(0), slow = Importers::process(1), third = Importers::process(2);
  pair.theirs.allocate(page, page);
  REQUIRE(import(pair.importer, 0));
  REQUIRE(import(laggard, 1));
  for (int round = 0; round < 3; ++round) {
    pair.theirs.allocate(page, page);
    CHECK(pair.is_mappable(page, third));
    CHECK_FALSE(pair.is_mappable(page, quick));
    pair.poll();
    CHECK(pair.is_mappable(page, quick));
    CHECK_FALSE(pair.is_mappable(page, slow));
    CHECK_FALSE(pair.is_mappable(page));
    REQUIRE(import(pair.importer, 0));
  }
  CHECK(import(late, 2));
  laggard.unmap_freed();
  CHECK(pair.is_mappable(page));
  CHECK(import(laggard, 1));
  pair.theirs.allocations.clear();
  pair.poll();
  for (Peers* const each : {&laggard, &late}) each->unmap_freed();
  CHECK(pair.ours.open.empty());
}

TEST_CASE("peers: nothing is unmapped while transfers are under way, unless for long", "[device]") {
  TellingPair pair;
  pair.theirs.allocate(page, page);
  REQUIRE(pair.import(pair.exported(page)));
  pair.theirs.allocations.clear();
  pair.exporter.exports().look_for_freed(1);
  const auto began = std::chrono::steady_clock::now();
  pair.importer.unmap_freed(/*under_way=*/[] { return true; });
  CHECK(pair.ours.open.size() == 1);
  while (!pair.ours.open.empty() && std::chrono::steady_clock::now() - began < std::chrono::seconds(10))
    pair.importer.unmap_freed(/*under_way=*/[] { return true; });
  CHECK(pair.ours.open.empty());
  CHECK(std::chrono::steady_clock::now() - began >= std::chrono::microseconds(200));
}

TEST_CASE("peers: slots of the table are used again", "[device]") {
  TellingPair pair;
  constexpr int many = 3 * ExportTable::slot_count;
  for (int i = 0; i < many; ++i) {
    pair.theirs.allocate(page, page);
    REQUIRE(pair.import(pair.described(page)));
    pair.poll();
  }
  CHECK(pair.ours.open.size() == 1);
  CHECK(pair.exporter.statistics().exports == 1);
  CHECK(pair.exported(page).slot >= 0);
  pair.counted = &pair.table->slots[pair.exported(page).slot];
}

TEST_CASE("peers: allocations that the table has no room for are exported nevertheless", "[device]") {
  TellingPair pair;
  constexpr std::uint64_t many = 2 * ExportTable::slot_count;
  int without = 0;
  for (std::uint64_t i = 1; i <= many; ++i) {
    pair.theirs.allocate(i * 4 * page, page);
    if (pair.exported(i * 4 * page).slot < 0) ++without;
  }
  CHECK(without == ExportTable::slot_count);
  CHECK(pair.import(pair.exported(many * 4 * page)));
  pair.theirs.allocations.erase(4 * page);  // which has a slot
  for (std::uint64_t i = 1; i <= many; ++i) pair.exporter.exports().look_for_freed(2);
  CHECK(pair.exported(many * 4 * page).slot >= 0);
  CHECK(pair.import(pair.exported(many * 4 * page)));  // which counts the mapping from now on
  CHECK(pair.ours.opens == 1);
  pair.theirs.allocations.clear();
  for (std::uint64_t i = 1; i <= many; ++i) pair.poll();
  CHECK(pair.exporter.statistics().exports == 0);
  CHECK(pair.ours.open.empty());
}

TEST_CASE("peers: mappings that the context takes along are not counted any more", "[device]") {
  TellingPair pair;
  pair.theirs.allocate(page, page);
  REQUIRE(pair.import(pair.exported(page)));
  pair.importer.lose(0);
  pair.theirs.allocate(page, page);
  CHECK(pair.is_mappable(page));
}

}  // namespace
