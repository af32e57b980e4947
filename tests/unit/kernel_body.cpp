// The arithmetic of the kernels, on the host and without a device: divisors, plans, and whole launches over a memory
// that is computed rather than allocated, so that offsets of many gigabytes are tested and every access is checked to
// lie in the user's runs or in the packed range.
#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "device/kernels/kernel_host.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/unit.hpp"

namespace gpudt::device {
namespace {

using datatype::Shape;
using datatype::ShapeKind;

// --- divisors -------------------------------------------------------------------------------------------------------

void check_division(std::uint64_t n, std::uint64_t value) {
  INFO(n << " / " << value);
  constexpr std::uint64_t wide = std::uint64_t{1} << 63, narrow = std::uint64_t{1} << 31;
  if (n < wide) REQUIRE(divide(n, make_divisor(value)) == n / value);
  if (n < narrow) {
    const auto small = static_cast<std::uint32_t>(n);
    REQUIRE(divide(small, make_divisor(value, true)) == n / value);
  }
}

/// Values at and around the powers of two.
std::vector<std::uint64_t> edges() {
  std::set<std::uint64_t> values;
  for (int bit = 0; bit < 63; ++bit)
    for (int by = -2; by <= 2; ++by) values.insert((std::uint64_t{1} << bit) + static_cast<std::uint64_t>(by));
  values.insert((std::uint64_t{1} << 63) - 1);
  std::vector<std::uint64_t> result;
  for (const std::uint64_t value : values)
    if (value < std::uint64_t{1} << 63) result.push_back(value);
  return result;
}

TEST_CASE("division by invariants is exact at the edges", "[kernel]") {
  for (const std::uint64_t value : edges()) {
    if (value == 0) continue;
    for (const std::uint64_t n : edges()) check_division(n, value);
    // Around multiples of the divisor, where a wrong quotient shows first.
    for (const std::uint64_t quotient : edges()) {
      if (quotient > (std::uint64_t{1} << 62) / value) break;
      for (int by = -1; by <= 1; ++by) check_division(quotient * value + static_cast<std::uint64_t>(by), value);
    }
  }
}

TEST_CASE("division by invariants is exact for random numbers", "[kernel]") {
  std::mt19937_64 random = test::unit_random(0);
  for (int i = 0; i < 200000; ++i) {
    const std::uint64_t value = (random() >> (1 + random() % 63)) | 1;
    check_division(random() >> (1 + random() % 63), value);
    check_division(random() >> 33, value);
    const std::uint64_t most = (std::uint64_t{1} << 62) / value;
    check_division(value * (random() % (most + 1)) - (value > 1 ? 1 : 0), value);
  }
}

// --- launches over computed memory ----------------------------------------------------------------------------------

/// A shape with its lists; keeps its own lookaside buffer.
struct BodyMessage {
  Shape shape;
  std::vector<std::int64_t> lookaside;
};

struct Run {
  std::int64_t position, offset, length;
};

/// The run that holds a position, by plain division.
Run run_at(const BodyMessage& message, std::int64_t position) {
  const Shape& shape = message.shape;
  if (shape.kind == ShapeKind::contiguous) return {0, shape.offset, shape.total};
  const std::int64_t inner_size = shape.kind == ShapeKind::list ? shape.list_size : shape.run;
  std::int64_t index = position / inner_size, inner = position % inner_size;
  std::int64_t start = position - inner, offset = shape.offset;
  for (int d = shape.ndims - 1; d >= 0; --d) {
    offset += index % shape.dims[d].count * shape.dims[d].stride;
    index /= shape.dims[d].count;
  }
  if (shape.kind == ShapeKind::strided) return {start, offset, shape.run};
  std::int64_t entry = 0, length = shape.run, at = 0;
  const auto* displs = message.lookaside.data() + shape.list_displs;
  if (shape.run > 0) {
    entry = inner / shape.run;
    at = entry * shape.run;
  } else {
    const auto* prefix = message.lookaside.data() + shape.list_prefix;
    while (prefix[entry + 1] <= inner) ++entry;
    at = prefix[entry];
    length = prefix[entry + 1] - at;
  }
  return {start + at, offset + displs[entry], length};
}

std::uint8_t byte_at(Address address) {
  return static_cast<std::uint8_t>((address * 0x9e3779b97f4a7c15u) >> 56);
}

/// Memory with a user's side and a packed side. Accesses outside what `allow` named are counted as violations.
class CheckedMemory {
 public:
  CheckedMemory(bool unpack, Address packed, std::int64_t bytes)
      : unpack_(unpack), packed_(packed), stored_(static_cast<std::size_t>(bytes)), written_(stored_.size()) {}

  void allow_user(Address begin, Address end) { user_[begin] = std::max(user_[begin], end); }

  template <class Word>
  Word load(Address address) const {
    const bool inside = unpack_ ? in_packed(address, sizeof(Word)) : in_user(address, sizeof(Word));
    if (!inside || address % alignof(Word) != 0) ++violations_;
    std::uint8_t bytes[sizeof(Word)];
    for (std::size_t i = 0; i < sizeof(Word); ++i) bytes[i] = byte_at(address + i);
    Word word;
    std::memcpy(&word, bytes, sizeof word);
    return word;
  }

  template <class Word>
  void store(Address address, const Word& word) const {
    const bool inside = unpack_ ? in_user(address, sizeof(Word)) : in_packed(address, sizeof(Word));
    if (!inside || address % alignof(Word) != 0) {
      ++violations_;
      return;
    }
    std::uint8_t bytes[sizeof(Word)];
    std::memcpy(bytes, &word, sizeof word);
    for (std::size_t i = 0; i < sizeof(Word); ++i) {
      if (unpack_) {
        if (!scattered_.emplace(address + i, bytes[i]).second) ++violations_;  // written twice
      } else {
        const auto at = static_cast<std::size_t>(address + i - packed_);
        if (written_[at]++ != 0) ++violations_;
        stored_[at] = bytes[i];
      }
    }
  }

  int violations() const { return violations_; }
  const std::vector<std::uint8_t>& stored() const { return stored_; }
  bool all_written() const {
    return std::all_of(written_.begin(), written_.end(), [](auto times) { return times == 1; });
  }
  const std::map<Address, std::uint8_t>& scattered() const { return scattered_; }

 private:
  bool in_packed(Address address, std::size_t bytes) const {
    return address >= packed_ && address + bytes <= packed_ + stored_.size();
  }
  bool in_user(Address address, std::size_t bytes) const {
    auto run = user_.upper_bound(address);
    if (run == user_.begin()) return false;
    --run;
    return address + bytes <= run->second;
  }

  bool unpack_;
  Address packed_;
  std::map<Address, Address> user_;
  mutable std::vector<std::uint8_t> stored_;
  mutable std::vector<int> written_;
  mutable std::map<Address, std::uint8_t> scattered_;
  mutable int violations_ = 0;
};

struct Launched {
  Method method;
  std::int32_t word, narrow;
};

/// Plans and runs one launch and checks every byte of it.
Launched check_launch(const BodyMessage& message, bool unpack, Address user, Address packed, std::int64_t begin,
                      std::int64_t end, bool packed_is_host) {
  PlanHints hints;
  hints.multiprocessors = 132;
  hints.packed_is_host = packed_is_host;
  hints.lookaside = message.lookaside.data();
  KernelArgs args =
      plan(message.shape, unpack, reinterpret_cast<void*>(user), reinterpret_cast<void*>(packed), begin, end, hints);
  args.program.lookaside = message.lookaside.data();
  CAPTURE(static_cast<int>(message.shape.kind), message.shape.run, message.shape.ndims, unpack, user % 16, packed % 16,
          begin, end, static_cast<int>(args.method), args.word, args.narrow);
  REQUIRE(args.grid >= 1);
  REQUIRE(args.block % 32 == 0);
  REQUIRE((args.block >= 32 && args.block <= 1024));

  CheckedMemory memory(unpack, packed, end - begin);
  for (std::int64_t position = begin; position < end;) {
    const Run run = run_at(message, position);
    // Reading the rest of a run is harmless, writing it is not.
    const std::int64_t low = unpack ? std::max(run.position, begin) : run.position;
    const std::int64_t high = unpack ? std::min(run.position + run.length, end) : run.position + run.length;
    const Address base = user + static_cast<Address>(run.offset - run.position);
    memory.allow_user(base + static_cast<Address>(low), base + static_cast<Address>(high));
    position = run.position + run.length;
  }
  visit_map(args, [&](auto map) {
    const Job<typename decltype(map)::type> job(args);
    if (unpack)
      host::run_job<true>(args, job, memory);
    else
      host::run_job<false>(args, job, memory);
  });
  REQUIRE(memory.violations() == 0);
  std::int64_t wrong = 0;
  for (std::int64_t position = begin; position < end; ++position) {
    const Run run = run_at(message, position);
    const Address place = user + static_cast<Address>(run.offset + position - run.position);
    const Address at = packed + static_cast<Address>(position - begin);
    if (unpack) {
      const auto found = memory.scattered().find(place);
      wrong += found == memory.scattered().end() || found->second != byte_at(at);
    } else {
      wrong += memory.stored()[static_cast<std::size_t>(position - begin)] != byte_at(place);
    }
  }
  REQUIRE(wrong == 0);
  if (unpack)
    REQUIRE(memory.scattered().size() == static_cast<std::size_t>(end - begin));
  else
    REQUIRE(memory.all_written());
  return {args.method, args.word, args.narrow};
}

std::int32_t alignment_of(std::int64_t bits) {
  const auto low = bits & -bits;
  return bits == 0 || low > 16 ? 16 : static_cast<std::int32_t>(low);
}

BodyMessage contiguous(std::int64_t total, std::int64_t offset) {
  BodyMessage message;
  message.shape.kind = ShapeKind::contiguous;
  message.shape.total = message.shape.run = total;
  message.shape.offset = offset;
  message.shape.count = 1;
  message.shape.align = alignment_of(total | offset);
  return message;
}

BodyMessage strided(std::int64_t run, const std::vector<datatype::Dim>& dims, std::int64_t offset) {
  BodyMessage message;
  Shape& shape = message.shape;
  shape.kind = ShapeKind::strided;
  shape.run = shape.total = run;
  shape.offset = offset;
  shape.count = 1;
  std::int64_t bits = run | offset;
  for (const auto& dim : dims) {
    shape.dims[shape.ndims++] = dim;
    shape.total *= dim.count;
    bits |= dim.stride;
  }
  shape.align = alignment_of(bits);
  return message;
}

/// A list with ascending displacements and gaps; `lengths` may be equal or not.
BodyMessage listed(const std::vector<std::int64_t>& lengths, bool regular, std::int64_t gap, std::int64_t repeat,
                   std::int64_t offset) {
  BodyMessage message;
  Shape& shape = message.shape;
  shape.kind = ShapeKind::list;
  shape.offset = offset;
  shape.count = 1;
  shape.list_count = static_cast<std::int64_t>(lengths.size());
  shape.run = regular ? lengths[0] : 0;
  std::int64_t bits = offset, displ = 0;
  for (const std::int64_t length : lengths) {
    message.lookaside.push_back(displ);
    bits |= length | displ;
    displ += length + gap;
  }
  shape.list_displs = 0;
  if (!regular) {
    shape.list_prefix = static_cast<std::int64_t>(message.lookaside.size());
    message.lookaside.push_back(0);
    for (const std::int64_t length : lengths) message.lookaside.push_back(message.lookaside.back() + length);
  }
  for (const std::int64_t length : lengths) shape.list_size += length;
  shape.list_longest = *std::max_element(lengths.begin(), lengths.end());
  shape.total = shape.list_size;
  if (repeat > 1) {
    shape.ndims = 1;
    shape.dims[0] = {repeat, displ + gap};
    shape.total *= repeat;
    bits |= displ + gap;
  }
  shape.align = alignment_of(bits);
  return message;
}

constexpr Address user_base = Address{1} << 40;
constexpr Address packed_base = Address{1} << 44;

class BodyRandom {
 public:
  explicit BodyRandom(std::uint64_t seed) : engine_(seed) {}
  std::int64_t operator()(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(engine_);
  }

 private:
  std::mt19937_64 engine_;
};

/// Both directions, all of the message and random ranges of it, at random alignments.
void check_message(const BodyMessage& message, BodyRandom& random, std::set<int>* methods = nullptr) {
  const std::int64_t total = message.shape.total;
  for (const bool unpack : {false, true}) {
    for (int i = 0; i < 6; ++i) {
      const Address user = user_base + static_cast<Address>(i < 2 ? 0 : random(0, 16));
      const Address packed = packed_base + static_cast<Address>(i < 3 ? 0 : random(0, 16));
      const std::int64_t begin = i % 3 == 0 ? 0 : random(0, total - 1),
                         end = i % 3 == 0 ? total : random(begin + 1, total);
      const Launched launched = check_launch(message, unpack, user, packed, begin, end, i % 2 == 0);
      if (methods) methods->insert(static_cast<int>(launched.method));
    }
  }
}

TEST_CASE("kernel bodies: contiguous at every pair of misalignments", "[kernel]") {
  BodyRandom random(test::unit_seed());
  for (const std::int64_t total : {std::int64_t{1}, std::int64_t{15}, std::int64_t{333}, std::int64_t{5000}})
    for (int user = 0; user < 16; ++user)
      for (int packed = 0; packed < 16; ++packed)
        for (const bool unpack : {false, true})
          check_launch(contiguous(total, -7), unpack, user_base + static_cast<Address>(user),
                       packed_base + static_cast<Address>(packed), 0, total, false);
}

TEST_CASE("kernel bodies: run lengths 1 to 40 at strides of either sign", "[kernel]") {
  BodyRandom random(test::unit_seed());
  std::set<int> methods;
  for (std::int64_t run = 1; run <= 40; ++run) {
    for (const std::int64_t gap : {1, 7, 16}) {
      check_message(strided(run, {{8000 / run, run + gap}}, 0), random, &methods);
      check_message(strided(run, {{700 / run, -(run + gap)}}, 3), random, &methods);
    }
  }
  CHECK(methods.size() == 3);
}

TEST_CASE("kernel bodies: a structure of 17 bytes in 24", "[kernel]") {
  const BodyMessage message = strided(17, {{1000, 24}}, 0);
  const Launched pack = check_launch(message, false, user_base, packed_base, 0, 17000, true);
  CHECK(pack.method == Method::runs);
  const Launched unpack = check_launch(message, true, user_base, packed_base, 5, 16990, false);
  CHECK(unpack.method != Method::words);
  BodyRandom random(test::unit_seed());
  check_message(message, random);
}

TEST_CASE("kernel plans: short runs are unpacked within a GPU in short steps", "[kernel]") {
  constexpr std::int64_t runs = 100'000;
  constexpr int multiprocessors = 10, threads = 128, blocks = 6;
  const auto planned = [&](bool unpack, std::int64_t some, PlanHints hints) {
    const datatype::Shape shape = strided(17, {{some, 24}}, 0).shape;
    hints.multiprocessors = multiprocessors;
    return plan(shape, unpack, reinterpret_cast<void*>(user_base), reinterpret_cast<void*>(packed_base), 0, shape.total,
                hints);
  };
  const KernelArgs many = planned(true, runs, {});
  CHECK(many.method == Method::runs);
  CHECK((many.block == threads && many.grid == blocks * multiprocessors));
  const KernelArgs few = planned(true, 20 * threads - 1, {});
  CHECK((few.block == threads && few.grid == 20));
  CHECK(planned(false, runs, {}).block == block_threads);
  CHECK(planned(true, runs, {.packed_is_host = true}).block == block_threads);
  CHECK(planned(true, runs, {.packed_is_peer = true}).block == block_threads);
}

TEST_CASE("kernel bodies: every word width", "[kernel]") {
  for (const int word : {1, 4, 8, 16}) {
    const BodyMessage message = strided(word, {{50, 64}}, 0);
    const Launched launched = check_launch(message, false, user_base, packed_base, 0, message.shape.total, true);
    CHECK(launched.method == Method::words);
    CHECK(launched.word == word);
  }
  CHECK(check_launch(strided(2, {{50, 64}}, 0), false, user_base, packed_base, 0, 100, true).word == 1);
  // The address limits it, and so does the packed side.
  CHECK(check_launch(strided(16, {{50, 64}}, 0), false, user_base + 8, packed_base, 0, 800, true).word == 8);
  CHECK(check_launch(strided(16, {{50, 64}}, 0), true, user_base, packed_base + 4, 0, 800, true).word == 4);
}

TEST_CASE("kernel bodies: seven dimensions", "[kernel]") {
  BodyRandom random(test::unit_seed());
  for (const std::int64_t run : {3, 4, 8, 48}) {
    std::vector<datatype::Dim> dims;
    std::int64_t stride = run;
    for (int d = 0; d < datatype::max_dims; ++d) {
      stride += 8;
      const std::int64_t count = random(1, 4);
      dims.insert(dims.begin(), {count, d % 3 == 1 ? -stride : stride});
      stride *= count;
    }
    check_message(strided(run, dims, 16), random);
  }
}

TEST_CASE("kernel bodies: lists", "[kernel]") {
  BodyRandom random(test::unit_seed());
  std::set<int> methods;
  check_message(listed(std::vector<std::int64_t>(500, 13), true, 2, 1, 0), random, &methods);
  std::vector<std::int64_t> even(300);
  for (std::size_t i = 0; i < even.size(); ++i) even[i] = 8 * (1 + static_cast<std::int64_t>(i % 5));
  for (const std::int64_t repeat : {1, 3}) check_message(listed(even, false, 8, repeat, 0), random, &methods);
  for (int i = 0; i < 60; ++i) {
    const auto unit = std::int64_t{1} << random(0, 4);
    const std::int64_t count = random(1, 300), gap = unit * random(1, 3), repeat = random(1, 3);
    const bool regular = i % 2 == 0;
    std::vector<std::int64_t> lengths(static_cast<std::size_t>(count), unit * random(1, 12));
    if (!regular)
      for (auto& length : lengths)
        length = random(0, 3) == 0 ? 0 : random(0, 20) == 0 ? unit * random(100, 400) : unit * random(1, 9);
    if (!regular) lengths.back() = unit;  // not all empty
    check_message(listed(lengths, regular, gap, repeat, unit * random(-3, 3)), random, &methods);
  }
  CHECK(methods.size() == 4);
}

TEST_CASE("kernel bodies: offsets and positions beyond 4 GiB", "[kernel]") {
  BodyRandom random(test::unit_seed());
  constexpr std::int64_t gib = std::int64_t{1} << 30;
  struct Case {
    BodyMessage message;
    std::int64_t begin;
  };
  const std::vector<Case> cases = {
      {contiguous(12 * gib, 0), 11 * gib + 3},
      {strided(8, {{gib, 512}}, 0), 5 * gib},      // 32-bit words at 64-bit offsets
      {strided(4, {{3 * gib, 16}}, 0), 11 * gib},  // more than 2^31 words
      {strided(17, {{gib, 24}}, 0), 16 * gib + 5},
      {strided(1000003, {{64, 4 * gib}, {5000, -2 * gib / 1000}}, 0), 7 * gib + 1},
      {listed(std::vector<std::int64_t>(500, 12345677), true, 100, 3, 0), 6 * gib},
      {listed({0, 3 * gib + 1, 0, 8, 17, 2 * gib}, false, 5, 2, 0), 8 * gib},
  };
  for (const Case& test : cases) {
    for (const bool unpack : {false, true}) {
      for (int i = 0; i < 4; ++i) {
        const std::int64_t begin = test.begin + random(0, 100), end = begin + random(1, 20000);
        const Launched launched = check_launch(test.message, unpack, user_base + static_cast<Address>(i & 1),
                                               packed_base + static_cast<Address>(i >> 1), begin, end, false);
        if (test.message.shape.kind != ShapeKind::contiguous)
          CHECK((launched.narrow == 0 || launched.method == Method::words));
      }
    }
  }
}

TEST_CASE("kernel bodies: a range that ends inside a run near 2 GiB", "[kernel]") {
  constexpr std::int64_t limit = (std::int64_t{1} << 31) - 64;  // the most that 32 bits are used for
  const BodyMessage message = listed({4096, 8192}, false, 16, 200000, 0);
  for (const bool unpack : {false, true})
    for (const std::int64_t end : {limit, limit - 4096, limit - 8192, limit - 16384})
      check_launch(message, unpack, user_base, packed_base, end - 512, end, false);
}

// --- plans ----------------------------------------------------------------------------------------------------------

TEST_CASE("plans: small messages take one thread block, the host link few", "[kernel]") {
  PlanHints hints;
  hints.multiprocessors = 132;
  const auto planned = [&](const BodyMessage& message, bool host) {
    hints.packed_is_host = host;
    return plan(message.shape, false, reinterpret_cast<void*>(user_base), reinterpret_cast<void*>(packed_base), 0,
                message.shape.total, hints);
  };
  CHECK(planned(strided(8, {{128, 512}}, 0), true).grid == 1);
  CHECK(planned(strided(8, {{128, 512}}, 0), true).block == 128);
  CHECK(planned(strided(8, {{1 << 20, 512}}, 0), true).grid <= 64);
  CHECK(planned(strided(8, {{1 << 20, 512}}, 0), false).grid > 132);
  CHECK(planned(strided(8, {{1 << 19, 512}}, 0), false).streaming_loads == 0);
  CHECK(planned(strided(128, {{1 << 21, 512}}, 0), false).streaming_loads == 1);
  CHECK(planned(contiguous(std::int64_t{1} << 34, 0), false).word == 16);
  CHECK(planned(contiguous(std::int64_t{1} << 34, 0), true).grid <= 64);
}

TEST_CASE("plans: a thread for each word of short messages, and beyond the caches", "[kernel]") {
  PlanHints hints;
  hints.multiprocessors = 132;
  const auto planned = [&](const BodyMessage& message, bool unpack) {
    hints.lookaside = message.lookaside.data();
    return plan(message.shape, unpack, reinterpret_cast<void*>(user_base), reinterpret_cast<void*>(packed_base), 0,
                message.shape.total, hints);
  };
  const BodyMessage short_rows = strided(8, {{100, 512}}, 0), long_rows = strided(128, {{1 << 19, 512}}, 0);
  const BodyMessage short_runs = strided(16, {{1 << 22, 512}}, 0), some_runs = strided(16, {{1 << 20, 512}}, 0);
  CHECK(planned(short_rows, false).single == 1);
  CHECK(planned(short_rows, false).flag_behind == 0);
  for (const bool unpack : {false, true}) {
    for (const BodyMessage* const message : {&long_rows, &short_runs}) {
      const KernelArgs args = planned(*message, unpack);
      CHECK(args.single == 1);
      CHECK(args.flag_behind == 1);
      CHECK(std::int64_t{args.grid} * args.block * args.word >= message->shape.total);
    }
  }
  CHECK(planned(some_runs, false).single == 0);
  CHECK(planned(some_runs, false).flag_behind == 1);
  const KernelArgs searched = planned(listed({4, 60}, false, 16, 1 << 20, 0), false);
  CHECK(searched.single == 0);
  CHECK(searched.flag_behind == 1);
  hints.packed_is_peer = true;
  CHECK(planned(long_rows, false).flag_behind == 0);
  CHECK(planned(long_rows, false).single == 0);
  hints.packed_is_peer = false;
  hints.packed_is_host = true;
  CHECK(planned(long_rows, false).flag_behind == 0);
  CHECK(planned(long_rows, false).single == 0);
}

TEST_CASE("plans: short jobs of odd runs go by narrow words", "[kernel]") {
  PlanHints hints;
  hints.multiprocessors = 132;
  const auto planned = [&](const BodyMessage& message) {
    const PlanSide side = {message.shape, reinterpret_cast<void*>(user_base)};
    return plan_batch_job(side, side, 0, message.shape.total, hints).to;
  };
  const KernelArgs records = planned(strided(17, {{60, 24}}, 0)), halves = planned(strided(6, {{60, 10}}, 0));
  CHECK((records.method == Method::words && records.word == 1 && records.grid == 1));
  CHECK((halves.method == Method::words && halves.word == 1 && halves.grid == 1));
  CHECK(planned(strided(17, {{61, 24}}, 0)).method == Method::gather);
  CHECK(planned(listed({17, 3}, false, 5, 20, 0)).method == Method::gather);
  CHECK(planned(strided(16, {{600, 24}}, 0)).word == 8);
}

TEST_CASE("plans: lists within a GPU's memory", "[kernel]") {
  PlanHints hints;
  hints.multiprocessors = 132;
  const auto planned = [&](std::int64_t run, std::int64_t count, bool unpack) {
    const BodyMessage message = listed({run, run}, true, 16, count / 2, 0);
    return plan(message.shape, unpack, reinterpret_cast<void*>(user_base), reinterpret_cast<void*>(packed_base), 0,
                message.shape.total, hints);
  };
  constexpr std::int64_t some = 1 << 17, many = 1 << 22;
  CHECK(std::int64_t{planned(128, some, false).grid} * block_threads * words_per_thread * 16 >= 128 * some);
  CHECK(planned(32, many, false).single == 0);
  CHECK(planned(32, many, true).single == 1);
  // Kept by the caches: what is written in fragments, and short runs that are read beyond them.
  CHECK(planned(128, some, false).streaming_loads == 1);
  CHECK(planned(128, many, false).streaming_loads == 1);
  CHECK(planned(32, many, false).streaming_loads == 0);
  CHECK(planned(128, some, true).streaming_loads == 0);
  CHECK(planned(128, some, true).streaming_stores == 1);
  CHECK(planned(128, many, true).streaming_stores == 0);
  hints.packed_is_peer = true;
  CHECK(planned(128, 2 * some, false).grid == 132 * 8);
}

}  // namespace
}  // namespace gpudt::device
