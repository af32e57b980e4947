// Reductions and copies to several destinations by whatever device there is (the simulated one if it is loaded), of
// more and fewer sources than a thread loads from at the same time, over all words and the rest behind them.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstring>
#include <deque>
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
  ReduceSession() { device::start({}); }
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

}  // namespace

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
