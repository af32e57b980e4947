// Layouts divided by memory, in addresses that are played: memories that neighbour each other, and questions counted.
#include "device/memory/division.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "datatype/decode.hpp"
#include "datatype/runs.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/owned_type.hpp"
#include "tests/support/random_type.hpp"
#include "tests/support/unit.hpp"

using namespace gpudt;
using namespace gpudt::datatype;
using namespace gpudt::device;
using namespace gpudt::test;

namespace {

/// Allocations of GPUs by their ends; all else is host memory, which tells of pages alone.
struct Played {
  std::map<std::uintptr_t, Region> by_end;
  int questions = 0;

  void add(std::uintptr_t begin, std::uintptr_t end, int ordinal) {
    by_end[end] = {begin, end, {MemoryKind::device, ordinal}};
  }
  Region find(std::uintptr_t address) {
    ++questions;
    const auto at = by_end.upper_bound(address);
    if (at != by_end.end() && at->second.begin <= address) return at->second;
    constexpr std::uintptr_t page = 4096;
    return {address / page * page, address / page * page + page, {}};
  }
};

Played played;

Region find(const void* address) {
  return played.find(reinterpret_cast<std::uintptr_t>(address));
}

/// "0-8 host, 8-16 GPU 1".
std::string text(const std::vector<Part>& division) {
  std::string line;
  for (const Part& part : division)
    line += (line.empty() ? "" : ", ") + std::to_string(part.begin) + "-" + std::to_string(part.end) +
            (part.location.on_device() ? " GPU " + std::to_string(part.location.ordinal) : " host");
  return line;
}

/// As the interposition layer asks.
std::vector<Part> division_of(const LayoutRef& layout, std::int64_t count, const void* user) {
  if (layout->size() == 0) return {};
  const Region first =
      played.find(reinterpret_cast<std::uintptr_t>(user) + static_cast<std::uintptr_t>(layout->true_lb()));
  const std::int64_t bytes = count * layout->size();
  if (const auto memory = one_memory(*layout, count, user, first, find)) return {{0, bytes, *memory}};
  return Division(layout, count, user, find).up_to(bytes);
}

std::string divided(const OwnedType& type, std::int64_t count = 1, std::uintptr_t user = 0) {
  played.questions = 0;
  return text(division_of(decode(type), count, reinterpret_cast<const void*>(user)));
}

constexpr std::uintptr_t mebi = 1 << 20;
constexpr std::uintptr_t gpu_0 = 0x7f0000000000, gpu_1 = gpu_0 + 2 * mebi, gpu_0_again = gpu_1 + 2 * mebi;
constexpr std::uintptr_t host = 0x550000000000;

/// 2 MiB each of GPU 0, of GPU 1, and of GPU 0 again, without anything between.
void play_neighbours() {
  played = {};
  played.add(gpu_0, gpu_1, 0);
  played.add(gpu_1, gpu_0_again, 1);
  played.add(gpu_0_again, gpu_0_again + 2 * mebi, 0);
}

OwnedType doubles_at(const std::vector<std::uintptr_t>& addresses, int length = 1) {
  std::vector<MPI_Aint> displs(addresses.begin(), addresses.end());
  return structure(std::vector<int>(addresses.size(), length), displs,
                   std::vector<MPI_Datatype>(addresses.size(), MPI_DOUBLE));
}

}  // namespace

TEST_CASE("data are divided by memory in their packed order", "[datatype][division]") {
  play_neighbours();
  CHECK(divided(doubles_at({host, gpu_0})) == "0-8 host, 8-16 GPU 0");
  CHECK(divided(doubles_at({gpu_1 + 800, host})) == "0-8 GPU 1, 8-16 host");
  CHECK(divided(doubles_at({gpu_1, host, gpu_0, host + 64, host + 8})) ==
        "0-8 GPU 1, 8-16 host, 16-24 GPU 0, 24-40 host");
  CHECK(divided(doubles_at({gpu_0, gpu_0_again, gpu_1})) == "0-16 GPU 0, 16-24 GPU 1");
  CHECK(divided(doubles_at({})) == "");
}

TEST_CASE("a contiguous run over two GPUs is divided where the allocations meet", "[datatype][division]") {
  play_neighbours();
  const int all = 2 * mebi / sizeof(double);
  CHECK(divided(doubles_at({gpu_0, gpu_1}, all)) == "0-2097152 GPU 0, 2097152-4194304 GPU 1");
  CHECK(divided(doubles_at({gpu_1 - 8, gpu_1})) == "0-8 GPU 0, 8-16 GPU 1");
}

TEST_CASE("several elements are divided one by one", "[datatype][division]") {
  play_neighbours();
  OwnedType pair = resized(0, 8, doubles_at({host, gpu_0}));
  CHECK(divided(pair, 3) == "0-8 host, 8-16 GPU 0, 16-24 host, 24-32 GPU 0, 32-40 host, 40-48 GPU 0");
  // From an address in the GPU's memory, backwards into the host's by the extent.
  OwnedType back = resized(0, static_cast<MPI_Aint>(host) - static_cast<MPI_Aint>(gpu_0), doubles_at({0}));
  CHECK(divided(back, 2, gpu_0) == "0-8 GPU 0, 8-16 host");
}

TEST_CASE("what lies in one memory takes few questions", "[datatype][division]") {
  play_neighbours();
  CHECK(divided(vector(1000, 1, 200, MPI_DOUBLE), 1, gpu_0) == "0-8000 GPU 0");
  CHECK(played.questions == 1);
  // Nine allocations of one GPU, far apart, with lists of runs in each.
  played = {};
  std::vector<std::uintptr_t> addresses;
  for (std::uintptr_t allocation = 0; allocation < 9; ++allocation) {
    const std::uintptr_t begin = gpu_0 + allocation * 8 * mebi;
    played.add(begin, begin + mebi, 3);
    for (std::uintptr_t i = 0; i < 500; ++i) addresses.push_back(begin + 16 * (i * i % 4001));
  }
  CHECK(divided(doubles_at(addresses)) == "0-36000 GPU 3");
  CHECK(played.questions == 9);
  // An array in host memory.
  CHECK(divided(vector(100000, 1, 4096, MPI_DOUBLE), 1, host) == "0-800000 host");
  CHECK(played.questions == 1);
  CHECK(divided(vector(100000, 1, 2, MPI_DOUBLE), 1, host) == "0-800000 host");
  CHECK(played.questions == 1);
}

TEST_CASE("regular strides may lead from one memory into another", "[datatype][division]") {
  play_neighbours();
  CHECK(divided(hvector(2, 100, static_cast<MPI_Aint>(gpu_1 - host), MPI_DOUBLE), 1, host) ==
        "0-800 host, 800-1600 GPU 1");
  CHECK(divided(hvector(2, 100, static_cast<MPI_Aint>(2 * mebi), MPI_DOUBLE), 1, gpu_0) ==
        "0-800 GPU 0, 800-1600 GPU 1");
}

TEST_CASE("divisions of random types agree with a look at every byte", "[datatype][division]") {
  for (std::int64_t tree = 0; tree < unit_trees(200); ++tree) {
    INFO("tree " << tree);
    auto random = unit_random(static_cast<std::uint64_t>(tree));
    played = {};
    std::uintptr_t end = gpu_0;
    for (int i = 0; i < 12; ++i) {  // with gaps of host memory, or without
      const std::uintptr_t begin = end + random() % 3 * 4096;
      end = begin + (1 + random() % 4) * 4096;
      played.add(begin, end, static_cast<int>(random() % 3));
    }
    const auto space = static_cast<std::int64_t>(end + 8192 - gpu_0);
    std::vector<std::uintptr_t> addresses;
    for (int i = 0; i < 40; ++i) addresses.push_back(gpu_0 + random() % static_cast<std::uint64_t>(space) / 8 * 8);
    OwnedType type = resized(0, static_cast<MPI_Aint>(random() % 3 * 4096), doubles_at(addresses));
    const LayoutRef layout = decode(type);
    const std::int64_t count = 1 + static_cast<std::int64_t>(random() % 3);
    const std::vector<Part> division = division_of(layout, count, nullptr);
    std::vector<int> memories, expected;
    for (const Part& part : division) {
      CHECK(part.begin == static_cast<std::int64_t>(memories.size()) * 8);
      memories.resize(static_cast<std::size_t>(part.end) / 8, part.location.on_device() ? part.location.ordinal : -1);
    }
    for_each_run(*layout, 0, count * layout->size(), [&](std::int64_t offset, std::int64_t, std::int64_t length) {
      for (std::int64_t at = 0; at < length; at += 8) {
        const Region region = played.find(static_cast<std::uintptr_t>(offset + at));
        expected.push_back(region.location.on_device() ? region.location.ordinal : -1);
      }
    });
    CHECK(memories == expected);
  }
}

TEST_CASE("an element of 2^31 runs is looked at without a list of them", "[datatype][division]") {
  const OwnedType char_of_2 = resized(0, 2, MPI_CHAR);
  const OwnedType some = contiguous(1 << 16, char_of_2);
  const OwnedType most = contiguous(1 << 15, some);
  constexpr std::int64_t runs = std::int64_t{1} << 31;
  OwnedType type =
      structure({1, 3, 1}, {0, 2 * runs + 1, static_cast<MPI_Aint>(gpu_0 - host)}, {most, MPI_CHAR, MPI_CHAR});
  const LayoutRef layout = decode(type);
  REQUIRE(layout->runs() == runs + 2);
  REQUIRE(layout->shape(1).kind != ShapeKind::strided);
  const auto user = reinterpret_cast<const void*>(host);
  played = {};
  const auto memory = one_memory(*layout, 1, user, played.find(host), find);
  CHECK((memory && !memory->on_device()));
  CHECK(played.questions <= 4);
  play_neighbours();
  CHECK(!one_memory(*layout, 1, user, played.find(host), find));
}

TEST_CASE("stretches of very many runs are told apart where memories neighbour", "[datatype][division]") {
  play_neighbours();
  constexpr int runs = 300000;  // so many in host memory that ends where that of the GPU begins, and then in this
  const OwnedType before = vector(runs, 1, 2, MPI_CHAR), behind = vector(runs, 1, 3, MPI_CHAR);
  OwnedType type = structure({1, 1}, {-2 * runs, 0}, {before, behind});
  const LayoutRef layout = decode(type);
  REQUIRE(layout->runs() > 1 << 18);
  const auto first = reinterpret_cast<const void*>(gpu_0);
  CHECK(!one_memory(*layout, 1, first, played.find(gpu_0 - 2 * runs), find));
  const auto second = reinterpret_cast<const void*>(gpu_1);
  CHECK(!one_memory(*layout, 1, second, played.find(gpu_1 - 2 * runs), find));
  const auto one = reinterpret_cast<const void*>(gpu_1 - mebi);
  CHECK(one_memory(*layout, 1, one, played.find(gpu_1 - mebi - 2 * runs), find)->ordinal == 0);
}

TEST_CASE("millions of irregular runs are looked at by pages", "[datatype][division]") {
  std::vector<int> displs;
  for (int i = 0; i < 2048; ++i) displs.push_back(32 * i + 7 * i % 5);
  const OwnedType list = indexed_block(1, displs, MPI_CHAR);
  const OwnedType block = resized(0, 1 << 16, list);
  constexpr int blocks = 4096;  // 256 MiB
  OwnedType type = contiguous(blocks, block);
  const LayoutRef layout = decode(type);
  REQUIRE(layout->runs() == std::int64_t{2048} * blocks);
  const auto user = reinterpret_cast<const void*>(host);
  played = {};
  const auto memory = one_memory(*layout, 1, user, played.find(host), find);
  CHECK((memory && !memory->on_device()));
  played.add(host + 100 * mebi, host + 100 * mebi + 4096, 0);
  CHECK(!one_memory(*layout, 1, user, played.find(host), find));
}

TEST_CASE("stretches hold all data, and gaps as short as asked for", "[datatype][division]") {
  for (std::int64_t tree = 0; tree < unit_trees(400); ++tree) {
    auto random = unit_random(static_cast<std::uint64_t>(tree));
    const RandomType type(random, {});
    INFO("tree " << tree << ": " << type.description());
    const LayoutRef layout = decode(type.handle(), tree % 2 == 0 ? ListLimits{} : ListLimits{0, 1, 0, 0});
    const auto bytes = static_cast<std::size_t>(layout->true_ub() - layout->true_lb());
    std::vector<bool> data(bytes), held(bytes);
    for_each_run(*layout, 0, layout->size(), [&](std::int64_t offset, std::int64_t, std::int64_t length) {
      for (std::int64_t at = 0; at < length; ++at)
        data[static_cast<std::size_t>(offset + at - layout->true_lb())] = true;
    });
    const auto most_gap = static_cast<std::int64_t>(random() % 64);
    std::int64_t longest = 0, least = layout->size();
    for_each_stretch(*layout, most_gap, [&](const Span& span) {
      std::int64_t gap = 0;
      for (std::int64_t at = span.begin - layout->true_lb(); at < span.end - layout->true_lb(); ++at) {
        held.at(static_cast<std::size_t>(at)) = true;
        gap = data[static_cast<std::size_t>(at)] ? 0 : gap + 1;
        longest = std::max(longest, gap);
      }
      least = std::min(least, span.bytes());
    });
    CHECK(longest <= most_gap);
    CHECK(least >= std::min<std::int64_t>(layout->size(), 1));
    for (std::size_t at = 0; at < bytes; ++at) held[at] = held[at] || !data[at];
    CHECK(std::all_of(held.begin(), held.end(), [](bool each) { return each; }));
  }
}

TEST_CASE("more parts than there may be", "[datatype][division]") {
  play_neighbours();
  OwnedType pair = resized(0, 8, doubles_at({host, gpu_0}));
  const LayoutRef layout = decode(pair);
  const std::int64_t all = most_parts * 8;
  CHECK(Division(layout, most_parts / 2, nullptr, find).up_to(all).size() == most_parts);
  Division longer(layout, most_parts / 2 + 1, nullptr, find);
  CHECK(longer.up_to(all).size() == most_parts);
  CHECK_THROWS_AS(longer.up_to(all + 16), TooManyParts);
}

TEST_CASE("a division is made as far as it is asked for", "[datatype][division]") {
  play_neighbours();
  constexpr std::int64_t most = std::numeric_limits<int>::max();
  OwnedType gapped = resized(0, 10, vector(1, 3, 5, MPI_SHORT));
  const auto user = reinterpret_cast<const void*>(gpu_0_again);
  played.questions = 0;
  Division division(decode(gapped), most, user, find);
  CHECK(division.first_gpu() == 0);
  CHECK(!division.is_one());
  constexpr std::int64_t in_allocation = 2 * mebi / 10 * 6 + 2;  // the last element is cut
  CHECK(division.known().front().end == in_allocation);
  CHECK(played.questions < 10);
  // The host's memory beyond is gone through by pages, not by elements.
  const std::int64_t elements = 4 * mebi / 10;
  CHECK(text(division.up_to(elements * 6)).starts_with("0-1258292 GPU 0, 1258292-"));
  CHECK(played.questions < 600);
}
