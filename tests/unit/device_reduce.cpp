// Reductions and copies to several destinations by whatever device there is (the simulated one if it is loaded), of
// more and fewer sources than a thread loads from at the same time, over all words and the rest behind them.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <random>
#include <vector>

#include "device/device.hpp"
#include "tests/support/catch.hpp"

namespace {

using namespace gpudt;

constexpr std::size_t guard_bytes = 64;
constexpr unsigned char guard_filling = 0xa5;

/// Memory of GPU 0 with guards around `bytes` bytes, the first of which is `skew` bytes behind an aligned address.
class Guarded {
 public:
  Guarded(std::size_t bytes, std::size_t skew)
      : begin_(guard_bytes + skew), bytes_(bytes), host_(begin_ + bytes + guard_bytes, guard_filling) {
    REQUIRE(cudaMalloc(&memory_, host_.size()) == cudaSuccess);
    put();
  }
  ~Guarded() { cudaFree(memory_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  void* device() const { return static_cast<char*>(memory_) + begin_; }
  /// What it is to hold; put() stores it.
  void set(const void* data) { std::memcpy(host_.data() + begin_, data, bytes_); }
  void put() const {
    REQUIRE(cudaMemcpy(memory_, host_.data(), host_.size(), cudaMemcpyHostToDevice) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(nullptr) == cudaSuccess);
  }
  bool as_set() const {
    std::vector<unsigned char> now(host_.size());
    REQUIRE(cudaMemcpy(now.data(), memory_, now.size(), cudaMemcpyDeviceToHost) == cudaSuccess);
    return now == host_;
  }

 private:
  std::size_t begin_, bytes_;
  std::vector<unsigned char> host_;
  void* memory_ = nullptr;
};

/// The engine, while it lives.
struct ReduceSession {
  explicit ReduceSession(device::ResidentUse resident = device::ResidentUse::automatic) {
    device::Config config;
    config.resident = resident;
    device::start(config);
  }
  ~ReduceSession() { device::stop(); }
  ReduceSession(const ReduceSession&) = delete;
  ReduceSession& operator=(const ReduceSession&) = delete;
};

/// The sum of the ints of `sources` buffers, in each of `destinations` buffers.
void check_sum(std::size_t sources, std::size_t destinations, std::size_t count, std::size_t skew) {
  INFO(sources << " sources, " << destinations << " destinations, " << count << " ints, skew " << skew);
  std::deque<Guarded> in, out;
  std::vector<const void*> from;
  std::vector<void*> to;
  std::vector<int> sum(count, 0), one(count);
  for (std::size_t source = 0; source < sources; ++source) {
    for (std::size_t i = 0; i < count; ++i) sum[i] += one[i] = static_cast<int>(i * 31 + source * 1009);
    in.emplace_back(count * sizeof(int), skew).set(one.data());
    in.back().put();
    from.push_back(in.back().device());
  }
  for (std::size_t i = 0; i < destinations; ++i) to.push_back(out.emplace_back(count * sizeof(int), skew).device());
  device::reduce(0, {device::Operator::sum, device::Element::int32, device::Result::total,
                     static_cast<std::int64_t>(count), from, to})
      .wait();
  for (Guarded& each : out) {
    each.set(sum.data());
    CHECK(each.as_set());
  }
  for (const Guarded& each : in) CHECK(each.as_set());
}

/// The sums of the ints of the buffers before each one, and its own if `with_own`, in that buffer.
void check_scan(std::size_t buffers, std::size_t count, std::size_t skew, bool with_own) {
  INFO(buffers << " buffers, " << count << " ints, skew " << skew << (with_own ? ", with its own" : ""));
  std::deque<Guarded> all;
  std::vector<std::vector<int>> expected;
  std::vector<const void*> from;
  std::vector<void*> to;
  std::vector<int> sum(count, 0), one(count);
  for (std::size_t buffer = 0; buffer < buffers; ++buffer) {
    const std::vector<int> before = sum;
    for (std::size_t i = 0; i < count; ++i) sum[i] += one[i] = static_cast<int>(i * 17 + buffer * 503);
    expected.push_back(with_own || buffer == 0 ? sum : before);
    all.emplace_back(count * sizeof(int), skew).set(one.data());
    all.back().put();
    from.push_back(all.back().device());
    to.push_back(all.back().device());
  }
  device::reduce(
      0, {device::Operator::sum, device::Element::int32, with_own ? device::Result::scan : device::Result::exscan,
          static_cast<std::int64_t>(count), from, to})
      .wait();
  for (std::size_t buffer = 0; buffer < buffers; ++buffer) {
    all[buffer].set(expected[buffer].data());
    CHECK(all[buffer].as_set());
  }
}

/// Bytes of GPU 0, the same random ones each time it is filled.
class Area {
 public:
  Area(std::size_t bytes, unsigned seed) : host_(bytes) {
    std::mt19937 random(seed);
    for (unsigned char& each : host_) each = static_cast<unsigned char>(random());
    REQUIRE(cudaMalloc(&memory_, bytes) == cudaSuccess);
  }
  ~Area() { cudaFree(memory_); }
  Area(const Area&) = delete;
  Area& operator=(const Area&) = delete;

  char* device() const { return static_cast<char*>(memory_); }
  void fill() const {
    REQUIRE(cudaMemcpy(memory_, host_.data(), host_.size(), cudaMemcpyHostToDevice) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(nullptr) == cudaSuccess);
  }
  std::vector<unsigned char> now() const {
    std::vector<unsigned char> bytes(host_.size());
    REQUIRE(cudaMemcpy(bytes.data(), memory_, bytes.size(), cudaMemcpyDeviceToHost) == cudaSuccess);
    return bytes;
  }

 private:
  std::vector<unsigned char> host_;
  void* memory_ = nullptr;
};

constexpr std::size_t reduced_ranks = 5, room_of_rank = 20'000;

struct ShortCase {
  device::Operator op;
  device::Element element;
  device::Result result;
  std::int64_t count;
  std::size_t ranks, skew;
};

std::vector<ShortCase> short_cases() {
  std::vector<ShortCase> cases;
  for (int op = 0; op <= static_cast<int>(device::Operator::minloc); ++op)
    for (int element = 0; element <= static_cast<int>(device::last_element); ++element) {
      const auto its_op = static_cast<device::Operator>(op);
      const auto its_element = static_cast<device::Element>(element);
      if (!device::is_defined(its_op, its_element)) continue;
      for (const std::int64_t count : {1, 7, 300, 1023}) {
        const auto number = cases.size();
        cases.push_back({its_op, its_element, static_cast<device::Result>(number % 3), count,
                         1 + number % reduced_ranks, number % 4 == 0 ? 16 - number % 16 : 0});
      }
    }
  return cases;
}

/// What is in `out` after each reduction from `in`. Adds the cases that the persistent kernel has done to `resident`.
std::vector<std::vector<unsigned char>> results_of(const std::vector<ShortCase>& cases, device::ResidentUse use,
                                                   std::int64_t& resident) {
  const ReduceSession session(use);
  const Area in(reduced_ranks * room_of_rank, 1), out(reduced_ranks * room_of_rank, 2);
  in.fill();
  std::vector<std::vector<unsigned char>> results;
  for (const ShortCase& each : cases) {
    const auto skew = each.skew - each.skew % static_cast<std::size_t>(device::element_alignment(each.element));
    out.fill();
    std::vector<const void*> from;
    std::vector<void*> to;
    for (std::size_t rank = 0; rank < each.ranks; ++rank) {
      from.push_back(in.device() + rank * room_of_rank + skew);
      to.push_back(out.device() + rank * room_of_rank + skew);
    }
    device::reduce(0, {each.op, each.element, each.result, each.count, from, to}).wait();
    device::about_to_wait(device::WaitKind::group);
    results.push_back(out.now());
  }
  resident += device::movements().resident;
  return results;
}

}  // namespace

TEST_CASE("short reductions by the persistent kernel give the same bits", "[device]") {
  const std::vector<ShortCase> cases = short_cases();
  std::int64_t launched = 0, resident = 0;
  const auto expected = results_of(cases, device::ResidentUse::never, launched);
  const auto found = results_of(cases, device::ResidentUse::always, resident);
  CHECK(launched == 0);
  CHECK(resident > 20);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    INFO("operator " << static_cast<int>(cases[i].op) << ", element " << static_cast<int>(cases[i].element) << ", "
                     << cases[i].count << " elements of " << cases[i].ranks);
    CHECK(found[i] == expected[i]);
  }
}

TEST_CASE("short blocks are copied by the persistent kernel", "[device]") {
  const ReduceSession session(device::ResidentUse::always);
  constexpr std::size_t room = 100'000;
  const Area from(room, 3), to(room, 4);
  from.fill();
  const std::vector<unsigned char> given = from.now();
  std::mt19937 random(5);
  constexpr int by_it = 11;  // on a busy machine it starts late
  for (int round = 0; round < 60 || (device::movements().resident < by_it && round < 6000); ++round) {
    to.fill();
    std::vector<unsigned char> expected = to.now();
    std::vector<device::BlockCopy> copies;
    const std::size_t blocks = 1 + random() % 16, longest = round % 2 == 0 ? 64 : 8192;
    for (std::size_t i = 0, at = 0; i < blocks; ++i) {
      const std::size_t skew = round % 3 == 0 ? random() % 16 : 0,
                        bytes = random() % std::min(longest, room / blocks / 2);
      copies.push_back({from.device() + at + skew, to.device() + at, static_cast<std::int64_t>(bytes)});
      std::copy_n(given.begin() + static_cast<std::ptrdiff_t>(at + skew), bytes,
                  expected.begin() + static_cast<std::ptrdiff_t>(at));
      at += (bytes + 47) / 16 * 16;
    }
    device::copy_blocks(0, copies).wait();
    device::about_to_wait(device::WaitKind::group);
    CHECK(to.now() == expected);
  }
  CHECK(device::movements().resident >= by_it);
}

TEST_CASE("sums of several buffers to several buffers", "[device]") {
  const ReduceSession session;
  for (const std::size_t sources : {1, 2, 4, 5, 9})
    for (const std::size_t destinations : {1, 3, 8})
      for (const std::size_t count : {std::size_t{1}, std::size_t{7}, std::size_t{1027}, std::size_t{300'003}})
        for (const std::size_t skew : {0, 4}) check_sum(sources, destinations, count, skew);
}

TEST_CASE("scans of several buffers in place", "[device]") {
  const ReduceSession session;
  for (const std::size_t buffers : {1, 4, 5, 9})
    for (const std::size_t count : {std::size_t{7}, std::size_t{300'003}})
      for (const std::size_t skew : {0, 4})
        for (const bool with_own : {false, true}) check_scan(buffers, count, skew, with_own);
}

TEST_CASE("copies of one buffer to several", "[device]") {
  const ReduceSession session;
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{53}, std::size_t{65'536}, std::size_t{1'000'003}})
    for (const std::size_t skew : {std::size_t{0}, std::size_t{16}, std::size_t{3}}) {
      INFO(bytes << " bytes, skew " << skew);
      std::vector<unsigned char> data(bytes);
      for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<unsigned char>(i * 7 + i / 251);
      Guarded from(bytes, skew);
      from.set(data.data());
      from.put();
      std::deque<Guarded> copies;
      std::vector<void*> to;
      for (int i = 0; i < 5; ++i) to.push_back(copies.emplace_back(bytes, skew).device());
      device::copy_to_all(0, from.device(), to, static_cast<std::int64_t>(bytes)).wait();
      for (Guarded& each : copies) {
        each.set(data.data());
        CHECK(each.as_set());
      }
      CHECK(from.as_set());
    }
}
