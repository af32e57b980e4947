// The list of what the engine polls (interpose/engine/polled_list.hpp), against a plain one.
#include "interpose/engine/polled_list.hpp"

#include <algorithm>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/unit.hpp"

namespace gpudt::interpose {
namespace {

using List = PolledList<int, std::shared_ptr<int>>;

/// In the order of their places. Each has its own value.
std::vector<int> entries(List& list) {
  std::vector<int> found;
  const List::Window all = list.all();
  for (std::size_t at = all.begin; at < all.end; ++at) {
    found.push_back(list.keys()[at]);
    CHECK(*list.value<1>(at) == found.back());
  }
  return found;
}

void add(List& list, int key) {
  list.add(key, std::make_shared<int>(key));
}

/// Removes some of a window by both ways to do that. Returns which.
std::vector<int> remove_some(List& list, const List::Window& window, bool marked, std::mt19937_64& random) {
  std::vector<int> removed;
  List::Marks marks;
  for (std::size_t at = window.begin; at < std::min(window.end, list.all().end);) {
    const bool goes = random() % 3 == 0;
    if (goes) removed.push_back(list.keys()[at]);
    if (goes && marked) marks.set(at - window.begin);
    at = goes && !marked ? list.remove(at) : at + 1;
  }
  if (marked) list.remove(window, marks);
  return removed;
}

TEST_CASE("a polled list has what was added and not removed, and the oldest in order", "[chooser]") {
  std::mt19937_64 random = test::unit_random(0);
  List list;
  std::set<int> expected;
  int next = 0;
  for (int pass = 0; pass < 600; ++pass) {
    list.tidy();
    const std::size_t added = random() % 50;
    list.reserve(expected.size() + added);
    const int* const before = list.keys();
    for (std::size_t i = 0; i < added; ++i) {
      add(list, next);
      expected.insert(next++);
    }
    CHECK((before == list.keys()));  // it has taken no memory
    for (const bool beyond : {false, true}) {
      const List::Window window = beyond ? list.beyond(1 + random() % List::window) : list.oldest();
      list.pass(list.beyond(3));
      for (const int key : remove_some(list, window, random() % 2 == 0, random)) CHECK(expected.erase(key) == 1);
      const std::vector<int> found = entries(list);
      CHECK(std::set<int>(found.begin(), found.end()) == expected);
      CHECK(found.size() == list.size());
    }
  }
}

TEST_CASE("the oldest entries of a polled list stay in order, and are followed by the next ones", "[chooser]") {
  std::mt19937_64 random = test::unit_random(1);
  List list;
  for (int key = 0; key < 1000; ++key) add(list, key);
  std::vector<int> expected = entries(list);
  while (!list.empty()) {
    list.tidy();
    for (const int key : remove_some(list, list.oldest(), random() % 2 == 0, random))
      expected.erase(std::find(expected.begin(), expected.end(), key));
    CHECK(entries(list) == expected);
    CHECK(list.oldest().size() == std::min(expected.size(), List::window));
  }
}

TEST_CASE("every entry of a polled list is reached, whatever is added and removed meanwhile", "[chooser]") {
  std::mt19937_64 random = test::unit_random(2);
  constexpr int all = 1000;
  constexpr std::size_t most = 16;
  List list;
  for (int key = 0; key < all; ++key) add(list, key);
  std::set<int> unseen;
  for (const int key : entries(list)) unseen.insert(key);
  for (int pass = 0, next = all; pass < 3 * all / static_cast<int>(most); ++pass) {
    list.tidy();
    const List::Window oldest = list.oldest(), beyond = list.beyond(most);
    list.pass(beyond);
    for (std::size_t at = oldest.begin; at < oldest.end; ++at) unseen.erase(list.keys()[at]);
    for (std::size_t at = beyond.begin; at < std::min(beyond.end, list.all().end);) {
      unseen.erase(list.keys()[at]);
      at = random() % 3 == 0 ? list.remove(at) : at + 1;
    }
    for (std::size_t i = 0; i < 2 * most; ++i) add(list, next++);
  }
  CHECK(unseen.empty());
}

}  // namespace
}  // namespace gpudt::interpose
