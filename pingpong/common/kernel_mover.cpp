// The hand-written kernels (by_hand.hpp) as a Mover.
#include "pingpong/common/machine.hpp"
#include "pingpong/common/movers.hpp"

#if GPUDT_BY_HAND

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

#include "pingpong/by_hand.hpp"

namespace gpudt::bench {
namespace {

constexpr std::int64_t word = 4;                    // the hand-written kernels move ints
constexpr unsigned polls_between_checks = 1 << 20;  // of the flag; a kernel that fails never sets it

/// Device memory with the numbers of an index list.
class DeviceList {
 public:
  void assign(const std::vector<std::int64_t>& numbers) {
    buffer_.reserve(numbers.size() * sizeof(std::int64_t));
    buffer_.write(std::as_bytes(std::span(numbers)));
  }
  const std::int64_t* data() const { return reinterpret_cast<const std::int64_t*>(buffer_.data()); }

 private:
  Buffer buffer_{Place::device};
};

/// The largest power of two that divides all offsets and lengths; at most the widest word, 16 bytes.
std::int64_t common_alignment(const ListedBlocks& blocks) {
  std::int64_t bits = 16;
  for (const std::int64_t offset : blocks.offsets) bits |= offset;
  for (const std::int64_t length : blocks.lengths) bits |= length;
  return bits & -bits;
}

class KernelMover final : public Mover {
 public:
  KernelMover(const Message& message, Place packed) : size_(message.size()), packed_is_host_(packed != Place::device) {
    std::visit([this](const auto& blocks) { describe(blocks); }, message.blocks());
    flag_.reserve(sizeof(unsigned));
    flag_.fill(std::byte{0}, sizeof(unsigned));
    counter_.reserve(sizeof(unsigned));
    counter_.fill(std::byte{0}, sizeof(unsigned));
  }

  void start_pack(const void* user, void* packed) override {
    check(by_hand_pack(layout_, user, packed, size_, packed_is_host_, stream_.get(), next_completion()));
  }
  void start_unpack(const void* packed, void* user) override {
    check(by_hand_unpack(layout_, user, packed, size_, packed_is_host_, stream_.get(), next_completion()));
  }
  void wait() override {
    for (unsigned polls = 0; *flag() != value_; ++polls) {
      if (polls % polls_between_checks != polls_between_checks - 1) continue;
      const cudaError_t status = cudaStreamQuery(stream_.get());
      if (status != cudaErrorNotReady) cuda_check(status, "hand-written kernel");
    }
  }

 private:
  void describe(const StridedBlocks& blocks) {
    layout_.kind = HandLayout::Kind::strided;
    layout_.offset = blocks.offset;
    layout_.run = blocks.run;
    for (const StridedDim& dim : blocks.dims) layout_.dims[layout_.ndims++] = {dim.count, dim.stride};
  }
  void describe(const ListedBlocks& blocks) {
    layout_.kind = HandLayout::Kind::list;
    layout_.count = static_cast<std::int64_t>(blocks.offsets.size());
    offsets_.assign(blocks.offsets);
    layout_.offsets = offsets_.data();
    layout_.align = common_alignment(blocks);
    if (blocks.regular) {
      layout_.run = blocks.lengths.front();
      return;
    }
    std::vector<std::int64_t> prefix(blocks.lengths.size() + 1);
    std::partial_sum(blocks.lengths.begin(), blocks.lengths.end(), prefix.begin() + 1);
    prefix_.assign(prefix);
    layout_.prefix = prefix_.data();
  }
  void describe(const StructBlocks& blocks) {
    layout_.kind = HandLayout::Kind::records;
    layout_.count = blocks.count;
    layout_.stride = blocks.stride;
  }

  volatile unsigned* flag() const { return reinterpret_cast<volatile unsigned*>(flag_.data()); }
  HandCompletion next_completion() { return {flag(), ++value_, reinterpret_cast<unsigned*>(counter_.data())}; }

  static void check(bool started) {
    if (!started) throw std::runtime_error("the hand-written kernels refuse a layout that they should take");
  }

  HandLayout layout_;
  std::int64_t size_;
  bool packed_is_host_;
  unsigned value_ = 0;
  Buffer flag_{Place::pinned}, counter_{Place::device};
  DeviceList offsets_, prefix_;
  Stream stream_;
};

/// What by_hand_pack() takes.
struct HasKernel {
  bool operator()(const StridedBlocks& blocks) const {
    return blocks.dims.size() <= HandLayout::max_dims && blocks.offset % word == 0 && blocks.run % word == 0 &&
           std::all_of(blocks.dims.begin(), blocks.dims.end(), [](auto dim) { return dim.stride % word == 0; });
  }
  bool operator()(const ListedBlocks& blocks) const {
    const auto whole = [](std::int64_t bytes) { return bytes % word == 0; };
    return std::all_of(blocks.offsets.begin(), blocks.offsets.end(), whole) &&
           std::all_of(blocks.lengths.begin(), blocks.lengths.end(), whole);
  }
  bool operator()(const StructBlocks&) const { return true; }
};

}  // namespace

std::unique_ptr<Mover> make_kernel_mover(const Message& message, Place packed) {
  if (device_is_simulated() || !std::visit(HasKernel{}, message.blocks())) return nullptr;
  return std::make_unique<KernelMover>(message, packed);
}

}  // namespace gpudt::bench

#else

namespace gpudt::bench {

std::unique_ptr<Mover> make_kernel_mover(const Message&, Place) {
  return nullptr;
}

}  // namespace gpudt::bench

#endif
