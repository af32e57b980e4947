// What an exchange between GPUs keeps for the next one with the same blocks: programs repeat their exchanges, and what
// lies between the call and the kernel took twice as long as the kernel.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/mutex.hpp"
#include "interpose/collectives/block_messages.hpp"
#include "interpose/collectives/board_group.hpp"

namespace gpudt::interpose {

/// Fetches one block.
struct Move {
  device::Side from, to;  ///< whose layouts are in Moves::layouts
  std::int64_t bytes;
  bool contiguous;  ///< both sides
  bool own;         ///< both are memory of this process's GPU
};

/// A leader's part of a block that one process gives to all: it is fetched once and stored to all receivers, also those
/// of other GPUs. So no process may go on before all leaders have ended.
struct Share {
  const void* from = nullptr;
  std::vector<void*> to{};
  std::int64_t bytes = 0;
};

/// What a leader fetches, and from where. Immutable once it is known to others.
struct Moves {
  std::vector<peer::Contribution> all{};  ///< by rank: from what has been published
  std::vector<void*> from{}, to{};  ///< by rank: `from.base` and `to.base` as this process's GPU reaches them, or null
  std::vector<datatype::LayoutRef> layouts{};
  std::vector<Move> moves{};
  bool one_to_all = false;  ///< shared_root() has found a root
  bool shared = false;      ///< its block is divided among leaders; `share` is this leader's part, if it has one
  Share share{};
  /// All moves, if kernels make them together best and the exchange is not the first of its kind; otherwise null.
  std::shared_ptr<device::PreparedTransfers> prepared{};
  int attempts = 0;  ///< to prepare them: layouts may still be on their way to the GPU
  static constexpr int most_attempts = 3;

  /// Whether it is the same if processes publish `now`.
  bool hold_for(const std::vector<peer::Contribution>& now) const;
  bool may_prepare() const { return !prepared && attempts < most_attempts; }
  /// To be called when the exchange is made again. Throws device::Error.
  void prepare(int ordinal);
};

struct NamedLayout {
  datatype::LayoutRef layout;
  peer::LayoutName name;
  std::int32_t at;  ///< peer::Block::layout_at
};

/// What this process publishes about an exchange.
class ExchangePlan {
 public:
  /// The memory that holds all blocks which a process sends, or all which it receives.
  struct Memory {
    device::Exported exported{};
    int ordinal = -1;                  ///< negative: there are no blocks
    const void* first_byte = nullptr;  ///< of the first block
    /// Whether other processes can still map the same memory at the same addresses.
    bool is_there(device::Importers by) const;
  };

  BlockMessages listed{};         ///< as the program gave them, with empty ones
  std::int64_t least = 0;         ///< the shortest block that is faster as a message
  std::int64_t taken_bytes = 0;   ///< of all blocks that this process receives
  std::uint64_t types_freed = 0;  ///< datatype::types_freed() when it was made
  peer::Contribution contribution{};
  Memory sent{}, received{};
  peer::PublishedBlocks blocks{};
  std::vector<NamedLayout> named{};

  /// The moves of the latest call, if there was one; null otherwise.
  std::shared_ptr<const Moves> moves() const;
  void keep(std::shared_ptr<const Moves> moves) const;
  /// Whether the block may be shared: unless memory was not reached when it was.
  bool shares() const { return shares_.load(std::memory_order_relaxed); }
  void set_shares(bool may) const { shares_.store(may, std::memory_order_relaxed); }

 private:
  mutable std::atomic<bool> shares_{true};
  mutable Mutex mutex_;
  mutable std::shared_ptr<const Moves> moves_ GUARDED_BY(mutex_);
};

/// The latest plans of a communicator, or of a persistent request. For the thread that makes its calls.
class ExchangePlans {
 public:
  /// The plan for these blocks; null if there is none, if a datatype has been freed since it was made, whose handle may
  /// be another's by now, or if the memory is not the same any more.
  std::shared_ptr<const ExchangePlan> find(const BlockMessages& blocks, std::int64_t least, device::Importers by);
  bool empty() const { return plans_.empty(); }
  /// Forgets the oldest plan if there are too many.
  void add(std::shared_ptr<const ExchangePlan> plan);

 private:
  std::vector<std::shared_ptr<const ExchangePlan>> plans_;  ///< the latest one last
};

}  // namespace gpudt::interpose
