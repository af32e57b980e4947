// Transfers from one layout to another: random pairs of datatypes and chosen ones, whole messages and beginnings, any
// alignment; from another GPU's memory if there are two. The oracle is MPI_Pack and MPI_Unpack on host copies; every
// byte of both buffers, gaps and guards included, is compared.
//
// GPUDT_TEST_TREES is the number of random pairs.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/device_bench.hpp"
#include "tests/support/owned_type.hpp"
#include "tests/support/random_type.hpp"

namespace {

using namespace gpudt;
using namespace gpudt::test;

constexpr int here = 0;  // the GPU that works

/// Another GPU, if there is one that it reaches.
int other_gpu() {
  int gpus = 0, can = 0;
  cuda_check(cudaGetDeviceCount(&gpus));
  if (gpus > 1) cuda_check(cudaDeviceCanAccessPeer(&can, here, 1));
  return can != 0 ? 1 : here;
}

/// What stays from check to check.
struct LayoutBench {
  explicit LayoutBench(Place place = Place::device) : to_host(place == Place::mapped), to(place, here) {}
  const bool to_host;  ///< by device::copy_to_host()
  Memory from{Place::device, other_gpu()}, to;
  device::KeptPlan* kept = nullptr;  ///< for whole transfers
  int copied = 0;                    ///< transfers to the host so far
};

/// What GPU `here` knows this process's memory by, which it is made to reach.
char* reach(char* memory) {
  device::Exported exported;
  REQUIRE(device::export_memory(device::classify(memory).ordinal, memory, exported));
  std::string why;
  const device::Mapping mapping = device::import_memory(here, 0, exported, &why);
  INFO(why);
  REQUIRE(mapping);
  return static_cast<char*>(mapping.at(reinterpret_cast<std::uintptr_t>(memory)));
}

void unpack(const Bytes& stream, char* user, const Message& message) {
  int position = 0;
  PMPI_Unpack(stream.data(), static_cast<int>(stream.size()), &position, user, message.count, message.type,
              MPI_COMM_SELF);
}

Bytes pack(const char* user, const Message& message) {
  Bytes stream(static_cast<std::size_t>(message.count * message.layout->size()));
  int position = 0;
  PMPI_Pack(user, message.count, message.type, stream.data(), static_cast<int>(stream.size()), &position,
            MPI_COMM_SELF);
  REQUIRE(position == static_cast<int>(stream.size()));
  return stream;
}

struct Shifts {
  std::int64_t from = 0, to = 0;
};

void check_bytes(LayoutBench& bench, Random& random, const Message& from, const Message& to, std::int64_t bytes,
                 Shifts shifts) {
  CAPTURE(from.count, from.layout->describe(), to.count, to.layout->describe(), bytes, shifts.from, shifts.to);
  const std::int64_t from_lead = guard + shifts.from - from.low, to_lead = guard + shifts.to - to.low;
  Bytes from_image = random.bytes(from_lead + from.high + guard), to_image = random.bytes(to_lead + to.high + guard);
  bench.from.write(from_image);
  bench.to.write(to_image);

  char* const from_user = reach(bench.from.reserve(0)) + from_lead;
  const device::Side source = {from.layout, from.count, from_user};
  const device::Side target = {to.layout, to.count, bench.to.reserve(0) + to_lead};
  if (bench.to_host && !device::copies_to_host(here, source, target, bytes)) return;
  bench.copied += bench.to_host ? 1 : 0;
  const auto transfer = [&](std::int64_t begin, std::int64_t end) {
    return bench.to_host && begin < end ? device::copy_to_host(here, source, target, begin, end)
                                        : device::transfer(here, source, target, begin, end, {}, false, bench.kept);
  };
  const bool packed = from.layout->shape(from.count).kind == datatype::ShapeKind::contiguous;
  const std::int64_t middle = packed && bench.kept == nullptr ? random(0, bytes) : 0;
  device::Transfer second = transfer(middle, bytes);
  transfer(0, middle).wait();
  second.wait();

  const Bytes sent = pack(from_image.data() + from_lead, from);
  Bytes stream = pack(to_image.data() + to_lead, to);
  std::copy_n(sent.begin(), bytes, stream.begin());
  unpack(stream, to_image.data() + to_lead, to);
  CHECK(difference(bench.to.read(to_image.size()), to_image) == -1);
  CHECK(difference(bench.from.read(from_image.size()), from_image) == -1);
}

/// As much as both have, and beginnings of it, at any alignment.
void check_pair(LayoutBench& bench, Random& random, const Message& from, const Message& to, int times) {
  const std::int64_t most = std::min(from.count * from.layout->size(), to.count * to.layout->size());
  if (most == 0) return;
  for (int i = 0; i < times; ++i) {
    const auto shift = [&](int usually) { return random(0, 2) < usually ? 0 : random(0, most_misaligned); };
    const Shifts shifts = i == 0 ? Shifts{} : Shifts{shift(2), shift(2)};
    check_bytes(bench, random, from, to, i == 0 ? most : random(1, most), shifts);
  }
}

void check_types(LayoutBench& bench, Random& random, const Typed& from, const Typed& to, int from_count, int to_count) {
  check_pair(bench, random, from.message(from_count), to.message(to_count), 4);
}

/// Few elements, or enough of them for several thread blocks.
int some_count(Random& random, const RandomType& type) {
  constexpr std::int64_t most_bytes = std::int64_t{1} << 18, most_span = 4 * most_bytes;
  const std::int64_t size = std::max<std::int64_t>(type.size(), 1);
  const std::int64_t span = std::max<std::int64_t>(std::abs(type.extent()), 1);
  const std::int64_t many = std::clamp<std::int64_t>(std::min(most_bytes / size, most_span / span), 1, 20000);
  return static_cast<int>(random(0, 2) == 0 ? random(1, many) : random(1, std::min<std::int64_t>(many, 7)));
}

datatype::LayoutRef decoded(Random& random, const RandomType& type) {
  return random(0, 1) == 0 ? datatype::decode(type.handle()) : datatype::decode(type.handle(), no_lists);
}

TEST_CASE("random datatypes from layout to layout", "[kernel][device]") {
  const Device device(GENERATE(device::Way::automatic, device::Way::kernel, device::Way::copy));
  if (!device.there()) return;
  LayoutBench bench;
  const std::int64_t pairs = unit_trees(150);
  for (std::int64_t pair = 0; pair < pairs; ++pair) {
    Random random(static_cast<std::uint64_t>(pair));
    RandomTypeLimits limits;
    const RandomType from(random.engine(), limits);
    limits.unpack_safe = true;
    const RandomType to(random.engine(), limits);
    INFO("pair " << pair << ": " << from.description() << " -> " << to.description());
    const datatype::LayoutRef from_layout = decoded(random, from), to_layout = decoded(random, to);
    const int to_count = some_count(random, to);
    check_pair(bench, random, message_of(from.handle(), *from_layout, some_count(random, from)),
               message_of(to.handle(), *to_layout, to_count), 3);
    // The same type on both sides, as another layout; and perhaps with another count.
    const datatype::LayoutRef again = decoded(random, to);
    const int again_count = random(0, 1) == 0 ? to_count : some_count(random, to);
    check_pair(bench, random, message_of(to.handle(), *again, again_count),
               message_of(to.handle(), *to_layout, to_count), 2);
  }
}

TEST_CASE("contiguous data and rows to pinned memory", "[device]") {
  const Device device(GENERATE(device::Way::automatic, device::Way::kernel));
  if (!device.there()) return;
  LayoutBench bench(Place::mapped);
  Random random(7);
  const auto is_copied = [&](const Typed& from, const Typed& to) {
    const int before = bench.copied;
    check_types(bench, random, from, to, 1, 1);
    return bench.copied > before;
  };
  const Typed planes(hvector(20, 1, 40000, hvector(10, 100, 103, MPI_BYTE)));
  const Typed list(indexed({100, 200, 300}, {0, 150, 500}, MPI_BYTE));
  for (const int run : {80, 100, 777, 5000}) {
    const Typed rows(hvector(40000 / run, run, run + 1 + run % 9, MPI_BYTE));
    const Typed others(hvector(40000 / run, run, run + 64, MPI_BYTE));
    const Typed bytes(contiguous(40000 / run * run, MPI_BYTE));
    CHECK(is_copied(rows, others));
    CHECK(is_copied(rows, bytes));
    CHECK(is_copied(bytes, rows));
    CHECK(is_copied(bytes, bytes));
    CHECK_FALSE(is_copied(planes, bytes));
    CHECK_FALSE(is_copied(bytes, planes));
    CHECK_FALSE(is_copied(list, bytes));
  }
  const Typed shorter(hvector(1000, 40, 48, MPI_BYTE));
  CHECK_FALSE(is_copied(shorter, Typed(contiguous(40000, MPI_BYTE))));
}

TEST_CASE("faces from layout to layout", "[kernel][device]") {
  const Device device(device::Way::kernel);
  if (!device.there()) return;
  LayoutBench bench;
  Random random(1);
  for (MPI_Datatype unit : {MPI_CHAR, MPI_SHORT, MPI_FLOAT, MPI_DOUBLE}) {
    const auto face = [&](const std::vector<int>& start) {
      return Typed(subarray({20, 24, 30}, {9, 11, 4}, start, MPI_ORDER_C, unit));
    };
    check_types(bench, random, face({3, 5, 7}), face({1, 0, 26}), 1, 1);
    check_types(bench, random, face({3, 5, 7}), face({1, 0, 26}), 2, 3);
    const Typed rows(vector(3000, 3, 5, unit)), others(vector(9000, 1, 2, unit));
    check_types(bench, random, rows, rows, 1, 1);
    check_types(bench, random, rows, others, 1, 1);
    check_types(bench, random, face({0, 0, 0}), rows, 7, 1);
    check_types(bench, random, Typed(contiguous(9000, unit)), rows, 1, 1);
    check_types(bench, random, rows, Typed(contiguous(9000, unit)), 1, 1);
    check_types(bench, random, Typed(contiguous(9000, unit)), Typed(contiguous(9000, unit)), 1, 1);
  }
}

TEST_CASE("runs of every length from layout to layout", "[kernel][device]") {
  const Device device(device::Way::kernel);
  if (!device.there()) return;
  LayoutBench bench;
  Random random(2);
  for (int run = 1; run <= 40; ++run) {
    const Typed forth(hvector(20000 / run, run, run + 1 + run % 9, MPI_BYTE));
    const Typed back(hvector(20000 / run, run, -(run + 8), MPI_BYTE));
    const Typed planes(hvector(20, 1, 40000, hvector(1000 / run, run, run + 3, MPI_BYTE)));
    check_types(bench, random, forth, forth, 1, 1);
    check_types(bench, random, forth, back, 1, 1);
    check_types(bench, random, planes, forth, 1, 1);
    check_types(bench, random, back, planes, 1, 1);
  }
}

TEST_CASE("forms that differ in one number, from layout to layout", "[kernel][device]") {
  const Device device(device::Way::kernel);
  if (!device.there()) return;
  LayoutBench bench;
  Random random(6);
  for (const int run : {3, 8, 48}) {
    const auto planes = [&](int outer, int inner, int stride, int apart) {
      return Typed(hvector(outer, 1, apart, hvector(inner, run, stride, MPI_BYTE)));
    };
    const Typed types[] = {planes(12, 20, 64, 1600), planes(12, 20, 64, 1632), planes(12, 20, 72, 1600),
                           planes(10, 24, 64, 1600), planes(14, 20, 64, 1600), planes(1, 240, 64, 0),
                           planes(1, 240, 80, 0)};
    for (const Typed& from : types)
      for (const Typed& to : types) check_types(bench, random, from, to, 1, 1);
  }
}

TEST_CASE("many dimensions from layout to layout", "[kernel][device]") {
  const Device device(device::Way::kernel);
  if (!device.there()) return;
  LayoutBench bench;
  Random random(3);
  for (const int width : {1, 4, 8, 16}) {
    OwnedType type = contiguous(width, MPI_BYTE);
    MPI_Aint span = width;
    for (int d = 0; d < 9; ++d) {  // two more than the strided form holds
      const int count = d < 4 ? 3 : 2;
      type = hvector(count, 1, d % 3 == 1 ? -(span + 16) : span + 16, type);
      span = (span + 16) * count;
      if (d < 2) continue;
      const Typed deep(make_type(MPI_Type_dup, static_cast<MPI_Datatype>(type)));
      const Typed flat(hvector(static_cast<int>(deep.layout->size() / width), width, width + 16, MPI_BYTE));
      check_types(bench, random, deep, deep, 1, 1);
      check_types(bench, random, deep, flat, 1, 1);
      check_types(bench, random, flat, deep, 1, 1);
    }
  }
}

/// `count` blocks of up to `longest` elements, or all of `longest`, with random gaps.
OwnedType listed_type(Random& random, int count, int longest, bool equal, MPI_Datatype unit) {
  std::vector<int> lengths, displs;
  int at = 0;
  for (int i = 0; i < count; ++i) {
    lengths.push_back(equal ? longest : static_cast<int>(random(0, longest)));
    displs.push_back(at);
    at += lengths.back() + static_cast<int>(random(1, 5));
  }
  return indexed(lengths, displs, unit);
}

TEST_CASE("index lists from layout to layout", "[kernel][device]") {
  const Device device(device::Way::kernel);
  if (!device.there()) return;
  LayoutBench bench;
  Random random(4);
  for (MPI_Datatype unit : {MPI_CHAR, MPI_SHORT, MPI_FLOAT, MPI_DOUBLE}) {
    for (const int count : {3, 500, 9000}) {
      const Typed equal(listed_type(random, count, 3, true, unit)), equals(listed_type(random, count, 3, true, unit));
      const Typed unlike(listed_type(random, count, 12, false, unit)),
          again(make_type(MPI_Type_dup, MPI_Datatype(unlike.type)));
      const Typed general(make_type(MPI_Type_dup, MPI_Datatype(unlike.type)), no_lists);
      const Typed rows(vector(5 * count, 1, 2, unit));
      for (const int repeated : {1, 3}) {
        check_types(bench, random, equal, equal, repeated, repeated);
        check_types(bench, random, equal, equals, repeated, repeated);
        check_types(bench, random, unlike, again, repeated, repeated);
        check_types(bench, random, unlike, equal, repeated, repeated);
        check_types(bench, random, rows, unlike, 1, repeated);
        check_types(bench, random, general, general, repeated, repeated);
        check_types(bench, random, general, rows, repeated, 1);
        check_types(bench, random, equals, general, repeated, repeated);
      }
    }
  }
}

TEST_CASE("places beyond 4 GiB from layout to layout", "[kernel][device]") {
  const Device device(device::Way::kernel);
  if (!device.there()) return;
  constexpr std::int64_t stride = std::int64_t{1} << 28, blocks = 20, run = 1000;
  void* memory = nullptr;
  if (cudaMalloc(&memory, static_cast<std::size_t>(stride * blocks)) != cudaSuccess) {
    cudaGetLastError();
    WARN("the device has no 5 GiB: offsets that large are not tested here");
    return;
  }
  char* const user = static_cast<char*>(memory);
  Random random(5);
  const Typed wide(hvector(blocks, run, stride, MPI_BYTE)), narrow(hvector(2 * blocks, run / 2, run, MPI_BYTE));
  const std::int64_t total = blocks * run;
  Memory small(Place::device);
  const Bytes image = random.bytes(2 * total);
  small.write(image);
  device::transfer(here, {narrow.layout.get(), 1, small.reserve(0)}, {wide.layout.get(), 1, user}, 0, total).wait();
  small.write(Bytes(image.size()));
  device::transfer(here, {wide.layout.get(), 1, user}, {narrow.layout.get(), 1, small.reserve(0)}, 0, total).wait();
  Bytes expected(image.size());
  for (std::int64_t i = 0; i < 2 * blocks; ++i) std::copy_n(&image[i * run], run / 2, &expected[i * run]);
  CHECK(difference(small.read(image.size()), expected) == -1);
  cuda_check(cudaFree(memory));
}

// --- time, for people to look at ------------------------------------------------------------------------------------

/// Datatypes of about `bytes` bytes with gaps three times as large as the blocks, unless their name says otherwise.
std::vector<std::pair<const char*, Typed>> timed_types(Random& random, int bytes) {
  const auto blocks = [&](int block) { return hvector(bytes / block, block, 4 * block, MPI_BYTE); };
  const auto words = [&](int block) { return hvector(bytes / block, block / 8, 4 * block, MPI_DOUBLE); };
  std::vector<int> lengths, displs;
  for (int at = 0, sum = 0; sum < bytes / 4; sum += lengths.back()) {
    lengths.push_back(static_cast<int>(random(4, 12)));
    displs.push_back(at);
    at += lengths.back() + static_cast<int>(random(1, 12));
  }
  int edge = 4;
  while (8 * edge * edge * edge * edge < bytes) ++edge;
  const std::vector<int> whole(4, edge + 4), part(4, edge), start(4, 2);
  std::vector<std::pair<const char*, Typed>> types;
  types.emplace_back("contiguous", Typed(contiguous(bytes, MPI_BYTE)));
  types.emplace_back("vector, 8 B", Typed(words(8)));
  types.emplace_back("vector, 128 B", Typed(words(128)));
  types.emplace_back("vector, 128 B of bytes", Typed(blocks(128)));
  types.emplace_back("subarray, 4-D", Typed(subarray(whole, part, start, MPI_ORDER_C, MPI_DOUBLE)));
  types.emplace_back("indexed, 16 to 48 B", Typed(indexed(lengths, displs, MPI_INT)));
  types.emplace_back("struct, 17 of 24 B", Typed(hvector(bytes / 17, 17, 24, MPI_BYTE)));
  return types;
}

/// Both sides of one type; and, into and out of a contiguous one.
TEST_CASE("how long transfers from layout to layout take", "[.benchmark]") {
  const Device device(device::Way::automatic);
  if (!device.there()) return;
  std::printf("from GPU %d to GPU %d, microseconds (GB/s)\n%-24s %10s %20s %20s %20s %20s\n", other_gpu(), here, "",
              "bytes", "layout to layout", "from contiguous", "to contiguous", "cudaMemcpyPeerAsync");
  Random random(6);
  cudaStream_t stream = nullptr;
  cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (const int bytes : {1 << 10, 64 << 10, 1 << 20, 16 << 20}) {
    for (const auto& [name, typed] : timed_types(random, bytes)) {
      const Message message = typed.message(1);
      const std::int64_t size = typed.layout->size();
      const Typed flat(contiguous(static_cast<int>(size), MPI_BYTE));
      Memory from(Place::device, other_gpu()), to(Place::device, here);
      char* const near = to.reserve(message.high);
      char* const far = reach(from.reserve(message.high));
      const auto moved = [&](const Typed& source, const Typed& target) {
        return median_us([&] {
          device::transfer(here, {source.layout.get(), 1, far}, {target.layout.get(), 1, near}, 0, size).wait();
        });
      };
      const double copied = median_us([&] {
        cuda_check(
            cudaMemcpyPeerAsync(near, here, from.reserve(0), other_gpu(), static_cast<std::size_t>(size), stream));
        cuda_check(cudaStreamSynchronize(stream));
      });
      std::printf("%-24s %10lld", name, static_cast<long long>(size));
      for (const double us : {moved(typed, typed), moved(flat, typed), moved(typed, flat), copied})
        std::printf(" %10.1f (%6.1f)", us, static_cast<double>(size) / us * 1e-3);
      std::printf("\n");
    }
  }
  cuda_check(cudaStreamDestroy(stream));
}

TEST_CASE("a plan that is kept, for transfers that are made again and for others", "[kernel][device]") {
  const Device device(GENERATE(device::Way::automatic, device::Way::kernel, device::Way::copy));
  if (!device.there()) return;
  LayoutBench bench;
  device::KeptPlan kept;
  bench.kept = &kept;
  Random random(8);
  const Typed types[] = {Typed(vector(300, 1, 3, MPI_DOUBLE)), Typed(contiguous(300, MPI_DOUBLE)),
                         Typed(indexed({1, 4, 2, 90, 3}, {0, 2, 9, 20, 120}, MPI_DOUBLE))};
  for (int round = 0; round < 60; ++round) {
    const Message from = types[random(0, 2)].message(static_cast<int>(random(3, 4)));
    const Message to = types[random(0, 2)].message(static_cast<int>(random(3, 4)));
    const std::int64_t bytes =
        8 * random(1, std::min(from.count * from.layout->size(), to.count * to.layout->size()) / 8);
    const Shifts shifts = {8 * random(0, 1), random(0, 1)};
    check_bytes(bench, random, from, to, bytes, shifts);
    const device::KeptPlan first = kept;
    check_bytes(bench, random, from, to, bytes, shifts);
    CHECK(kept == first);
    check_bytes(bench, random, from, to, bytes, {shifts.from, shifts.to + 2});
    CHECK(kept != first);
  }
}

TEST_CASE("transfers of nothing, and of too much", "[kernel][device]") {
  const Device device(device::Way::kernel);
  if (!device.there()) return;
  const Typed rows(vector(10, 1, 2, MPI_INT));
  CHECK(device::transfer(here, {rows.layout.get(), 1, nullptr}, {rows.layout.get(), 1, nullptr}, 0, 0).done());
  CHECK_THROWS_AS(device::transfer(here, {rows.layout.get(), 1, nullptr}, {rows.layout.get(), 2, nullptr}, 0, 41),
                  device::Error);
}

}  // namespace
