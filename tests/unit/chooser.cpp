// The choice between kernels and the copy engine: the boxes that a message is made of, what ways cost, and what is
// learnt of kernels that begin late.
#include "device/chooser.hpp"

#include <map>
#include <random>
#include <vector>

#include "device/delay.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/unit.hpp"

namespace {

using namespace gpudt;
using namespace gpudt::device;
using datatype::Dim;
using datatype::Shape;
using datatype::ShapeKind;

Shape strided(std::int64_t run, const std::vector<Dim>& dims, std::int64_t offset) {
  Shape shape;
  shape.kind = dims.empty() ? ShapeKind::contiguous : ShapeKind::strided;
  shape.run = shape.total = run;
  shape.offset = offset;
  for (const Dim& dim : dims) {
    shape.dims[shape.ndims++] = dim;
    shape.total *= dim.count;
  }
  return shape;
}

/// From the place of each packed byte to its place in the user's buffer.
using Moves = std::map<std::int64_t, std::int64_t>;

Moves moves_of(const Shape& shape, std::int64_t begin, std::int64_t end) {
  Moves moves;
  for (std::int64_t position = begin; position < end; ++position) {
    std::int64_t index = position / shape.run, offset = shape.offset + position % shape.run;
    for (int d = shape.ndims - 1; d >= 0; --d) {
      offset += index % shape.dims[d].count * shape.dims[d].stride;
      index /= shape.dims[d].count;
    }
    moves[position - begin] = offset;
  }
  return moves;
}

constexpr std::uintptr_t user_base = 1u << 30, packed_base = 1u << 20;

Moves moves_of(const Boxes& boxes, bool unpack) {
  Moves moves;
  for (std::int64_t call = 0; call < boxes.calls(); ++call) {
    const CopyBox box = boxes[call];
    const BoxSide& user = unpack ? box.to : box.from;
    const BoxSide& packed = unpack ? box.from : box.to;
    for (std::size_t z = 0; z < box.depth; ++z)
      for (std::size_t y = 0; y < box.height; ++y)
        for (std::size_t x = 0; x < box.width; ++x) {
          const auto there = reinterpret_cast<std::uintptr_t>(user.address) + z * user.slice + y * user.pitch + x;
          const auto here = reinterpret_cast<std::uintptr_t>(packed.address) + z * packed.slice + y * packed.pitch + x;
          const auto position = static_cast<std::int64_t>(here - packed_base);
          REQUIRE(moves.emplace(position, static_cast<std::int64_t>(there - user_base)).second);
        }
  }
  return moves;
}

Boxes boxes(const Shape& shape, bool unpack, std::int64_t begin, std::int64_t end) {
  return boxes_of(shape, unpack, reinterpret_cast<void*>(user_base), reinterpret_cast<void*>(packed_base), begin, end);
}

TEST_CASE("boxes move every byte of a range to its place", "[chooser]") {
  std::mt19937_64 engine(test::unit_seed());
  const auto random = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(engine);
  };
  for (int i = 0; i < 300; ++i) {
    const std::int64_t run = random(1, 20), rows = random(1, 9), pitch = run + random(0, 9);
    const std::int64_t slices = random(1, 4), slice = pitch * (rows + random(0, 3));
    const Shape shapes[] = {strided(run, {}, -3), strided(run, {{rows, pitch}}, 5),
                            strided(run, {{slices, slice}, {rows, pitch}}, 64),
                            // A stride that is no multiple of the pitch, and nests beyond three dimensions, of which
                            // the outer ones may go backwards or lie inside the others.
                            strided(run, {{slices, slice + 1}, {rows, pitch}}, 64),
                            strided(run, {{3, -2000}, {slices, slice}, {rows, pitch}}, 9000),
                            strided(run, {{2, run}, {3, 4000}, {slices, slice + 1}, {2, 20000 + run}}, 0)};
    for (const Shape& shape : shapes) {
      for (const bool unpack : {false, true}) {
        CHECK(moves_of(boxes(shape, unpack, 0, shape.total), unpack) == moves_of(shape, 0, shape.total));
        if (shape.ndims >= 2) continue;
        const std::int64_t begin = random(0, shape.total - 1), end = random(begin + 1, shape.total);
        CAPTURE(run, rows, pitch, begin, end);
        CHECK(moves_of(boxes(shape, unpack, begin, end), unpack) == moves_of(shape, begin, end));
      }
    }
  }
}

TEST_CASE("boxes between two layouts that are divided alike, and none between others", "[chooser]") {
  constexpr std::uintptr_t from_base = user_base + (std::uintptr_t{1} << 40);
  const auto between = [&](const Shape& from, const Shape& to) {
    return boxes_between(boxes_of(from, false, reinterpret_cast<void*>(from_base), nullptr, 0, from.total),
                         boxes(to, true, 0, to.total));
  };
  for (std::int64_t pitch = 6; pitch < 40; pitch += 7) {
    const Shape from = strided(6, {{3, 5 * pitch}, {4, pitch}}, 11), to = strided(6, {{3, 45}, {4, 9}}, 2);
    const Boxes found = between(from, to);
    REQUIRE(found.calls() == 1);
    const auto sent = moves_of(from, 0, from.total), received = moves_of(to, 0, to.total);
    std::int64_t bytes = 0;
    for (std::size_t z = 0; z < found[0].depth; ++z)
      for (std::size_t y = 0; y < found[0].height; ++y)
        for (std::size_t x = 0; x < found[0].width; ++x, ++bytes) {
          const auto place = [&](const BoxSide& side) {
            return reinterpret_cast<std::uintptr_t>(side.address) + z * side.slice + y * side.pitch + x;
          };
          CHECK(place(found[0].from) - from_base == static_cast<std::uintptr_t>(sent.at(bytes)));
          CHECK(place(found[0].to) - user_base == static_cast<std::uintptr_t>(received.at(bytes)));
        }
    CHECK(bytes == from.total);
    CHECK(between(from, strided(6, {{4, 45}, {3, 9}}, 2)).empty());
    CHECK(between(from, strided(12, {{6, 20}}, 2)).empty());
  }
}

TEST_CASE("one row as two", "[chooser]") {
  for (std::int64_t bytes = 1; bytes < 40; ++bytes) {
    const Boxes row = boxes(strided(bytes, {}, 7), true, 0, bytes), halves = in_two_rows(row);
    std::map<std::uintptr_t, std::uintptr_t> moved;
    for (std::int64_t call = 0; call < halves.calls(); ++call) {
      const CopyBox box = halves[call];
      for (std::size_t y = 0; y < box.height; ++y)
        for (std::size_t x = 0; x < box.width; ++x)
          moved[reinterpret_cast<std::uintptr_t>(box.to.address) + y * box.to.pitch + x] =
              reinterpret_cast<std::uintptr_t>(box.from.address) + y * box.from.pitch + x;
    }
    CHECK(moved.size() == static_cast<std::size_t>(bytes));
    for (const auto& [to, from] : moved) CHECK(to - user_base - 7 == from - packed_base);
    CHECK((bytes == 1 || halves.first().height == 2));
  }
}

TEST_CASE("what the copy engine cannot move has no boxes", "[chooser]") {
  const auto none = [](const Shape& shape, std::int64_t begin, std::int64_t end) {
    return boxes(shape, false, begin, end).empty();
  };
  CHECK(none(strided(8, {{4, -16}}, 0), 0, 32));                    // backwards
  CHECK(none(strided(8, {{4, 4}}, 0), 0, 32));                      // overlapping
  CHECK(none(strided(8, {{4, std::int64_t{1} << 31}}, 0), 0, 32));  // beyond the engine's pitch
  CHECK(none(strided(8, {{2, 64}, {4, 16}}, 0), 8, 64));            // a part of slices
  CHECK(none(strided(8, {{Boxes::most_calls + 1, 512}, {2, 64}, {4, 16}}, 0), 0, (Boxes::most_calls + 1) * 64));
  CHECK(none(strided(8, {{1 << 20, 512}, {1 << 20, 8}, {2, 64}, {4, 16}}, 0), 0, std::int64_t{1} << 46));
  CHECK_FALSE(none(strided(8, {{2, 64}, {4, 16}}, 0), 0, 64));
  Shape list = strided(8, {{4, 16}}, 0);
  list.kind = ShapeKind::list;
  CHECK(none(list, 0, 32));
}

TEST_CASE("few rows go by the copy engine, many by a kernel", "[chooser]") {
  const CostModel model;
  for (const bool unpack : {false, true}) {
    const Situation host = {unpack, true}, device = {unpack, false};
    const auto copies = [&](std::int64_t run, std::int64_t rows, const Situation& situation) {
      const Shape shape = strided(run, {{rows, 512}}, 0);
      return copy_cost_us(model, shape.total, boxes(shape, unpack, 0, shape.total), situation) <
             kernel_cost_us(model, shape.total, situation);
    };
    CHECK(copies(8, 64, host));
    CHECK_FALSE(copies(8, 100000, host));
    CHECK(copies(512, 2048, host));
    CHECK_FALSE(copies(8, 64, device));
  }
}

TEST_CASE("many short runs are packed before a peer fetches them", "[chooser]") {
  const CostModel model;
  const auto packs = [&](std::int64_t run, std::int64_t rows) {
    return better_packed_for_peers(model, strided(run, {{rows, 512}}, 0));
  };
  CHECK(packs(8, 2 << 20));
  CHECK_FALSE(packs(8, 128));
  CHECK_FALSE(packs(128, 128 << 10));
  CHECK_FALSE(packs(128, 2 << 20));
  CHECK_FALSE(better_packed_for_peers(model, strided(24, {{1 << 20, 32}}, 0)));  // dense
  Shape list = strided(8, {{2 << 20, 512}}, 0);
  list.kind = ShapeKind::list;
  CHECK_FALSE(better_packed_for_peers(model, list));
}

TEST_CASE("what takes several calls goes by the copy engine if it is large or kernels are late", "[chooser]") {
  const CostModel model;
  const Situation pack = {false, true};
  const auto margin = [&](std::int64_t run) {  // microseconds by which a kernel is slower
    const Shape shape = strided(run, {{4, 1 << 26}, {8, 1 << 20}, {16, 16384}}, 0);
    const Boxes four = boxes(shape, false, 0, shape.total);
    CHECK(four.calls() == 4);
    CHECK(four.rows() == 4 * 8 * 16);
    return kernel_cost_us(model, shape.total, pack) - copy_cost_us(model, shape.total, four, pack);
  };
  CHECK(margin(64) < 0);
  CHECK(margin(64) > -model.lateness.significant_us);
  CHECK(margin(16384) > 0);
}

TEST_CASE("no message takes fewer calls, or less time by them, than is said at once", "[chooser]") {
  const CostModel model;
  for (const Shape& shape : {strided(8, {}, 0), strided(8, {{5, 16}}, 0), strided(8, {{3, 80}, {5, 16}}, 0),
                             strided(8, {{3, 70}, {5, 16}}, 0), strided(8, {{2, 400}, {3, 100}, {5, 16}}, 0),
                             strided(8, {{7, 900}, {2, 400}, {3, 100}, {5, 16}}, 0)})
    for (const bool unpack : {false, true})
      for (const Situation& situation :
           {Situation{unpack, true, false}, Situation{unpack, false, false}, Situation{unpack, false, true}}) {
        const Boxes all = boxes(shape, unpack, 0, shape.total);
        CAPTURE(shape.ndims, unpack);
        REQUIRE(!all.empty());
        CHECK(least_calls(shape) >= 1);
        CHECK(least_calls(shape) <= all.calls());
        CHECK(least_copy_cost_us(model, least_calls(shape), situation) <=
              copy_cost_us(model, shape.total, all, situation));
      }
  Shape list = strided(8, {}, 0);
  list.kind = ShapeKind::list;
  CHECK(least_calls(list) == 0);
}

TEST_CASE("a kernel that began late is remembered until one does not", "[chooser]") {
  Delay delay;
  CHECK(delay.expected_us() == 0);
  delay.observe(8, 0, 9);
  delay.observe(8, 0, 5000);  // seen late, but nobody had looked
  CHECK(delay.expected_us() == 0);
  delay.observe(8, 10008, 10010);
  CHECK(delay.expected_us() == 10000);
  delay.observe(8, 0, 5000);
  CHECK(delay.expected_us() == 10000);
  delay.observe(8, 8, 9, /*roughly=*/true);  // as if it had begun in time, but who knows
  CHECK(delay.expected_us() == 10000);
  delay.observe(8, 8, 9);
  CHECK(delay.expected_us() == 0);
  delay.observe(50, 500, 510, /*roughly=*/true);  // one whose time is not known so well may take that
  CHECK(delay.expected_us() == 0);
  delay.observe(50, 1050, 1060, /*roughly=*/true);
  CHECK(delay.expected_us() == 1000);
}

TEST_CASE("of two ways that are late alike that is tried which was seen late longer ago", "[chooser]") {
  const Lateness lateness;
  const auto copy_is = [&](const Prospect& copy, const Prospect& kernel) {
    return copy_is_better(copy, kernel, lateness);
  };
  CHECK(copy_is({10, 0, 0}, {11, 0, 0}));
  CHECK_FALSE(copy_is({11, 0, 0}, {10, 0, 0}));
  CHECK(copy_is({11, 0, 9}, {10, 3000, 5}));  // seen late, but believed no longer
  CHECK_FALSE(copy_is({10, 3000, 5}, {11, 0, 9}));
  for (const double late_us : {1100.0, 3000.0}) {
    CHECK(copy_is({10, 2000, 5}, {11, late_us, 9}));
    CHECK_FALSE(copy_is({10, 2000, 9}, {11, late_us, 5}));
  }
  CHECK_FALSE(copy_is({10000, 2000, 5}, {11, 2000, 9}));  // copies of many rows
  CHECK(copy_is({10, 100, 9}, {11, 3000, 5}));
}

TEST_CASE("when work began late is remembered", "[chooser]") {
  Delay first, second;
  CHECK(first.seen() == 0);
  first.observe(8, 10008, 10010);
  second.observe(8, 10008, 10010);
  CHECK(first.seen() != 0);
  CHECK(first.seen() <= second.seen());
  const auto seen = first.seen();
  first.observe(8, 8, 9);
  CHECK(first.seen() == seen);
}

}  // namespace
