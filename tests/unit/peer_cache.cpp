// What is remembered of exported and mapped memory.
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/support/peer_pair.hpp"

namespace {

using namespace gpudt::test;

TEST_CASE("peers: an allocation is exported once, wherever it is asked about", "[device]") {
  Pair pair;
  pair.theirs.allocate(page, page);
  pair.theirs.allocate(4 * page, page);
  const Exported first = pair.exported(page), inside = pair.exported(page + 100), other = pair.exported(4 * page);
  CHECK(pair.theirs.exports == 2);
  CHECK(std::memcmp(&first, &inside, sizeof first) == 0);
  CHECK(first.base == page);
  CHECK(first.size == page);
  CHECK(other.buffer_id != first.buffer_id);
  pair.theirs.allocate(page, 2 * page);  // freed and allocated anew
  CHECK(pair.exported(page).buffer_id != first.buffer_id);
  CHECK(pair.theirs.exports == 3);
}

TEST_CASE("peers: what cannot be exported is tried once", "[device]") {
  Pair pair;
  Exported exported = {};
  exported.size = 77;
  const auto refused = [&](std::uint64_t address) {
    return !pair.exporter.export_memory(0, gpu, reinterpret_cast<void*>(address), exported) && exported.size == 77;
  };
  CHECK(refused(page));
  pair.theirs.allocate(page, page, false);
  CHECK(refused(page));
  CHECK(pair.theirs.exports == 0);
  pair.theirs.refuse = true;
  pair.theirs.allocate(4 * page, page);
  CHECK(refused(4 * page));
  CHECK(refused(4 * page + 1));
  CHECK(pair.theirs.exports == 1);
}

TEST_CASE("peers: the exports remembered are bounded", "[device]") {
  Pair pair;
  constexpr std::uint64_t many = 3000;
  pair.theirs.allocate(page, page);
  for (std::uint64_t i = 1; i <= many; ++i) {
    pair.theirs.allocate(i * 4 * page, page);
    static_cast<void>(pair.exported(i * 4 * page));
    static_cast<void>(pair.exported(page));  // in use all the time: never forgotten
  }
  CHECK(pair.theirs.exports == many + 1);
  CHECK(pair.exporter.statistics().exports < 2000);
}

TEST_CASE("peers: a mapping is made once and shows all of the allocation", "[device]") {
  Pair pair;
  pair.theirs.allocate(page, page);
  const Mapping first = pair.map(pair.exported(page)), second = pair.map(pair.exported(page + 8));
  CHECK(pair.ours.opens == 1);
  CHECK(first.at(page) == second.at(page));
  CHECK(pair.ours.open.count(first.at(page)) == 1);
  CHECK(static_cast<char*>(first.at(page + 100)) == static_cast<char*>(first.at(page)) + 100);
  CHECK(first.at(page - 24) == static_cast<char*>(first.at(page)) - 24);  // only calculated with
  CHECK_FALSE(Mapping());
  // Another exporter's memory at the same address is other memory.
  const Mapping third = pair.map(pair.exported(page), 6);
  CHECK(third.at(page) != first.at(page));
}

TEST_CASE("peers: what is mapped already is found, and nothing is opened for it", "[device]") {
  Pair pair;
  const auto found = [&](const Exported& given) { return pair.importer.imported_memory(0, 5, given); };
  pair.theirs.allocate(page, page);
  CHECK_FALSE(found(pair.exported(page)));
  CHECK(pair.ours.opens == 0);
  const Mapping mapping = pair.map(pair.exported(page));
  CHECK(found(pair.exported(page + 8)).at(page) == mapping.at(page));
  pair.theirs.allocate(page, page);  // freed and allocated anew
  CHECK_FALSE(found(pair.exported(page)));
  CHECK(pair.ours.opens == 1);
}

TEST_CASE("peers: a known mapping is held again as long as it is open", "[device]") {
  Pair pair;
  pair.theirs.allocate(page, page);
  CHECK_FALSE(pair.importer.hold_again(KnownMapping()));
  Mapping held = pair.map(pair.exported(page));
  const KnownMapping known(held);
  CHECK(pair.importer.hold_again(known).at(page) == held.at(page));
  held = {};
  CHECK(pair.importer.hold_again(known));  // it stays open for later messages
  CHECK(pair.ours.opens == 1);
  held = pair.importer.hold_again(known);
  pair.importer.lose(0);
  CHECK_FALSE(pair.importer.hold_again(known));  // the GPU's context has ended, though the mapping is held
}

TEST_CASE("peers: memory that was freed and allocated anew is mapped anew", "[device]") {
  Pair pair;
  pair.theirs.allocate(page, page);
  Mapping held = pair.map(pair.exported(page));
  void* const before = held.at(page);
  pair.theirs.allocate(page, page);
  const Mapping fresh = pair.map(pair.exported(page));
  CHECK(fresh.at(page) != before);
  CHECK(pair.ours.open.count(before) == 1);  // somebody holds it
  held = {};
  pair.theirs.allocate(8 * page, page);
  static_cast<void>(pair.map(pair.exported(8 * page)));
  CHECK(pair.ours.open.count(before) == 0);
  CHECK(pair.ours.open.size() == 2);
  CHECK(pair.ours.wrong == 0);
}

TEST_CASE("peers: nothing is closed while the program's work is under way, which closing waits for", "[device]") {
  Pair pair;
  pair.theirs.allocate(page, page);
  const Mapping before = pair.map(pair.exported(page));
  pair.theirs.allocate(page, page);  // freed and allocated anew
  pair.theirs.allocate(4 * page, page);
  pair.ours.busy = true;
  std::string why;
  CHECK_FALSE(pair.importer.import_memory(0, 5, pair.exported(page), &why));
  CHECK(why == "memory that was mapped in its place cannot be unmapped while the GPU works");
  static_cast<void>(pair.map(pair.exported(4 * page)));
  for (std::uint64_t i = 2; i <= 80; ++i) {  // more than are kept otherwise
    pair.theirs.allocate(i * 4 * page, page);
    static_cast<void>(pair.map(pair.exported(i * 4 * page)));
  }
  CHECK(pair.ours.open.size() == 81);
  pair.ours.busy = false;
  pair.theirs.allocate(400 * page, page);
  const auto map_without_waiting = [&](std::uint64_t address) {
    return bool{pair.importer.import_memory(0, 5, pair.exported(address), &why, /*may_wait=*/false)};
  };
  CHECK_FALSE(map_without_waiting(page));
  CHECK(map_without_waiting(400 * page));
  CHECK(pair.ours.open.size() == 82);
  static_cast<void>(pair.map(pair.exported(page)));
  CHECK(pair.ours.open.size() == 65);  // one of them is held, and out of date
  CHECK(pair.ours.wrong == 0);
}

TEST_CASE("peers: a larger allocation over what was freed closes that first", "[device]") {
  Pair pair;
  pair.theirs.allocate(4 * page, page);
  pair.theirs.allocate(6 * page, page);
  pair.theirs.allocate(9 * page, page);
  for (const std::uint64_t at : {4, 6, 9}) static_cast<void>(pair.map(pair.exported(at * page)));
  CHECK(pair.ours.open.size() == 3);
  pair.theirs.allocations.clear();
  pair.theirs.allocate(3 * page, 5 * page);
  static_cast<void>(pair.map(pair.exported(3 * page)));
  CHECK(pair.ours.open.size() == 2);  // the new one, and that behind it
}

TEST_CASE("peers: mappings are bounded, and the oldest that nobody holds goes first", "[device]") {
  Pair pair;
  constexpr std::uint64_t many = 200;
  std::vector<Mapping> held;
  const auto map = [&](std::uint64_t i) { return pair.map(pair.exported(i * 4 * page)); };
  for (std::uint64_t i = 1; i <= many; ++i) pair.theirs.allocate(i * 4 * page, page);
  const Mapping kept = map(1);
  for (std::uint64_t i = 2; i <= many; ++i) static_cast<void>(map(i));
  CHECK(pair.importer.statistics().imports == 64);
  CHECK(pair.ours.open.size() == 64);
  CHECK(pair.ours.open.count(kept.at(4 * page)) == 1);
  const int opens = pair.ours.opens;
  static_cast<void>(map(many));
  static_cast<void>(map(many - 62));
  CHECK(pair.ours.opens == opens);
  static_cast<void>(map(many - 63));
  CHECK(pair.ours.opens == opens + 1);
  // More in use than are kept otherwise.
  for (std::uint64_t i = 1; i <= many; ++i) held.push_back(map(i));
  CHECK(pair.ours.open.size() == many);
  held.clear();
  pair.theirs.allocate(4000 * page, page);
  static_cast<void>(pair.map(pair.exported(4000 * page)));
  CHECK(pair.ours.open.size() == 64);
  CHECK(pair.ours.wrong == 0);
}

TEST_CASE("peers: a refusal is remembered of that exporter and its GPU", "[device]") {
  Pair pair;
  for (const std::uint64_t i : {1, 3, 5, 7}) pair.theirs.allocate(i * page, page);
  pair.ours.refuse = true;
  std::string why;
  CHECK_FALSE(pair.importer.import_memory(0, 5, pair.exported(page), &why));
  CHECK(why == "will not open");
  pair.ours.refuse = false;
  why.clear();
  CHECK_FALSE(pair.importer.import_memory(0, 5, pair.exported(3 * page), &why));
  CHECK(why == "will not open");
  CHECK_FALSE(pair.importer.import_memory(0, 5, pair.exported(page), nullptr));
  CHECK(pair.ours.opens == 1);
  CHECK(pair.importer.import_memory(0, 6, pair.exported(page), &why));
  CHECK(pair.importer.import_memory(2, 5, pair.exported(page), &why));
  CHECK(pair.importer.import_memory(0, 5, pair.exported(5 * page, with_id({9})), &why));  // a GPU that is not seen here
  CHECK(pair.ours.opens == 4);
  CHECK_FALSE(pair.importer.import_memory(0, 5, pair.exported(7 * page, far_gpu), &why));
  CHECK(why == "GPU 0 cannot access memory of GPU 3");
  CHECK(pair.ours.opens == 4);
}

TEST_CASE("peers: what was refused once is asked for again, more and more seldom", "[device]") {
  Pair pair;
  pair.theirs.allocate(page, page);
  const Exported exported = pair.exported(page);
  const auto asked_until_opened = [&] {
    int asked = 1;
    while (!pair.importer.import_memory(0, 5, exported, nullptr) && asked < 10000) ++asked;
    return asked;
  };
  pair.ours.refuse = true;
  for (int i = 0; i < 1000; ++i) CHECK_FALSE(pair.importer.import_memory(0, 5, exported, nullptr));
  CHECK(pair.ours.opens > 2);
  CHECK(pair.ours.opens < 10);
  pair.ours.refuse = false;
  CHECK(asked_until_opened() < 2000);
  CHECK(asked_until_opened() == 1);
}

TEST_CASE("peers: memory whose export was refused once is exported later", "[device]") {
  Pair pair;
  pair.theirs.allocate(page, page);
  Exported exported = {};
  const auto made = [&] { return pair.exporter.export_memory(0, gpu, reinterpret_cast<void*>(page), exported); };
  pair.theirs.refuse = true;
  CHECK_FALSE(made());
  pair.theirs.refuse = false;
  int asked = 0;
  while (!made() && asked < 10000) ++asked;
  CHECK(asked < 100);
  CHECK(pair.theirs.exports == 2);
}

TEST_CASE("peers: a process's own memory is used where it is", "[device]") {
  Pair pair;
  pair.theirs.allocate(page, page);
  std::string why;
  for (const int ordinal : {0, 1}) {
    const Mapping mapping = pair.exporter.import_memory(ordinal, 5, pair.exported(page), &why);
    REQUIRE(mapping);
    CHECK(mapping.at(page + 7) == reinterpret_cast<void*>(page + 7));
  }
  CHECK(pair.theirs.opens == 0);
  CHECK(pair.theirs.enabled == std::set<int>{1});
}

TEST_CASE("peers: the end closes everything, held or not", "[device]") {
  PeerRuntime theirs, ours;
  Peers exporter(theirs);
  Mapping held;
  {
    Peers importer(ours);
    for (const std::uint64_t i : {1, 3, 5}) {
      theirs.allocate(i * page, page);
      Exported exported = {};
      REQUIRE(exporter.export_memory(0, gpu, reinterpret_cast<void*>(i * page), exported));
      held = importer.import_memory(0, 5, exported, nullptr);
    }
    CHECK(ours.open.size() == 3);
  }
  CHECK(ours.open.empty());
  CHECK(ours.wrong == 0);
}

}  // namespace
