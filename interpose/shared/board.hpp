// What processes of one node publish about collectives, in shared memory (collectives/board_group.hpp). A process has a
// record for each communicator whose collectives GPUs may do, and a board for it as soon as it has data for GPUs in one
// of them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "device/device.hpp"

namespace gpudt::interpose::peer {

/// A process's part of one collective. Addresses are those of its own address space.
struct Contribution {
  std::uint32_t fit;           ///< 1: the process's data are suitable. If 0, the rest is unused in a reduction
  std::uint32_t operation;     ///< reduction: operator, element and result (device::Reduction), the same in all
                               ///< processes
  std::int32_t root;           ///< reduction: the only process that receives something; negative: all do
  std::uint32_t on_gpu;        ///< exchange: 1 if kernels can move the data, which `from`, `to` and the blocks describe
  std::int64_t bytes;          ///< reduction: of the input; exchange: the weight of messages (peer_exchange.cpp)
  std::uint64_t from_address;  ///< in `from`
  std::uint64_t to_address;    ///< in `to`; 0: the process receives nothing
  std::int32_t given, taken;   ///< exchange: number of blocks sent and received
  unsigned char gpu[16];       ///< device::turn_of() of the data
  std::uint64_t content;       ///< exchange: a number of its own for each list of blocks with layouts; 0: none
  std::uint64_t shares;        ///< exchange: 1 if it is repeated, and memory was reached when its block was shared
  device::Exported from, to;
};

static_assert(std::has_unique_object_representations_v<Contribution>);  // it is compared as bytes

/// Names a layout for other processes, by the number that its process has given it, so that they read it only once.
struct LayoutName {
  std::int64_t bytes = 0;  ///< of the serialised layout; 0: the data are contiguous
  std::uint64_t number = 0;
  std::int32_t slot = -1;  ///< the slot of that process's segment with the layout; negative if it lies beside the name
  bool operator==(const LayoutName&) const = default;
};

/// What a process sends to process `rank` of the communicator, or receives from it.
struct Block {
  std::int32_t rank = 0;
  std::int32_t layout_at = 0;  ///< of a layout without a slot: its place in the layouts of the call
  std::int64_t bytes = 0;
  std::int64_t count = 0;     ///< elements of the layout
  std::uint64_t address = 0;  ///< the buffer, or for contiguous data their first byte
  LayoutName layout;
};
/// The blocks of one call of a process.
struct PublishedBlocks {
  std::vector<Block> given{}, taken{};
  std::vector<std::byte> layouts{};  ///< of these blocks, serialised
};
/// Maximum number of blocks that a process sends, and that it receives, in one call.
inline constexpr std::size_t most_blocks = 64;
struct Blocks {
  Block given[most_blocks], taken[most_blocks];
};
/// Room for the layouts of one call that have no slots: one of a subarray in three dimensions takes 496 bytes.
inline constexpr std::size_t block_layouts = 64 << 10;

/// What a process publishes about one call, and how far it is. It stays until all processes have left the call. An
/// outcome is twice the number of the call, plus 1 if it has failed.
struct alignas(64) Slot {
  std::atomic<std::uint64_t> call;    ///< its number
  std::atomic<std::uint64_t> mapped;  ///< outcome: the leader has mapped all buffers that it needs
  std::atomic<std::uint64_t> done;    ///< outcome: the leader's kernels have ended
  Contribution contribution;
  Blocks blocks;

  static constexpr std::uint64_t outcome(std::uint64_t call, bool failed) { return 2 * call + (failed ? 1 : 0); }
  /// Whether `outcome` is that of call `call`, or of a later one.
  static constexpr bool has(std::uint64_t outcome, std::uint64_t call) { return outcome >= 2 * call; }
};

/// Number of calls that a process can have published at a time.
inline constexpr std::size_t slot_count = 16;

/// Call i is in slot i % slot_count. If the slot has another call, the process has declined call i.
struct alignas(4096) Board {
  Slot slots[slot_count];
  alignas(4096) std::byte layouts[slot_count][block_layouts];  ///< made one by one, as far as they are needed

  Slot& slot_of(std::uint64_t call) { return slots[call % slot_count]; }
  std::byte (&layouts_of(std::uint64_t call))[block_layouts] { return layouts[call % slot_count]; }
};

inline constexpr int board_count = 64;

/// The calls of a process on one communicator, or its starts of one persistent request, numbered from 1 on. Others find
/// the record by its key, which all processes of the communicator compute.
struct alignas(64) CallRecord {
  std::atomic<std::uint64_t> key;       ///< 0: unused
  std::atomic<std::uint64_t> told;      ///< the latest call that the process has published or declined
  std::atomic<std::uint64_t> left;      ///< the process reads nothing more of this call and those before
  std::atomic<std::int32_t> board;      ///< negative: all calls up to now have been declined
  std::atomic<std::uint32_t> departed;  ///< number of other processes that no longer read the record and the board
  std::uint64_t serial;                 ///< counts all records of the process
};
/// A value of CallRecord::told: all further calls are declined.
inline constexpr std::uint64_t all_calls = ~std::uint64_t{0};

inline constexpr std::uint32_t record_count = 4096;
/// Number of records that get memory together.
inline constexpr std::uint32_t records_at_a_time = 64;

}  // namespace gpudt::interpose::peer
