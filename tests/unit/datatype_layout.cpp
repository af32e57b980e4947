// Layouts of known datatypes: the forms that kernels get, deep and large types, the serialised block.
#include <pthread.h>

#include <chrono>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "datatype/decode.hpp"
#include "datatype/reference.hpp"
#include "datatype/runs.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/owned_type.hpp"
#include "tests/support/unit.hpp"

using namespace gpudt::datatype;
using namespace gpudt::test;

namespace {

using Bytes = std::vector<char>;

/// A shape in words: "strided 16:512 run 8 at 0 align 8".
std::string text(const Shape& shape) {
  std::string line = shape_kind_name(shape.kind);
  if (shape.kind == ShapeKind::empty) return line;
  for (int i = 0; i < shape.ndims; ++i)
    line += " " + std::to_string(shape.dims[i].count) + ":" + std::to_string(shape.dims[i].stride);
  if (shape.kind == ShapeKind::list) line += " list " + std::to_string(shape.list_count);
  if (shape.kind != ShapeKind::general) line += " run " + std::to_string(shape.run);
  return line + " at " + std::to_string(shape.offset) + " align " + std::to_string(shape.align);
}

std::string shape_text(MPI_Datatype type, std::int64_t count = 1) {
  return text(decode(type)->shape(count));
}

OwnedType particle() {
  return structure({1, 1, 1, 1}, {0, 8, 12, 16}, {MPI_DOUBLE, MPI_INT, MPI_INT, MPI_CHAR});
}

Bytes random_bytes(std::size_t size) {
  Bytes bytes(size);
  auto random = unit_random(size);
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

/// Whether our pack of one element at `user` equals MPI's.
bool packs_like_mpi(OwnedType& type, const char* user) {
  type.commit();
  const LayoutRef layout = decode(type);
  Bytes ours(static_cast<std::size_t>(layout->size())), mpis(ours.size());
  pack(*layout, 1, user, 0, layout->size(), ours.data());
  int position = 0;
  MPI_Pack(user, 1, type, mpis.data(), static_cast<int>(mpis.size()), &position, MPI_COMM_SELF);
  return ours == mpis && position == static_cast<int>(mpis.size());
}

template <class Work>
double seconds(Work&& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

TEST_CASE("contiguous datatypes are one run", "[datatype]") {
  CHECK(shape_text(MPI_DOUBLE) == "contiguous run 8 at 0 align 8");
  CHECK(shape_text(MPI_DOUBLE, 1000) == "contiguous run 8000 at 0 align 16");
  CHECK(shape_text(contiguous(3, MPI_CHAR), 5) == "contiguous run 15 at 0 align 1");
  CHECK(shape_text(vector(8, 4, 4, MPI_INT), 3) == "contiguous run 384 at 0 align 16");
  CHECK(shape_text(indexed({2, 3, 1}, {4, 6, 9}, MPI_INT)) == "contiguous run 24 at 16 align 8");
  CHECK(shape_text(subarray({4, 4}, {2, 4}, {1, 0}, MPI_ORDER_C, MPI_INT)) == "contiguous run 32 at 16 align 16");
  CHECK(shape_text(structure({1, 1}, {8, 0}, {MPI_INT, MPI_INT})) == "strided 2:-8 run 4 at 8 align 4");
}

TEST_CASE("what lies side by side is one run on the host", "[datatype]") {
  const auto runs_of = [](MPI_Datatype type, std::int64_t begin, std::int64_t end) {
    std::vector<std::vector<std::int64_t>> runs;
    for_each_run(*decode(type), begin, end, [&](std::int64_t offset, std::int64_t position, std::int64_t bytes) {
      runs.push_back({offset, position, bytes});
    });
    return runs;
  };
  using Runs = std::vector<std::vector<std::int64_t>>;
  constexpr std::int64_t many = std::int64_t{1} << 40;
  CHECK(runs_of(MPI_CHAR, 3, many) == Runs{{3, 0, many - 3}});
  CHECK(runs_of(MPI_DOUBLE, 0, many) == Runs{{0, 0, many}});
  // The second run of each element adjoins the first of the next one.
  const int lengths[] = {4, 8};
  const MPI_Aint displs[] = {0, 8};
  const OwnedType ends_meet = make_type(MPI_Type_create_hindexed, 2, lengths, displs, MPI_BYTE);
  CHECK(runs_of(ends_meet, 0, 36) == Runs{{0, 0, 4}, {8, 4, 12}, {24, 16, 12}, {40, 28, 8}});
  CHECK(runs_of(ends_meet, 2, 13) == Runs{{2, 0, 2}, {8, 2, 9}});
}

TEST_CASE("datatypes without bytes are empty", "[datatype]") {
  CHECK(shape_text(contiguous(0, MPI_INT), 10) == "empty");
  CHECK(shape_text(MPI_INT, 0) == "empty");
  CHECK(shape_text(structure({}, {}, {}), 3) == "empty");
  CHECK(shape_text(indexed({0, 0}, {1, 2}, MPI_INT)) == "empty");
  CHECK(shape_text(resized(-8, 64, contiguous(0, MPI_INT)), 2) == "empty");
}

TEST_CASE("regular datatypes are strides", "[datatype]") {
  const OwnedType row = vector(16, 2, 128, MPI_INT);
  CHECK(shape_text(row) == "strided 16:512 run 8 at 0 align 8");
  CHECK(shape_text(hvector(4, 1, 100000, row)) == "strided 4:100000 16:512 run 8 at 0 align 8");
  CHECK(shape_text(resized(0, 8192, row), 10) == "strided 160:512 run 8 at 0 align 8");
  CHECK(shape_text(resized(-100, 1000, row), 10) == "strided 10:1000 16:512 run 8 at 0 align 8");
  CHECK(shape_text(vector(3, 1, -2, MPI_DOUBLE)) == "strided 3:-16 run 8 at 0 align 8");
  CHECK(shape_text(resized(0, 2, MPI_INT), 4) == "strided 4:2 run 4 at 0 align 2");
}

TEST_CASE("the order of a type map is kept", "[datatype]") {
  const OwnedType column = resized(0, 4, vector(5, 1, 3, MPI_INT));  // of a 5 x 3 matrix
  CHECK(shape_text(column, 3) == "strided 3:4 5:12 run 4 at 0 align 4");
  CHECK(shape_text(indexed_block(1, {3, 2, 1, 0}, MPI_INT)) == "strided 4:-4 run 4 at 12 align 4");
}

TEST_CASE("a struct whose members touch is one run", "[datatype]") {
  CHECK(shape_text(particle()) == "contiguous run 17 at 0 align 1");
  CHECK(shape_text(particle(), 1000) == "strided 1000:24 run 17 at 0 align 1");
  CHECK(shape_text(contiguous(1000, particle())) == "strided 1000:24 run 17 at 0 align 1");
  CHECK(shape_text(vector(10, 2, 5, particle())) == "strided 10:120 2:24 run 17 at 0 align 1");
}

TEST_CASE("pair types keep their gaps", "[datatype]") {
  CHECK(shape_text(MPI_DOUBLE_INT, 9) == "strided 9:16 run 12 at 0 align 4");
  CHECK(shape_text(MPI_2INT, 9) == "contiguous run 72 at 0 align 8");
  CHECK(shape_text(MPI_SHORT_INT) == "list list 2 run 0 at 0 align 2");
  CHECK(shape_text(MPI_SHORT_INT, 9) == "list 9:8 list 2 run 0 at 0 align 2");
  CHECK(shape_text(MPI_LONG_DOUBLE_INT, 9) == "strided 9:32 run 20 at 0 align 4");
}

TEST_CASE("the faces of a block of doubles", "[datatype]") {
  const std::vector<int> block{8, 9, 10};
  auto face = [&](const std::vector<int>& part) {
    return shape_text(subarray(block, part, {1, 1, 1}, MPI_ORDER_C, MPI_DOUBLE));
  };
  CHECK(face({1, 7, 8}) == "strided 7:80 run 64 at 808 align 8");
  CHECK(face({6, 1, 8}) == "strided 6:720 run 64 at 808 align 8");
  CHECK(face({6, 7, 1}) == "strided 6:720 7:80 run 8 at 808 align 8");
  CHECK(shape_text(subarray(block, {6, 7, 1}, {1, 1, 1}, MPI_ORDER_FORTRAN, MPI_DOUBLE)) ==
        "strided 7:64 run 48 at 648 align 8");
}

TEST_CASE("a four-dimensional subarray", "[datatype]") {
  const OwnedType part = subarray({64, 64, 64, 64}, {16, 16, 16, 16}, {8, 8, 8, 8}, MPI_ORDER_C, MPI_INT);
  CHECK(shape_text(part) == "strided 16:1048576 16:16384 16:256 run 64 at 8521760 align 16");
  CHECK(decode(part)->describe() == "strided 3-D 16x16x16x64 B");
}

TEST_CASE("index lists with a rule are strides", "[datatype]") {
  CHECK(shape_text(indexed_block(1, {5, 8, 11, 14}, MPI_INT)) == "strided 4:12 run 4 at 20 align 4");
  CHECK(shape_text(indexed({2, 2, 2}, {0, 5, 10}, MPI_INT)) == "strided 3:20 run 8 at 0 align 4");
  std::vector<int> places;
  for (int plane = 0; plane < 5; ++plane)
    for (int row = 0; row < 4; ++row)
      for (int cell = 0; cell < 3; ++cell) places.push_back(100 * plane + 10 * row + 2 * cell);
  CHECK(shape_text(indexed_block(1, places, MPI_INT)) == "strided 5:400 4:40 3:8 run 4 at 0 align 4");
  CHECK(shape_text(structure({1, 1, 1}, {0, 16, 32}, {MPI_DOUBLE, MPI_DOUBLE, MPI_DOUBLE})) ==
        "strided 3:16 run 8 at 0 align 8");
  CHECK(shape_text(structure({3, 2}, {0, 24}, {resized(0, 8, MPI_INT), resized(0, 8, MPI_FLOAT)})) ==
        "strided 5:8 run 4 at 0 align 4");
}

TEST_CASE("index lists without a rule are lists", "[datatype]") {
  CHECK(shape_text(indexed_block(2, {7, 0, 3}, MPI_INT)) == "list list 3 run 8 at 28 align 4");
  CHECK(shape_text(indexed({1, 2, 3}, {0, 5, 9}, MPI_INT)) == "list list 3 run 0 at 0 align 4");
  CHECK(shape_text(hvector(10, 1, 1000, indexed_block(1, {0, 2, 3, 9}, MPI_INT))) ==
        "list 10:1000 list 3 run 0 at 0 align 4");
  CHECK(shape_text(indexed_block(1, {0, 2, 5, 20, 22, 25, 40, 42, 45}, MPI_INT)) ==
        "list 3:80 list 3 run 4 at 0 align 4");
  const LayoutRef layout = decode(indexed({1, 2, 3}, {4, 15, 9}, MPI_SHORT));
  const Shape shape = layout->shape(1);
  const std::int64_t* lookaside = layout->program().lookaside;
  CHECK(std::vector<std::int64_t>(lookaside + shape.list_displs, lookaside + shape.list_displs + 3) ==
        std::vector<std::int64_t>{0, 22, 10});
  CHECK(std::vector<std::int64_t>(lookaside + shape.list_prefix, lookaside + shape.list_prefix + 4) ==
        std::vector<std::int64_t>{0, 2, 6, 12});
}

TEST_CASE("blocks that are adjacent in memory and in order are joined", "[datatype]") {
  CHECK(shape_text(indexed({1, 1, 1, 1}, {0, 1, 5, 6}, MPI_INT)) == "strided 2:20 run 8 at 0 align 4");
  const OwnedType sparse = resized(0, 8, MPI_INT);
  CHECK(shape_text(indexed({2, 3, 4}, {0, 2, 5}, sparse)) == "strided 9:8 run 4 at 0 align 4");
  CHECK(shape_text(indexed({2, 2}, {2, 0}, MPI_INT)) == "strided 2:-8 run 8 at 8 align 8");
}

TEST_CASE("more nested strides than a shape holds", "[datatype]") {
  OwnedType nest = contiguous(1, MPI_INT);
  MPI_Aint stride = 8;
  for (int level = 0; level < max_dims + 2; ++level, stride *= 3) nest = hvector(2, 1, stride, nest);
  const LayoutRef layout = decode(nest);
  CHECK(layout->shape(1).kind == ShapeKind::list);
  CHECK(layout->shape(1).ndims == max_dims);
  CHECK(layout->shape(1).list_count == 4);
  CHECK(layout->shape(5).kind == ShapeKind::general);
  CHECK(decode(nest, {0, 0, 0, 0})->shape(1).kind == ShapeKind::general);
  const Bytes memory = random_bytes(static_cast<std::size_t>(stride));
  CHECK(packs_like_mpi(nest, memory.data()));
}

TEST_CASE("offsets and sizes beyond 32 bits", "[datatype]") {
  const std::int64_t gib = std::int64_t(1) << 30;
  const OwnedType block = contiguous(1 << 30, MPI_INT);  // 4 GiB
  CHECK(shape_text(block, 10) == "contiguous run " + std::to_string(40 * gib) + " at 0 align 16");
  const OwnedType wide = hvector(1000000000, 1, 5 * gib, block);
  const LayoutRef layout = decode(wide);
  CHECK(layout->size() == 4000000000 * gib);
  CHECK(layout->true_ub() == std::int64_t(999999999) * 5 * gib + 4 * gib);
  const std::int64_t index = 987654321;
  const Place place = locate(layout->program(), 0, index * 4 * gib + 17);
  CHECK(place.offset == index * 5 * gib + 17);
  CHECK(place.length == 4 * gib - 17);
  const OwnedType far = indexed({1, 1, 2}, {-2000000000, 2000000000, 7}, MPI_DOUBLE_INT);
  CHECK(decode(far)->true_lb() == -32000000000);
  CHECK(decode(far)->true_ub() == 32000000012);
  CHECK(shape_text(subarray({100000, 100000}, {99999, 1}, {1, 5}, MPI_ORDER_C, MPI_DOUBLE)) ==
        "strided 99999:800000 run 8 at 800040 align 8");
  CHECK(decode(MPI_INT)->shape(5 * gib).total == 20 * gib);
}

TEST_CASE("absolute addresses", "[datatype]") {
  int first[4] = {1, 2, 3, 4};
  double second[2] = {5, 6};
  MPI_Aint addresses[2];
  MPI_Get_address(first, &addresses[0]);
  MPI_Get_address(second, &addresses[1]);
  const OwnedType both = structure({3, 2}, {addresses[0], addresses[1]}, {MPI_INT, MPI_DOUBLE});
  const LayoutRef layout = decode(both);
  Bytes packed(28), expected(28);
  std::memcpy(expected.data(), first, 12);
  std::memcpy(expected.data() + 12, second, 16);
  pack(*layout, 1, MPI_BOTTOM, 0, 28, packed.data());
  CHECK(packed == expected);
  CHECK(layout->true_lb() == std::min(addresses[0], addresses[1]));
}

namespace {

/// Runs act() in a thread with 64 KiB.
template <class Act>
void on_small_stack(Act act) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, std::size_t{64} << 10);
  pthread_t thread{};
  const auto run = [](void* todo) -> void* {
    (*static_cast<Act*>(todo))();
    return nullptr;
  };
  REQUIRE(pthread_create(&thread, &attributes, run, &act) == 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

}  // namespace

TEST_CASE("datatypes may be nested thousands of levels deep", "[datatype]") {
  constexpr int levels = 3000;
  const Bytes memory = random_bytes(1 << 20);
  SECTION("structs that grow by one member") {
    OwnedType nest = contiguous(1, MPI_INT);
    for (int i = 0; i < levels; ++i)
      nest = structure({1, 1}, {0, 8 * (levels - i) * (levels - i) % 9973 * 16 + 100},
                       {nest, i % 2 ? MPI_CHAR : MPI_SHORT});
    bool right = false;
    CHECK(seconds([&] { right = packs_like_mpi(nest, memory.data()); }) < 30);
    CHECK(right);
    CHECK(decode(nest)->shape(1).kind == ShapeKind::list);
    const LayoutRef tree = decode(nest, {0, 1, 0, 0});
    CHECK(tree->depth() > levels / 2);
    Bytes ours(static_cast<std::size_t>(tree->size())), listed(ours.size());
    on_small_stack([&] { pack(*tree, 1, memory.data(), 0, tree->size(), ours.data()); });
    pack(*decode(nest), 1, memory.data(), 0, tree->size(), listed.data());
    CHECK(ours == listed);
  }
  SECTION("wrappers") {
    OwnedType nest = vector(3, 1, 2, MPI_INT);
    for (int i = 0; i < levels; ++i)
      nest = i % 3 == 0   ? contiguous(1, nest)
             : i % 3 == 1 ? resized(0, 64 + i, nest)
                          : make_type(MPI_Type_dup, static_cast<MPI_Datatype>(nest));
    CHECK(text(decode(nest)->shape(1)) == "strided 3:8 run 4 at 0 align 4");
  }
}

TEST_CASE("sub-trees that are used again and again take no time of their own", "[datatype]") {
  SECTION("without bytes") {
    OwnedType nest = contiguous(0, MPI_INT);
    for (int i = 0; i < 60; ++i) nest = structure({1, 1}, {0, 64}, {nest, nest});
    std::string shape;
    CHECK(seconds([&] { shape = shape_text(nest); }) < 10);
    CHECK(shape == "empty");
  }
  SECTION("with bytes") {
    OwnedType nest = resized(0, 16, MPI_INT);
    for (int i = 0; i < 12; ++i) nest = structure({1, 1}, {0, MPI_Aint(16) << i}, {nest, nest});
    std::string shape;
    CHECK(seconds([&] { shape = shape_text(nest); }) < 10);
    CHECK(shape == "strided 4096:16 run 4 at 0 align 4");
  }
}

TEST_CASE("long index lists decode in linear time", "[datatype]") {
  constexpr int entries = 1000000;
  std::vector<int> places(entries), lengths(entries);
  auto random = unit_random(7);
  for (int& place : places) place = static_cast<int>(random() % 1000000000);
  for (int& length : lengths) length = static_cast<int>(random() % 5);
  auto timed = [](MPI_Datatype type) {
    LayoutRef layout;
    const double time = seconds([&] { layout = decode(type); });
    CHECK(time < 10);  // quadratic would be hours
    CHECK(layout->shape(1).kind == ShapeKind::list);
    CHECK(layout->serialised().size() < std::size_t(40) * entries);
  };
  timed(indexed_block(1, places, MPI_INT));
  timed(indexed(lengths, places, MPI_INT));
  timed(indexed(lengths, places, resized(0, 8, MPI_INT)));
  std::iota(places.begin(), places.end(), 0);
  for (int& place : places) place = place / 1000 * 3000 + place % 1000 * 2;
  CHECK(shape_text(indexed_block(1, places, MPI_INT)) == "strided 1000:12000 1000:8 run 4 at 0 align 4");
}

TEST_CASE("large regular sub-trees are never written out as lists", "[datatype]") {
  const OwnedType grid = hvector(10000, 1, 100000, vector(10000, 1, 2, MPI_INT));
  const OwnedType scattered =
      make_type(MPI_Type_create_hindexed_block, 3, 1, std::vector<MPI_Aint>{0, 5000000000, 2000000000}.data(),
                static_cast<MPI_Datatype>(grid));
  const LayoutRef layout = decode(scattered);
  CHECK(layout->shape(1).kind == ShapeKind::general);
  CHECK(layout->runs() == 300000000);
  CHECK(layout->serialised().size() < 1000);
  CHECK(locate(layout->program(), 0, std::int64_t(4) * (100000000 + 10001)).offset == 5000000000 + 100000 + 8);
}

TEST_CASE("equal sub-trees are written once", "[datatype]") {
  const OwnedType part = indexed_block(1, {0, 3, 4, 9, 13, 22, 31, 33, 40, 47}, MPI_INT);
  const OwnedType other = vector(100, 1, 2, MPI_INT);
  std::vector<MPI_Datatype> types;
  std::vector<MPI_Aint> displs;
  for (int i = 0; i < 1000; ++i) {
    types.push_back(i % 2 != 0 || i % 7 == 0 ? part : other);
    displs.push_back(MPI_Aint(i) * i * 1000);
  }
  const LayoutRef layout = decode(structure(std::vector<int>(1000, 1), displs, types), {0, 0, 0, 0});
  const auto* header = reinterpret_cast<const SerialisedHeader*>(layout->serialised().data());
  CHECK(header->node_count < 100);
}

TEST_CASE("serialised layouts work wherever they are copied", "[datatype]") {
  const OwnedType type = structure({1, 2, 1}, {100, 0, 40}, {vector(300, 1, 3, MPI_SHORT), particle(), MPI_DOUBLE_INT});
  const LayoutRef layout = decode(type, {0, 0, 0, 0});
  const std::span<const std::byte> original = layout->serialised();
  CHECK(reinterpret_cast<std::uintptr_t>(original.data()) % 16 == 0);
  CHECK(reinterpret_cast<std::uintptr_t>(layout->program().nodes) % 16 == 0);
  std::vector<std::int64_t> copy(original.size() / sizeof(std::int64_t));
  std::memcpy(copy.data(), original.data(), original.size());
  const Program here = layout->program(), there = program_of(copy.data());
  const std::int64_t nodes = reinterpret_cast<const SerialisedHeader*>(copy.data())->node_count;
  CHECK(program_at(copy.data(), nodes).nodes == there.nodes);
  CHECK(program_at(copy.data(), nodes).lookaside == there.lookaside);
  CHECK(reinterpret_cast<const char*>(there.nodes) >= reinterpret_cast<const char*>(copy.data()));
  for (std::int64_t pos = 0; pos < layout->size(); ++pos) {
    const Place a = locate(here, 0, pos), b = locate(there, 0, pos);
    REQUIRE(a.offset == b.offset);
    REQUIRE(a.length == b.length);
  }
}

TEST_CASE("attachments are made once and live with the layout", "[datatype]") {
  struct Counted : Attachment {
    explicit Counted(int& alive) : alive_(alive) { ++alive_; }
    ~Counted() override { --alive_; }
    int& alive_;
  };
  int alive = 0;
  LayoutRef layout = decode(MPI_INT);
  auto make = [&] { return std::make_unique<Counted>(alive); };
  Attachment& first = layout->attachment(3, make);
  CHECK(&layout->attachment(3, make) == &first);
  CHECK(&layout->attachment(4, make) != &first);
  CHECK(alive == 2);
  layout.reset();
  CHECK(alive == 0);
}
