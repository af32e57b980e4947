// How often other processes have opened the allocations of a process: counters in the first pages of its memory object,
// which all of them map. As in CUDA, memory that is freed while others have it open is not given back before they close
// it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace gpudt::sim {

/// The begin of a memory object, by which processes that import from it know it.
struct ObjectHead {
  static constexpr std::size_t bytes = std::size_t{64} << 10;
  static constexpr std::size_t count = bytes / sizeof(std::atomic<std::uint32_t>) - 4;
  std::uint64_t magic;
  std::uint64_t nonce;
  std::atomic<std::uint32_t> openings[count];
};
static_assert(sizeof(ObjectHead) == ObjectHead::bytes);

/// Number of an allocation among those of its process that have been exported; negative: not exported, or as many are
/// as can be counted.
using OpeningIndex = std::int32_t;

/// The counters of this process's allocations. Not thread-safe.
class OwnOpenings {
 public:
  /// The object is empty; false if it cannot be mapped.
  bool make(int file);
  std::uint64_t nonce() const { return head_->nonce; }
  OpeningIndex take();
  /// Memory that has been freed while others have it open.
  struct Lingering {
    OpeningIndex index;
    int account;          ///< the device that has `bytes` bytes less as long as it lingers
    std::size_t in_file;  ///< offset in the memory object
    std::size_t bytes;
  };
  /// The allocation is freed. False if nobody has it open, so that its memory is free now.
  bool lingers(const Lingering& freed);
  bool lingers_at(std::size_t in_file, std::size_t bytes) const;
  /// What has been closed since the last call.
  std::vector<Lingering> take_closed();

 private:
  std::atomic<std::uint32_t>& counter(OpeningIndex index) { return head_->openings[static_cast<std::size_t>(index)]; }

  ObjectHead* head_ = nullptr;
  std::size_t taken_ = 0;
  std::vector<OpeningIndex> idle_;
  std::vector<Lingering> lingering_;
};

/// The counters of other processes. Not thread-safe.
class OthersOpenings {
 public:
  /// Whether `file` is the memory object with this nonce.
  bool knows(int file, std::uint64_t nonce);
  void opened(std::uint64_t nonce, OpeningIndex index);
  void closed(std::uint64_t nonce, OpeningIndex index);

 private:
  std::map<std::uint64_t, ObjectHead*> heads_;  // mapped until the process ends
};

}  // namespace gpudt::sim
