#include "pingpong/limits.hpp"

#include <algorithm>

#include "pingpong/common/sampling.hpp"

namespace gpudt::bench {
namespace {

constexpr std::int64_t burst = 64;  // bytes that DRAM moves at least
constexpr int repetitions = 7;

double best_us(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  const Stream stream;
  double best = 0;
  for (int i = 0; i <= repetitions; ++i) {
    const double start = now_us();
    cuda_check(cudaMemcpyAsync(to, from, bytes, kind, stream.get()), "cudaMemcpyAsync");
    stream.synchronize();
    const double taken = now_us() - start;
    if (i > 0) best = i == 1 ? taken : std::min(best, taken);
  }
  return best;
}

/// Counts the bursts of blocks that come in rising order.
class BurstCounter {
 public:
  void add(std::int64_t offset, std::int64_t length) {
    if (offset / burst != current_) close(offset / burst);
    const std::int64_t last = (offset + length - 1) / burst;
    if (last == current_) {
      covered_ += length;
      return;
    }
    covered_ += (current_ + 1) * burst - offset;
    close(current_ + 1);
    whole_ += last - current_;
    current_ = last;
    covered_ = offset + length - last * burst;
  }
  void finish() { close(-1); }
  std::int64_t whole() const { return whole_; }
  std::int64_t partial() const { return partial_; }

 private:
  void close(std::int64_t next) {
    if (covered_ == burst) ++whole_;
    if (covered_ > 0 && covered_ < burst) ++partial_;
    current_ = next;
    covered_ = 0;
  }
  std::int64_t current_ = -1, covered_ = 0, whole_ = 0, partial_ = 0;
};

}  // namespace

Bandwidths measure_bandwidths(std::size_t bytes) {
  Buffer host(Place::pinned), device(Place::device), other(Place::device);
  host.reserve(bytes);
  device.reserve(bytes);
  other.reserve(bytes);
  host.fill(std::byte{1}, bytes);
  const auto rate = [&](double us) { return static_cast<double>(bytes) / us / 1e3; };
  Bandwidths bandwidths;
  bandwidths.from_host = rate(best_us(device.data(), host.data(), bytes, cudaMemcpyHostToDevice));
  bandwidths.to_host = rate(best_us(host.data(), device.data(), bytes, cudaMemcpyDeviceToHost));
  bandwidths.device_copy = 2 * rate(best_us(other.data(), device.data(), bytes, cudaMemcpyDeviceToDevice));
  return bandwidths;
}

std::int64_t device_traffic(const Message& message, bool unpack) {
  BurstCounter bursts;
  message.for_each_block([&](std::int64_t offset, std::int64_t length) { bursts.add(offset, length); });
  bursts.finish();
  return (bursts.whole() + bursts.partial() * (unpack ? 2 : 1)) * burst + message.size();
}

}  // namespace gpudt::bench
