// A message that goes part by part, because the receiver cannot fetch it from the sender's memory. Several parts are
// packed, transferred and unpacked at the same time, so that the whole takes about as long as the slowest of these
// steps. Here the parts go through the sender's segment, which GPUs write and read; in
// transport/internode/control_messages.hpp they go as MPI messages.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "base/mutex.hpp"
#include "device/device.hpp"
#include "interpose/shared/shared_segment.hpp"
#include "interpose/transport/device_buffer.hpp"

namespace gpudt::interpose::peer {

/// The length of a fragment if `bytes` bytes are split into `parts`, rounded up to 4 KiB so that GPUs access them
/// aligned.
constexpr std::int64_t divided(std::int64_t bytes, std::int64_t parts) {
  constexpr std::int64_t round = 4096;
  return (bytes / parts + round) / round * round;
}

/// The chunks of this process's segment, for the messages that need them. Thread-safe.
class Chunks {
 public:
  explicit Chunks(Segment& own) : own_(own) {}
  /// Takes an idle chunk; negative: there is none at present, or no memory for chunks.
  int take();
  void put(int chunk);
  bool usable() {
    const LockGuard lock(mutex_);
    if (!tried_) make();
    return made_;
  }
  Segment& segment() const { return own_; }

 private:
  Segment& own_;
  void make() REQUIRES(mutex_);

  Mutex mutex_;
  bool tried_ GUARDED_BY(mutex_) = false, made_ GUARDED_BY(mutex_) = false;
  std::vector<int> idle_ GUARDED_BY(mutex_);
};

/// The sender's end. The data must not change until step() returns true, or the object ends.
class Outflow {
 public:
  Outflow() = default;
  virtual ~Outflow() = default;
  Outflow(const Outflow&) = delete;
  Outflow& operator=(const Outflow&) = delete;
  /// Packs as many parts as there is room for, and passes on those that are packed. True when the data are no longer
  /// needed. May throw device::Error.
  virtual bool step() = 0;
};

/// Sends through the segment. step() returns false.
class SegmentOutflow : public Outflow {
 public:
  SegmentOutflow(Descriptor& descriptor, Chunks& chunks, DeviceBuffer operand);
  ~SegmentOutflow() override;
  bool step() override;
  /// One that has passed on the first part of data in host memory, if there was room, before the receiver asks for any.
  static std::unique_ptr<Outflow> ahead(Descriptor& descriptor, Chunks& chunks, const DeviceBuffer& operand);

 private:
  struct Part {
    int chunk;  ///< negative: the data of the descriptor, which are shorter
    std::int64_t bytes;
    device::Staging staging;  ///< for a GPU that does not reach the chunk
    device::Transfer packing;
  };
  void reclaim();
  void publish();
  bool begin();
  bool find_chunk(int& chunk);
  bool find_staging(Part& part);
  bool copy(Part& part);

  Descriptor& descriptor_;
  Chunks& chunks_;
  const DeviceBuffer operand_;
  std::deque<Part> packing_;     ///< oldest first
  std::deque<int> handed_over_;  ///< chunks that the receiver is still reading, oldest first
  std::vector<int> idle_;        ///< chunks for this message's next parts
  std::uint64_t produced_ = 0, reclaimed_ = 0;
  std::int64_t begun_ = 0;                         ///< bytes
  std::chrono::steady_clock::time_point wanting_;  ///< since when it waits for a chunk; the epoch: it does not wait
};

/// The receive buffer for the first `bytes` bytes of a message. The layout must outlive it.
struct Target {
  const datatype::Layout* layout;
  std::int64_t count;
  void* user;
  std::int64_t bytes;
  int ordinal = -1;  ///< of the GPU; negative: host memory
  /// The memory that receives packed data for a GPU: mapped host memory or, over a CUDA-aware MPI, device memory.
  device::StagingKind staging = device::StagingKind::mapped;
  bool direct = false;  ///< the user's data are contiguous in device memory, and MPI receives into them
};
/// What is received, to be looked at if moving it fails (device::moving()).
inline device::UserData user_data(const Target& target) {
  return {target.ordinal, {target.layout, target.count, target.user}, target.bytes};
}

/// The receiver's end.
class Inflow {
 public:
  Inflow() = default;
  virtual ~Inflow() = default;
  Inflow(const Inflow&) = delete;
  Inflow& operator=(const Inflow&) = delete;
  /// Unpacks the parts that have arrived. True when the whole message is in the user's buffer. May throw device::Error
  /// and MpiError.
  virtual bool step() = 0;
};

/// Receives through the sender's segment.
class SegmentInflow : public Inflow {
 public:
  SegmentInflow(const Segment& segment, Descriptor& descriptor, const Target& target);
  bool step() override;

 private:
  void take(const Part& part);

  struct Unpacking {
    device::Staging staging;  ///< for a GPU that does not reach the chunk
    device::Transfer transfer;
  };

  const Segment& segment_;
  Descriptor& descriptor_;
  const Target target_;
  std::deque<Unpacking> unpacking_;  ///< oldest first
  std::uint64_t parts_ = 0, consumed_ = 0;
  std::int64_t taken_ = 0;  ///< bytes
};

}  // namespace gpudt::interpose::peer
