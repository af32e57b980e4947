#include "interpose/transport/internode/fragments.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "datatype/reference.hpp"
#include "interpose/support/points.hpp"

namespace gpudt::interpose::peer {
namespace {

using Clock = std::chrono::steady_clock;

/// Least number of parts of a message, so that packing and unpacking overlap, unless they would be shorter than
/// `least_part` bytes: each part has a cost.
constexpr std::int64_t parts_wanted = 4;
constexpr std::int64_t least_part = 256 << 10;
/// How long a message waits for others to return chunks before it uses the data of its descriptor, which is slow: the
/// others may be waiting for this message.
constexpr std::chrono::microseconds chunk_timeout{500};

std::int64_t part_size(std::int64_t bytes) {
  return std::clamp(divided(bytes, parts_wanted), least_part, chunk_size);
}

/// A chunk's address for a GPU; null if the GPU does not reach it.
void* chunk_of_gpu(int ordinal, const Segment& segment, int chunk) {
  void* const chunks = device::register_host(ordinal, segment->chunks, sizeof segment->chunks);
  return chunks == nullptr ? nullptr : static_cast<std::byte*>(chunks) + chunk * chunk_size;
}

}  // namespace

void Chunks::make() {
  if (std::exchange(tried_, true)) return;
  made_ = own_.make_chunks();
  for (int i = chunk_count; made_ && i > 0; --i) idle_.push_back(i - 1);
}

int Chunks::take() {
  const LockGuard lock(mutex_);
  make();
  if (idle_.empty()) return -1;
  const int chunk = idle_.back();
  idle_.pop_back();
  return chunk;
}

void Chunks::put(int chunk) {
  const LockGuard lock(mutex_);
  idle_.push_back(chunk);
}

// --- the sender's end ------------------------------------------------------------------------------------------------

SegmentOutflow::SegmentOutflow(Descriptor& descriptor, Chunks& chunks, DeviceBuffer operand)
    : descriptor_(descriptor), chunks_(chunks), operand_(std::move(operand)) {}

SegmentOutflow::~SegmentOutflow() {
  for (Part& part : packing_) {
    part.packing = {};  // ends, before another message gets the chunk
    if (part.chunk >= 0) chunks_.put(part.chunk);
  }
  for (const int chunk : handed_over_)
    if (chunk >= 0) chunks_.put(chunk);
  for (const int chunk : idle_) chunks_.put(chunk);
}

/// Always false: the descriptor's state shows when the receiver has all.
bool SegmentOutflow::step() {
  reclaim();
  publish();
  while (begin()) {
    if (operand_.ordinal < 0) publish();
  }
  return false;
}

std::unique_ptr<Outflow> SegmentOutflow::ahead(Descriptor& descriptor, Chunks& chunks, const DeviceBuffer& operand) {
  auto made = std::make_unique<SegmentOutflow>(descriptor, chunks, operand);
  if (made->begin()) made->publish();
  made->wanting_ = {};
  return made;
}

/// Takes back the chunks of parts that the receiver has unpacked.
void SegmentOutflow::reclaim() {
  for (const std::uint64_t consumed = descriptor_.consumed.load(std::memory_order_acquire); reclaimed_ < consumed;
       ++reclaimed_) {
    mark(point::part_sent);
    if (handed_over_.front() >= 0) idle_.push_back(handed_over_.front());
    handed_over_.pop_front();
  }
  if (begun_ < descriptor_.bytes) return;
  for (const int chunk : idle_) chunks_.put(chunk);
  idle_.clear();
}

void SegmentOutflow::publish() {
  for (; !packing_.empty() && packing_.front().packing.done(); packing_.pop_front()) {
    const Part& part = packing_.front();
    mark(point::part_packed);
    if (part.staging) {
      std::byte* const to =
          part.chunk < 0 ? chunks_.segment()->data_for_message(descriptor_) : chunks_.segment()->chunks[part.chunk];
      std::memcpy(to, part.staging.data(), static_cast<std::size_t>(part.bytes));
    }
    descriptor_.parts[produced_ % parts_in_flight] = {part.chunk, part.bytes};
    handed_over_.push_back(part.chunk);
    mark(point::part_handed_over);
    descriptor_.produced.store(++produced_, std::memory_order_release);
  }
}

/// Starts to pack the next part; false if there is none, or no room for it.
bool SegmentOutflow::begin() {
  if (!operand_.after.reached()) return false;  // others would lack the chunks meanwhile
  int chunk = -1;
  if (begun_ == descriptor_.bytes || packing_.size() + handed_over_.size() >= parts_in_flight || !find_chunk(chunk))
    return false;
  const std::int64_t most = chunk < 0 ? std::int64_t{descriptor_data} : part_size(descriptor_.bytes);
  Part part{chunk, std::min(descriptor_.bytes - begun_, most), {}, {}};
  if (operand_.ordinal < 0) return copy(part);
  void* to = chunk >= 0 ? chunk_of_gpu(operand_.ordinal, chunks_.segment(), chunk) : nullptr;
  device::MemoryKind kind = device::MemoryKind::pinned;
  if (to == nullptr) {
    if (!find_staging(part)) return false;
    to = part.staging.data();
    kind = part.staging.memory_kind();
  }
  const std::int64_t end = begun_ + part.bytes;
  packing_.push_back(std::move(part));
  mark(point::part_pack_started);
  packing_.back().packing = device::start(device::Direction::pack, operand_.ordinal, operand_.info->layout(),
                                          operand_.count, operand_.buffer, begun_, end, to, kind, operand_.after);
  begun_ = end;
  return true;
}

/// Copies a part of data in host memory.
bool SegmentOutflow::copy(Part& part) {
  Segment& own = chunks_.segment();
  std::byte* const to = part.chunk < 0 ? own->data_for_message(descriptor_) : own->chunks[part.chunk];
  const std::int64_t end = begun_ + part.bytes;
  mark(point::part_pack_started);
  datatype::pack(operand_.info->layout(), operand_.count, operand_.buffer, begun_, end, to);
  packing_.push_back(std::move(part));
  begun_ = end;
  return true;
}

/// False if there is no memory before other parts are done.
bool SegmentOutflow::find_staging(Part& part) {
  const auto bytes = static_cast<std::size_t>(part.bytes);
  const bool alone = packing_.empty() && handed_over_.empty();
  part.staging = alone ? device::acquire_packed(operand_.ordinal, bytes)  // or throws the reason
                       : device::try_acquire(device::StagingKind::mapped, operand_.ordinal, bytes);
  if (!part.staging && part.chunk >= 0) idle_.push_back(part.chunk);
  return bool{part.staging};
}

/// True if a part may begin: in `chunk`, or in the descriptor's data if that is negative.
bool SegmentOutflow::find_chunk(int& chunk) {
  const bool alone = packing_.empty() && handed_over_.empty();
  if (!idle_.empty()) {
    chunk = idle_.back();
    idle_.pop_back();
  } else {
    chunk = chunks_.take();
  }
  if (chunk >= 0) {
    wanting_ = {};
    return true;
  }
  if (!alone) return false;
  const auto now = Clock::now();
  if (wanting_ == Clock::time_point()) wanting_ = now;
  return now - wanting_ >= chunk_timeout;
}

// --- the receiver's end ----------------------------------------------------------------------------------------------

SegmentInflow::SegmentInflow(const Segment& segment, Descriptor& descriptor, const Target& target)
    : segment_(segment), descriptor_(descriptor), target_(target) {}

bool SegmentInflow::step() {
  for (const std::uint64_t produced = descriptor_.produced.load(std::memory_order_acquire); parts_ < produced; ++parts_)
    take(descriptor_.parts[parts_ % parts_in_flight]);
  for (; !unpacking_.empty() && unpacking_.front().transfer.done(); unpacking_.pop_front()) {
    mark(point::part_unpacked);
    descriptor_.consumed.store(++consumed_, std::memory_order_release);
  }
  return taken_ == descriptor_.bytes && unpacking_.empty();
}

/// What is beyond the receive's room is dropped.
void SegmentInflow::take(const Part& part) {
  mark(point::part_arrived);
  const std::byte* const data = part.chunk < 0 ? segment_->data_of(descriptor_).data() : segment_->chunks[part.chunk];
  const std::int64_t begin = taken_, end = std::min(begin + part.bytes, target_.bytes);
  Unpacking unpacking;
  taken_ += part.bytes;
  if (begin < end && target_.ordinal < 0) {
    datatype::unpack(*target_.layout, target_.count, target_.user, begin, end, data);
  } else if (begin < end) {
    void* from = part.chunk < 0 ? nullptr : chunk_of_gpu(target_.ordinal, segment_, part.chunk);
    device::MemoryKind kind = device::MemoryKind::pinned;
    if (from == nullptr) {
      const auto bytes = static_cast<std::size_t>(end - begin);
      unpacking.staging = device::acquire_packed(target_.ordinal, bytes);
      from = std::memcpy(unpacking.staging.data(), data, bytes);
      kind = unpacking.staging.memory_kind();
    }
    mark(point::part_unpack_started);
    unpacking.transfer = device::start(device::Direction::unpack, target_.ordinal, *target_.layout, target_.count,
                                       target_.user, begin, end, from, kind);
  }
  unpacking_.push_back(std::move(unpacking));
}

}  // namespace gpudt::interpose::peer
