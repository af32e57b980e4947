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
#include "device/kernels/kernel_host.hpp"
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
  bool plain = false;     ///< given to move() without a layout
  bool repeated = false;  ///< given to move() as a layout of any number of elements
  std::int64_t low = 0, high = 0;

  std::int64_t size() const { return layout->size() * count; }
  KernelLayout kernel() const {
    return repeated ? make_repeated_layout(*layout, layout->program())
                    : make_kernel_layout(*layout, count, layout->program());
  }
};

End end_of(MPI_Datatype type, int count, const datatype::ListLimits& limits = {}) {
  End end{type, count, datatype::decode(type, limits), false, false, 0, 0};
  const datatype::Span span = end.layout->span(count);
  end.low = end.size() > 0 ? span.begin : 0;
  end.high = end.size() > 0 ? span.end : 0;
  return end;
}

End repeated(const End& end) {
  End made = end;
  made.repeated = true;
  return made;
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

/// How a move is made.
enum class By { traversal, kept_places, short_copy };

/// The part of each thread of two blocks, or of one that is all there is. False: there are too many words to keep.
bool move_by_kept_places(const Sides& sides, std::int64_t begin, std::int64_t end, int threads,
                         const std::vector<int>& order, const auto& memory) {
  const int blocks = threads % 2 == 0 ? 2 : 1, block = threads / blocks;
  const auto movers = [&](int thread) { return Movers{thread, threads, thread % block, block}; };
  std::vector<WordPlace> places(static_cast<std::size_t>(blocks * known_words), WordPlace{-1, -1});
  const auto places_of = [&](int thread) { return &places[static_cast<std::size_t>(thread / block * known_words)]; };
  KnownMove known = {};
  for (const int thread : order) {
    if (!make_known(sides, begin, end, movers(thread), known)) return false;
    keep_places(sides, known, movers(thread), places_of(thread));
  }
  CHECK(known.is(sides.from_map.layout, sides.map.layout, begin, end - begin, threads));
  CHECK(known.suits(sides.from, sides.to));
  CHECK((known.word == 1 || !known.suits(sides.from + 1, sides.to)));
  for (const int thread : order)
    move_known(sides.from, sides.to, known.bytes, known.word, movers(thread), places_of(thread),
               places_of(thread)[thread % block], memory);
  return true;
}

/// Packed bytes [begin, end) by `threads` threads in any order. False: it is no move that can be made so.
bool check_move(Random& random, const End& from, const End& to, std::int64_t begin, std::int64_t end, int threads,
                By by = By::traversal) {
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
  const Touched whole = touched(&from_layout, from.size());
  CHECK((whole.low == from.low && whole.high == from.high));
  const Sides sides = {reinterpret_cast<Address>(from_image.data() + from_lead),
                       reinterpret_cast<Address>(to_image.data() + to_lead),
                       {from.plain ? nullptr : &from_layout, end},
                       {to.plain ? nullptr : &to_layout, end}};
  const auto same = [](const void* address) { return const_cast<void*>(address); };
  const device::HostMemory<decltype(same)> memory{same};
  std::vector<int> order(static_cast<std::size_t>(threads));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random.engine);
  if (by == By::kept_places) {
    if (!move_by_kept_places(sides, begin, end, threads, order, memory)) return false;
  } else if (by == By::short_copy) {
    const auto first = static_cast<Address>(begin);
    for (const int thread : order)
      if (!copy_short(sides.from + first, sides.to + first, end - begin, thread, threads, memory)) return false;
  } else if (threads == few_threads) {
    std::vector<std::thread> running;
    for (const int thread : order)
      running.emplace_back([&, thread] { move(sides, memory, begin, end, thread, threads); });
    for (std::thread& thread : running) thread.join();
  } else {
    for (const int thread : order) move(sides, memory, begin, end, thread, threads);
  }
  CHECK(to_image == expected);
  return true;
}

void check_pair(Random& random, const End& from, const End& to) {
  const std::int64_t most = std::min(from.size(), to.size());
  for (const int threads : {1, few_threads, 32, 256}) {
    check_move(random, from, to, 0, most, threads);
    const std::int64_t begin = random(0, most), end = random(begin, most);
    check_move(random, from, to, begin, end, threads);
    check_move(random, from, to, 0, most, threads, By::kept_places);
    check_move(random, from, to, begin / 16 * 16, std::max(begin, end) / 16 * 16, threads, By::kept_places);
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
  const std::int64_t trees = unit_trees(20);
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
    check_pair(random, repeated(source), target);
    check_pair(random, source, repeated(target));
    check_pair(random, repeated(source), repeated(target));
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

TEST_CASE("a layout of any number of elements", "[initiated]") {
  Random random(4);
  OwnedType column = vector(5, 1, 4, MPI_DOUBLE), list = indexed({1, 3, 2, 2}, {0, 5, 9, 30}, MPI_FLOAT);
  OwnedType cell = make_type(MPI_Type_create_resized, MPI_DOUBLE, 0, 24);
  OwnedType back = make_type(MPI_Type_create_resized, MPI_SHORT, 0, -6);
  OwnedType deep = make_type(MPI_Type_create_hvector, 3, 2, 1000, static_cast<MPI_Datatype>(column.commit()));
  for (OwnedType* type : {&list, &cell, &back, &deep}) type->commit();
  for (const OwnedType* type : {&column, &list, &cell, &back, &deep})
    for (const int count : {0, 1, 2, 17, 300}) {
      const End end = end_of(*type, count);
      check_pair(random, repeated(end), contiguous_end(end.size()));
      check_pair(random, contiguous_end(end.size()), repeated(end));
      check_pair(random, end, repeated(end));
    }
  const auto type_of = [](MPI_Datatype type) {
    const datatype::LayoutRef layout = datatype::decode(type);
    return make_kernel_type(*layout, Element::other, layout->program());
  };
  CHECK(KernelType().size < 0);
  CHECK((type_of(MPI_DOUBLE).plain == 1 && type_of(MPI_DOUBLE).size == 8));
  CHECK((type_of(cell).plain == 0 && type_of(cell).many.form == repeated_form));
  CHECK((type_of(back).many.align == 2 && type_of(back).many.extent == -6));
  CHECK((type_of(column).one.form == narrow_form && type_of(list).one.form == any_form));
  const KernelType cells = type_of(cell);
  CHECK(touched(&cells.many, 16).high == 32);
}

TEST_CASE("short moves along places that were kept", "[initiated]") {
  Random random(2);
  OwnedType column = vector(128, 1, 64, MPI_DOUBLE), list = indexed({1, 3, 2, 2}, {0, 5, 9, 30}, MPI_FLOAT);
  column.commit();
  list.commit();
  const End whole = end_of(column, 1), few = end_of(list, 32), line = contiguous_end(1024);
  for (const int threads : {1, 2, 64, 128, 512, 1024})
    for (const End* from : {&whole, &few, &line})
      for (const End* to : {&whole, &few}) {
        const std::int64_t parts = threads < 64 ? 1 : 2;
        CHECK(check_move(random, *from, *to, 0, 1024, threads, By::kept_places));
        CHECK(check_move(random, *from, *to, 1024 / parts - 512, 1024, threads, By::kept_places));
      }
  CHECK(!check_move(random, whole, whole, 0, 0, 64, By::kept_places));
  const End longer = end_of(column, 20);
  CHECK(!check_move(random, longer, longer, 0, longer.size(), 512, By::kept_places));
  CHECK(check_move(random, longer, longer, longer.size() - 1024, longer.size(), 512, By::kept_places));

  const KernelLayout layout = longer.kernel();
  const auto known_word = [&](std::int64_t begin, std::int64_t end, Address from) {
    KnownMove known = {};
    return make_known({from, 0, {&layout, end}, {nullptr, end}}, begin, end, {0, 512, 0, 512}, known) ? known.word : 0;
  };
  CHECK(known_word(0, 8192, 64) == 8);
  CHECK(known_word(8, 1024, 64) == 8);
  CHECK(known_word(0, 8200, 64) == 0);
  CHECK(known_word(4, 1020, 64) == 0);  // not in whole words
  CHECK(known_word(4, 1020, 68) == 4);
  CHECK(known_word(0, 1024, 66) == 1);
  CHECK(known_word(0, 1032, 66) == 0);
  OwnedType far =
      make_type(MPI_Type_create_hindexed_block, 2, 8, std::vector<MPI_Aint>{0, MPI_Aint{1} << 32}.data(), MPI_BYTE);
  const KernelLayout wide = end_of(far.commit(), 1).kernel();
  KnownMove known = {};
  CHECK(!make_known({0, 0, {&wide, 16}, {nullptr, 16}}, 0, 16, {0, 32, 0, 32}, known));
}

TEST_CASE("short contiguous moves", "[initiated]") {
  Random random(3);
  const End bytes = contiguous_end(5000);
  for (const int threads : {1, few_threads, 32, 512})
    for (int i = 0; i < 50; ++i) {
      const std::int64_t begin = random(0, 4000), length = random(0, std::min(1000, 4 * threads));
      CHECK(check_move(random, bytes, bytes, begin, begin + length, threads, By::short_copy));
    }
  CHECK(!check_move(random, bytes, bytes, 0, 5000, 32, By::short_copy));
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
