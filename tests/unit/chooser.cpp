// The choice between kernels and the copy engine: the boxes that a message is made of, what ways cost, and what is
// learnt of kernels that begin late.
#include "device/choice/chooser.hpp"

#include <chrono>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "datatype/decode.hpp"
#include "device/choice/delay.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/owned_type.hpp"
#include "tests/support/random_type.hpp"
#include "tests/support/stopped_clock.hpp"
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

Moves moves_of(const CopyPlan& copy_plan, bool unpack) {
  Moves moves;
  for (std::int64_t call = 0; call < copy_plan.calls(); ++call) {
    const CopyBox box = copy_plan[call];
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

CopyPlan copy_plan(const Shape& shape, bool unpack, std::int64_t begin, std::int64_t end) {
  return copy_plan_of(shape, unpack, reinterpret_cast<void*>(user_base), reinterpret_cast<void*>(packed_base), begin,
                      end);
}

TEST_CASE("copy_plan move every byte of a range to its place", "[chooser]") {
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
        CHECK(moves_of(copy_plan(shape, unpack, 0, shape.total), unpack) == moves_of(shape, 0, shape.total));
        if (shape.ndims >= 2) continue;
        const std::int64_t begin = random(0, shape.total - 1), end = random(begin + 1, shape.total);
        CAPTURE(run, rows, pitch, begin, end);
        CHECK(moves_of(copy_plan(shape, unpack, begin, end), unpack) == moves_of(shape, begin, end));
      }
    }
  }
}

TEST_CASE("the span that is brought reaches from a message's first byte to its last", "[chooser]") {
  using Found = std::pair<std::int64_t, std::int64_t>;
  const auto span = [](const test::OwnedType& type, std::int64_t count) -> Found {
    const datatype::LayoutRef layout = datatype::decode(type);
    const datatype::Span found = span_to_bring(*layout, layout->shape(count));
    return {found.begin, found.bytes()};
  };
  using test::hvector;
  CHECK(span(hvector(3, 8, 100, MPI_BYTE), 1) == Found(0, 208));
  CHECK(span(hvector(3, 8, 100, MPI_BYTE), 3) == Found(0, 624));
  CHECK(span(hvector(3, 8, -100, MPI_BYTE), 1) == Found(-200, 208));
  const test::OwnedType apart = test::structure({1, 1}, {40, -60}, {MPI_INT, MPI_INT});
  CHECK(span(apart, 1) == Found(-60, 104));
  CHECK(span(test::resized(0, -1000, apart), 3) == Found(-2060, 2104));
  CHECK(span(test::contiguous(100, MPI_INT), 7) == Found(0, 0));  // needs none
  CHECK(span(hvector(2, 8, most_span_bytes - 8, MPI_BYTE), 1) == Found(0, most_span_bytes));
  CHECK(span(hvector(2, 8, most_span_bytes - 7, MPI_BYTE), 1) == Found(0, 0));
}

TEST_CASE("copy_plan between two layouts that are divided alike, and none between others", "[chooser]") {
  constexpr std::uintptr_t from_base = user_base + (std::uintptr_t{1} << 40);
  const auto between = [&](const Shape& from, const Shape& to) {
    return copy_plan_between(copy_plan_of(from, false, reinterpret_cast<void*>(from_base), nullptr, 0, from.total),
                             copy_plan(to, true, 0, to.total));
  };
  for (std::int64_t pitch = 6; pitch < 40; pitch += 7) {
    const Shape from = strided(6, {{3, 5 * pitch}, {4, pitch}}, 11), to = strided(6, {{3, 45}, {4, 9}}, 2);
    const CopyPlan found = between(from, to);
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
    const CopyPlan row = copy_plan(strided(bytes, {}, 7), true, 0, bytes), halves = in_two_rows(row, 40);
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
    CHECK(has_short_row(row, 40));
    CHECK_FALSE(has_short_row(row, static_cast<double>(bytes)));
    CHECK(has_short_row(halves, 40) == (bytes == 1));
    CHECK(in_two_rows(row, static_cast<double>(bytes)).rows() == 1);  // long enough
  }
}

TEST_CASE("what the copy engine cannot move has no copy_plan", "[chooser]") {
  const auto none = [](const Shape& shape, std::int64_t begin, std::int64_t end) {
    return copy_plan(shape, false, begin, end).empty();
  };
  CHECK(none(strided(8, {{4, -16}}, 0), 0, 32));                    // backwards
  CHECK(none(strided(8, {{4, 4}}, 0), 0, 32));                      // overlapping
  CHECK(none(strided(8, {{4, std::int64_t{1} << 31}}, 0), 0, 32));  // beyond the engine's pitch
  CHECK(none(strided(8, {{2, 64}, {4, 16}}, 0), 8, 64));            // a part of slices
  CHECK(none(strided(8, {{CopyPlan::most_calls + 1, 512}, {2, 64}, {4, 16}}, 0), 0, (CopyPlan::most_calls + 1) * 64));
  CHECK(none(strided(8, {{1 << 20, 512}, {1 << 20, 8}, {2, 64}, {4, 16}}, 0), 0, std::int64_t{1} << 46));
  CHECK_FALSE(none(strided(8, {{2, 64}, {4, 16}}, 0), 0, 64));
  Shape list = strided(8, {{4, 16}}, 0);
  list.kind = ShapeKind::list;
  CHECK(none(list, 0, 32));
}

TEST_CASE("few rows go by the copy engine, many by a kernel", "[chooser]") {
  const CostModel model;
  for (const bool unpack : {false, true}) {
    const TransferContext host = {unpack, true}, device = {unpack, false};
    const auto copies = [&](std::int64_t run, std::int64_t rows, const TransferContext& context) {
      const Shape shape = strided(run, {{rows, 512}}, 0);
      return copy_cost_us(model, shape.total, copy_plan(shape, unpack, 0, shape.total), context) <
             kernel_cost_us(model, shape.total, context);
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
    return better_packed_for_peers(model, strided(run, {{rows, 512}}, 0), {0, 512 * rows});
  };
  CHECK(packs(8, 2 << 20));
  CHECK_FALSE(packs(8, 128));
  CHECK_FALSE(packs(128, 128 << 10));
  CHECK_FALSE(packs(128, 2 << 20));
  CHECK_FALSE(better_packed_for_peers(model, strided(24, {{1 << 20, 32}}, 0), {0, 32 << 20}));  // dense
  const auto packs_list = [&](std::int64_t run, std::int64_t runs, std::int32_t align, std::int64_t slot = 512) {
    Shape list;
    list.kind = ShapeKind::list;
    list.total = list.list_size = run * runs;
    list.list_count = runs;
    list.align = align;
    return better_packed_for_peers(model, list, {0, slot * runs});
  };
  CHECK(packs_list(8, 2 << 20, 8));
  CHECK_FALSE(packs_list(8, 128, 8));
  CHECK(packs_list(32, 1 << 20, 4));
  CHECK_FALSE(packs_list(32, 128 << 10, 4));
  CHECK_FALSE(packs_list(32, 1 << 20, 16));
  CHECK_FALSE(packs_list(128, 256 << 10, 4));
  CHECK_FALSE(packs_list(8, 2 << 20, 8, 12));  // dense
}

TEST_CASE("short runs take longer to pack than their bytes would", "[chooser]") {
  const CostModel model;
  const auto packing_us = [&](int run, int apart) {
    const test::OwnedType type = test::vector((16 << 20) / run, run, apart, MPI_BYTE);
    return packing_cost_us(model, *datatype::decode(type), 1);
  };
  CHECK(packing_us(8, 512) > 2 * packing_us(64, 512));
  CHECK(packing_us(64, 64) <= packing_us(64, 512));
}

TEST_CASE("what takes several calls goes by the copy engine if it is large or kernels are late", "[chooser]") {
  const CostModel model;
  const TransferContext pack = {false, true};
  const auto margin = [&](std::int64_t run) {  // microseconds by which a kernel is slower
    const Shape shape = strided(run, {{4, 1 << 26}, {8, 1 << 20}, {16, 16384}}, 0);
    const CopyPlan four = copy_plan(shape, false, 0, shape.total);
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
      for (const TransferContext& context :
           {TransferContext{unpack, true, false}, TransferContext{unpack, false, false},
            TransferContext{unpack, false, true}}) {
        using Range = std::pair<std::int64_t, std::int64_t>;
        for (const auto& [begin, end] : {Range{0, shape.total}, {0, shape.total - 1}, {3, shape.total}, {5, 7}}) {
          const CopyPlan all = copy_plan(shape, unpack, begin, end);
          CAPTURE(shape.ndims, unpack, begin, end);
          REQUIRE((!all.empty() || shape.ndims >= 2));
          if (all.empty()) continue;
          const std::int64_t bytes = end - begin, least = least_calls(shape, bytes);
          CHECK(least >= 1);
          CHECK(least <= all.calls());
          CHECK(least_copy_cost_us(model, shape, bytes, least, context) <= copy_cost_us(model, bytes, all, context));
        }
      }
  Shape list = strided(8, {}, 0);
  list.kind = ShapeKind::list;
  CHECK(least_calls(list, 8) == 0);
}

// --- irregular messages ---------------------------------------------------------------------------------------------

bool is_irregular(const Shape& shape) {
  return shape.kind == ShapeKind::list || shape.kind == ShapeKind::general;
}

CopyPlan run_boxes(const datatype::Layout& layout, std::int64_t count, bool unpack, std::int64_t begin,
                   std::int64_t end, std::int64_t most_runs = CopyPlan::most_together) {
  return copy_plan_of(layout.shape(count), unpack, reinterpret_cast<void*>(user_base),
                      reinterpret_cast<void*>(packed_base), begin, end, &layout, most_runs);
}

/// By the definition of count and extent.
Moves moves_of(const test::RandomType& type, std::int64_t begin, std::int64_t end) {
  Moves moves;
  std::int64_t position = 0;
  for (std::int64_t element = 0; position < end; ++element)
    for (const test::MapRun& run : type.map())
      for (std::int64_t byte = 0; byte < run.length; ++byte, ++position)
        if (position >= begin && position < end) moves[position - begin] = element * type.extent() + run.displ + byte;
  return moves;
}

/// One row each, and none that begins where the one before ends.
bool are_joined_rows(const CopyPlan& runs) {
  const char* end = nullptr;
  for (std::int64_t call = 0; call < runs.calls(); ++call) {
    const CopyBox run = runs[call];
    const char* const begin = static_cast<const char*>(run.from.address);
    if (run.height != 1 || run.depth != 1 || begin == end) return false;
    end = begin + run.width;
  }
  return true;
}

/// Whether the message is irregular, of runs that one call moves.
bool check_runs(const test::RandomType& type, const datatype::Layout& layout, std::int64_t count, std::int64_t begin,
                std::int64_t end) {
  const Shape shape = layout.shape(count);
  if (!is_irregular(shape)) return false;
  CAPTURE(type.description(), count, begin, end);
  CHECK(copy_plan(shape, false, 0, shape.total).empty());  // whose layout is not known
  const std::int64_t most = layout.runs() * count;
  CHECK(run_boxes(layout, count, false, begin, end, most - 1).empty());
  CHECK(least_calls(shape, shape.total, &layout, most - 1) == 0);
  for (const bool unpack : {false, true}) {
    CHECK(moves_of(run_boxes(layout, count, unpack, 0, shape.total, most), unpack) == moves_of(type, 0, shape.total));
    CHECK(moves_of(run_boxes(layout, count, unpack, begin, end, most), unpack) == moves_of(type, begin, end));
  }
  const CopyPlan runs = run_boxes(layout, count, false, begin, end, most);
  CHECK(are_joined_rows(runs));
  CHECK(runs.rows() == runs.calls());
  CHECK(runs.calls() <= most);
  CHECK(least_calls(shape, end - begin, &layout, most) >= 1);
  return most <= CopyPlan::most_together;
}

TEST_CASE("random irregular messages have a box for each run", "[chooser]") {
  int irregular = 0;
  const std::int64_t trees = test::unit_trees(1500);
  for (std::int64_t tree = 0; tree < trees; ++tree) {
    std::mt19937_64 engine = test::unit_random(static_cast<std::uint64_t>(tree));
    const auto random = [&](std::int64_t low, std::int64_t high) {
      return std::uniform_int_distribution<std::int64_t>(low, high)(engine);
    };
    test::RandomTypeLimits limits;
    limits.max_span = 512;
    limits.max_runs = 40;
    const test::RandomType type(engine, limits);
    if (type.size() == 0) continue;
    constexpr datatype::ListLimits no_lists{0, 1, 0, 0};
    const datatype::LayoutRef layout =
        random(0, 1) == 0 ? datatype::decode(type.handle()) : datatype::decode(type.handle(), no_lists);
    const std::int64_t count = random(1, 4), total = count * type.size();
    const std::int64_t begin = random(0, total - 1), end = random(begin + 1, total);
    if (check_runs(type, *layout, count, begin, end)) ++irregular;
  }
  CHECK((irregular > trees / 20 || trees < 1000));
}

/// A list of `runs` runs of `length` bytes, `distance` bytes and more apart.
datatype::LayoutRef list_of(std::int64_t runs, int length, int distance) {
  std::vector<int> places;
  places.reserve(static_cast<std::size_t>(runs));
  for (int run = 0; run < runs; ++run) places.push_back(run * (distance + run * length));
  test::OwnedType type = test::indexed_block(length, places, MPI_BYTE);
  return datatype::decode(type.commit());
}

TEST_CASE("runs of elements that adjoin are one", "[chooser]") {
  test::OwnedType type = test::indexed({2, 1, 3}, {0, 4, 7}, MPI_INT);
  const datatype::LayoutRef layout = datatype::decode(type.commit());
  const CopyPlan runs = run_boxes(*layout, 5, false, 0, 5 * layout->size());
  CHECK(runs.calls() == 5 * 3 - 4);
  CHECK(least_calls(layout->shape(5), 5 * layout->size(), layout.get()) == runs.calls());
  CHECK(least_calls(layout->shape(5), 5 * layout->size() - 1, layout.get()) == 1);
  CHECK(moves_of(runs, false).size() == static_cast<std::size_t>(5 * layout->size()));
}

TEST_CASE("lists have as many copy_plan as they may have runs, and no more", "[chooser]") {
  for (const std::int64_t runs : {CopyPlan::most_together, CopyPlan::most_calls}) {
    const datatype::LayoutRef most = list_of(runs, 8, 64), one = list_of(8, 8, 64);
    CHECK(run_boxes(*most, 1, false, 0, most->size(), runs).calls() == runs);
    CHECK(run_boxes(*most, 2, false, 0, most->size(), runs).empty());
    CHECK(run_boxes(*one, runs / 8, true, 0, 8, runs).calls() == 1);
    CHECK(run_boxes(*one, runs / 8 + 1, true, 0, 8, runs).empty());
  }
}

TEST_CASE("how many runs a part of many has is told by its length", "[chooser]") {
  const datatype::LayoutRef list = list_of(1000, 8, 64);
  const auto least = [&](std::int64_t bytes, std::int64_t most_runs) {
    return least_calls(list->shape(2), bytes, list.get(), most_runs);
  };
  CHECK(least(2 * list->size(), CopyPlan::most_calls) == 2000);
  CHECK(least(list->size() / 4, CopyPlan::most_calls) == 250);
  CHECK(least(1, CopyPlan::most_calls) == 1);
  CHECK(least(1, 1999) == 0);
}

namespace {

/// Runs of such lengths at such places, unpacked, as the copy engine gets them; checked byte by byte.
CopyPlan two_rows_of(std::vector<int> lengths, const std::vector<int>& places) {
  test::OwnedType type = test::indexed(lengths, places, MPI_BYTE);
  const datatype::LayoutRef layout = datatype::decode(type.commit());
  const CopyPlan runs = run_boxes(*layout, 1, true, 0, layout->size()), halves = in_two_rows(runs, 100);
  CHECK(runs.calls() == std::ssize(lengths));
  std::map<const void*, const void*> moved;
  for (std::int64_t call = 0; call < halves.calls(); ++call)
    for (std::size_t y = 0; y < halves[call].height; ++y)
      for (std::size_t x = 0; x < halves[call].width; ++x) {
        const auto place = [&](const BoxSide& side) { return static_cast<char*>(side.address) + y * side.pitch + x; };
        moved[place(halves[call].to)] = place(halves[call].from);
      }
  CHECK(moved.size() == static_cast<std::size_t>(layout->size()));
  for (std::int64_t call = 0; call < runs.calls(); ++call)
    for (int byte = 0; byte < lengths[call]; ++byte)
      CHECK(moved[static_cast<char*>(runs[call].to.address) + byte] ==
            static_cast<char*>(runs[call].from.address) + byte);
  return halves;
}

}  // namespace

TEST_CASE("each of several runs as two rows", "[chooser]") {
  const CopyPlan halves = two_rows_of({1, 2, 7, 100}, {0, 10, 20, 40});
  CHECK(halves.calls() == 1 + 1 + 2 + 1);
  CHECK(halves.rows() == 1 + 2 + 4 + 1);
  CHECK(halves[0].width == 100);
  CHECK(halves[1].width == 1);
}

TEST_CASE("runs of one length are the rows of one copy", "[chooser]") {
  const CopyPlan alike = two_rows_of({8, 8, 8, 8}, {0, 10, 27, 40});
  CHECK(alike.calls() == 2);
  CHECK(alike.rows() == 4);
  CHECK(two_rows_of({8, 4, 8, 1, 4, 1, 8}, {0, 10, 20, 30, 40, 50, 60}).calls() == 4);
  CHECK(two_rows_of({8, 8, 8}, {40, 21, 0}).calls() == 3);  // none lies further on
  CHECK(two_rows_of({8, 8, 8}, {40, 0, 20}).calls() == 2);
  CHECK(two_rows_of({100, 8, 100, 8}, {0, 200, 300, 500}).calls() == 3);  // those of 100 go as they are
  std::vector<int> many(60, 6), places(60);
  for (int i = 0; i < 60; ++i) places[static_cast<std::size_t>(i)] = 9 * i + i * i % 7 % 3;
  CHECK(two_rows_of(many, places).calls() == 30);
}

TEST_CASE("lists go by kernels, but for a few runs and for long ones", "[chooser]") {
  const CostModel model;
  const auto gain_us = [&](std::int64_t runs, int length, bool unpack, bool together = true) {  // by the copy engine
    const datatype::LayoutRef layout = list_of(runs, length, length + 64);
    const TransferContext host = {.unpack = unpack, .packed_is_host = true, .runs_together = together};
    CopyPlan copy_plan = run_boxes(*layout, 1, unpack, 0, layout->size(), CopyPlan::most_calls);
    REQUIRE(copy_plan.calls() == runs);
    if (!together) copy_plan = in_two_rows(copy_plan, model.engine_row_bytes);
    const std::int64_t least = least_calls(layout->shape(1), layout->size(), layout.get(), CopyPlan::most_calls);
    const double copy_us = copy_cost_us(model, layout->size(), copy_plan, host);
    CHECK(least_copy_cost_us(model, layout->shape(1), layout->size(), least, host) <= copy_us);
    return kernel_cost_us(model, layout->size(), host) - copy_us;
  };
  CHECK(gain_us(3, 16, false) > 0);
  CHECK(gain_us(3, 64 << 10, false) > 0);
  CHECK(gain_us(5, 16, false) < 0);
  CHECK(gain_us(32, 16, false) < 0);
  CHECK(gain_us(32, 16, false) > 7.3 - 18);  // 17 us were measured
  CHECK(gain_us(64, 16, false) > 7.3 - 30);
  CHECK(gain_us(3, 16, true) < 0);
  CHECK(gain_us(3, 64 << 10, true) < 0);
  CHECK(gain_us(3, 4 << 20, true) > 0);
  CHECK(gain_us(64, 16, true) > 8.4 - 70);  // 56 to 63 us were measured
  CHECK(gain_us(1000, 16, true) > 8.4 - 900);
  CHECK(gain_us(4, 16, true, false) > gain_us(4, 16, true));  // a call for two
  CHECK(gain_us(32, 16, true, false) < gain_us(32, 16, true));
  CHECK(gain_us(8, 16, true, false) > 8.4 - 18);   // 15 to 16 us were measured
  CHECK(gain_us(16, 16, true, false) > 8.4 - 28);  // 26
}

TEST_CASE("a kernel that began late is remembered until one does not", "[chooser]") {
  const test::StoppedClock clock;
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

TEST_CASE("that another process takes turns is expected for a while", "[chooser]") {
  Lateness lateness;
  lateness.turns_believed_us = 20e3;
  test::StoppedClock clock;
  Delay delay(lateness);
  CHECK_FALSE(delay.yields());
  delay.yield_turns();
  CHECK(delay.yields());
  CHECK(delay.expected_us() == lateness.turn_us);
  delay.observe(8, 8, 9);
  CHECK(delay.expected_us() == lateness.turn_us);
  delay.observe(8, 10008, 10010);
  CHECK(delay.expected_us() == 10000);
  delay.observe(8, 8, 9);
  clock.now += std::chrono::milliseconds(21);
  CHECK_FALSE(delay.yields());
  CHECK(delay.expected_us() == 0);
}

TEST_CASE("of two ways that are late alike that is tried which was seen late longer ago", "[chooser]") {
  const Lateness lateness;
  const auto copy_is = [&](const Estimate& copy, const Estimate& kernel) {
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
