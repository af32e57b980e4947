// Moves between layouts as kernels start them (initiated/layout.hpp), by any number of threads, on the host: random
// pairs of datatypes, contiguous sides, ranges of the packed bytes, any alignment. The oracle is MPI_Pack and
// MPI_Unpack; every byte of the target, gaps and guards included, is compared.
//
// GPUDT_TEST_TREES is the number of random pairs.
#include <mpi.h>

#include <algorithm>
#include <numeric>
#include <thread>
#include <vector>

#include "datatype/decode.hpp"
#include "device/kernel_host.hpp"
#include "initiated/layout.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/owned_type.hpp"
#include "tests/support/random_type.hpp"
#include "tests/support/unit.hpp"

namespace {

using namespace gpudt;
using namespace gpudt::test;
using namespace gpudt::initiated;

constexpr std::int64_t guard = 64;
constexpr int few_threads = 3;  // so many are threads of the host, others take turns

class Random {
 public:
  explicit Random(std::uint64_t index) : engine(unit_random(index)) {}
  std::int64_t operator()(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(engine);
  }
  std::vector<char> bytes(std::int64_t size) {
    std::vector<char> made(static_cast<std::size_t>(size));
    for (char& byte : made) byte = static_cast<char>(engine());
    return made;
  }
  std::mt19937_64 engine;
};

/// One side of a message: `count` elements of a type, or contiguous bytes.
struct End {
  MPI_Datatype type = MPI_BYTE;
  int count = 0;
  datatype::LayoutRef layout;
  bool plain = false;  ///< given to move() without a layout
  std::int64_t low = 0, high = 0;

  std::int64_t size() const { return layout->size() * count; }
  KernelLayout kernel() const { return make_kernel_layout(*layout, count, layout->program()); }
};

End end_of(MPI_Datatype type, int count, const datatype::ListLimits& limits = {}) {
  End end{type, count, datatype::decode(type, limits), false, 0, 0};
  const datatype::Span span = end.layout->span(count);
  end.low = end.size() > 0 ? span.begin : 0;
  end.high = end.size() > 0 ? span.end : 0;
  return end;
}

End contiguous_end(std::int64_t bytes) {
  End end = end_of(MPI_BYTE, static_cast<int>(bytes));
  end.plain = true;
  return end;
}

std::vector<char> pack(const char* user, const End& end) {
  std::vector<char> stream(static_cast<std::size_t>(end.size()) + 1);
  int position = 0;
  PMPI_Pack(user, end.count, end.type, stream.data(), static_cast<int>(end.size()), &position, MPI_COMM_SELF);
  REQUIRE(position == end.size());
  return stream;
}

/// Packed bytes [begin, end) by `threads` threads in any order.
void check_move(Random& random, const End& from, const End& to, std::int64_t begin, std::int64_t end, int threads) {
  CAPTURE(from.layout->describe(), from.count, to.layout->describe(), to.count, begin, end, threads);
  const auto image = [&](const End& side, std::int64_t& lead) {
    lead = guard + (random(0, 2) == 0 ? random(0, 16) : 0) - side.low;
    return random.bytes(lead + side.high + guard);
  };
  std::int64_t from_lead = 0, to_lead = 0;
  const std::vector<char> from_image = image(from, from_lead);
  std::vector<char> to_image = image(to, to_lead), expected = to_image;

  const std::vector<char> sent = pack(from_image.data() + from_lead, from);
  std::vector<char> stream = pack(expected.data() + to_lead, to);
  std::copy(sent.begin() + begin, sent.begin() + end, stream.begin() + begin);
  int position = 0;
  PMPI_Unpack(stream.data(), static_cast<int>(to.size()), &position, expected.data() + to_lead, to.count, to.type,
              MPI_COMM_SELF);

  const KernelLayout from_layout = from.kernel(), to_layout = to.kernel();
  CHECK((from_layout.low == from.low && from_layout.high == from.high));
  const Sides sides = {reinterpret_cast<Address>(from_image.data() + from_lead),
                       reinterpret_cast<Address>(to_image.data() + to_lead),
                       {from.plain ? nullptr : &from_layout, end},
                       {to.plain ? nullptr : &to_layout, end}};
  const auto same = [](const void* address) { return const_cast<void*>(address); };
  const device::HostMemory<decltype(same)> memory{same};
  std::vector<int> order(static_cast<std::size_t>(threads));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random.engine);
  if (threads == few_threads) {
    std::vector<std::thread> running;
    for (const int thread : order)
      running.emplace_back([&, thread] { move(sides, memory, begin, end, thread, threads); });
    for (std::thread& thread : running) thread.join();
  } else {
    for (const int thread : order) move(sides, memory, begin, end, thread, threads);
  }
  CHECK(to_image == expected);
}

void check_pair(Random& random, const End& from, const End& to) {
  const std::int64_t most = std::min(from.size(), to.size());
  for (const int threads : {1, few_threads, 32, 256}) {
    check_move(random, from, to, 0, most, threads);
    const std::int64_t begin = random(0, most), end = random(begin, most);
    check_move(random, from, to, begin, end, threads);
  }
}

int some_count(Random& random, const RandomType& type) {
  constexpr std::int64_t most_bytes = 1 << 14, most_span = 1 << 17;
  const std::int64_t size = std::max<std::int64_t>(type.size(), 1);
  const std::int64_t span = std::max<std::int64_t>(std::abs(type.extent()), 1);
  const std::int64_t many = std::clamp<std::int64_t>(std::min(most_bytes / size, most_span / span), 1, 2000);
  return static_cast<int>(random(1, random(0, 1) == 0 ? many : std::min<std::int64_t>(many, 7)));
}

TEST_CASE("moves between random layouts", "[initiated]") {
  constexpr datatype::ListLimits no_lists{0, 1, 0, 0};
  const std::int64_t trees = unit_trees(40);
  for (std::int64_t i = 0; i < trees; ++i) {
    Random random(static_cast<std::uint64_t>(i));
    const RandomType from(random.engine, {});
    const RandomType to(random.engine, {.unpack_safe = true});
    INFO("pair " << i << ": " << from.description() << " -> " << to.description());
    const datatype::ListLimits limits = random(0, 1) == 0 ? datatype::ListLimits{} : no_lists;
    const End source = end_of(from.handle(), some_count(random, from), limits);
    const End target = end_of(to.handle(), some_count(random, to), limits);
    check_pair(random, source, target);
    check_pair(random, source, contiguous_end(source.size()));
    check_pair(random, contiguous_end(target.size()), target);
    check_pair(random, target, target);
  }
}

TEST_CASE("moves between the layouts of halos", "[initiated]") {
  Random random(1);
  OwnedType column = vector(500, 1, 64, MPI_DOUBLE), row = contiguous(500, MPI_DOUBLE);
  OwnedType floats = vector(300, 3, 7, MPI_FLOAT), shorts = vector(300, 3, 7, MPI_SHORT);
  std::vector<OwnedType> types;
  for (OwnedType* type : {&column, &row, &floats, &shorts}) type->commit();
  for (const OwnedType* from : {&column, &row, &floats, &shorts})
    for (const OwnedType* to : {&column, &row, &floats, &shorts}) check_pair(random, end_of(*from, 1), end_of(*to, 2));
}

TEST_CASE("forms of layouts for kernels", "[initiated]") {
  OwnedType plane = vector(8, 4, 16, MPI_DOUBLE), list = indexed({1, 1, 2}, {0, 5, 9}, MPI_INT);
  const auto form = [](MPI_Datatype type, int count) { return end_of(type, count).kernel().form; };
  CHECK(KernelLayout().form == not_made);
  CHECK(form(MPI_DOUBLE, 0) == contiguous_form);
  CHECK(form(MPI_DOUBLE, 5) == contiguous_form);
  CHECK(form(plane.commit(), 3) == narrow_form);
  CHECK(form(list.commit(), 3) == any_form);
  OwnedType shifted = make_type(MPI_Type_create_hindexed_block, 1, 2, std::vector<MPI_Aint>{24}.data(), MPI_DOUBLE);
  const KernelLayout layout = end_of(shifted.commit(), 1).kernel();
  CHECK(layout.form == contiguous_form);
  CHECK(layout.offset == 24);
  CHECK(layout.align == 8);
}

}  // namespace
