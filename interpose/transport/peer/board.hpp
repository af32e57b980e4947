// What processes of one node tell each other of collectives, in memory that they share: one board of each for each
// communicator whose collectives use boards (collectives/board_group.hpp).
#pragma once

#include <atomic>
#include <cstdint>

#include "device/device.hpp"

namespace gpudt::interpose::peer {

/// What a process has to do with one collective. Addresses are those of its own address space.
struct Contribution {
  std::uint32_t fit;           ///< 1: it could be so; 0: it cannot. Else of a reduction the rest means nothing
  std::uint32_t operation;     ///< of a reduction operator, element and result (device::Reduction), the same in all
                               ///< processes
  std::int32_t root;           ///< of a reduction: that alone gets something; negative: all do
  std::uint32_t on_gpu;        ///< of an exchange, 1: its data are as `from`, `to` and `blocks` say
  std::int64_t bytes;          ///< of a reduction's input; of an exchange what messages are worth (peer_exchange.cpp)
  std::uint64_t from_address;  ///< in `from`
  std::uint64_t to_address;    ///< in `to`; 0: it gets nothing
  std::int32_t given, taken;   ///< of an exchange: how many blocks
  unsigned char gpu[16];       ///< the UUID of the GPU that its data are on
  device::Exported from, to;
};

/// Bytes in a row that a process gives to process `rank` of the communicator, or takes from it.
struct Block {
  std::int64_t rank;
  std::int64_t bytes;
  std::uint64_t address;
};
/// That a process tells of for one call, given and taken.
inline constexpr std::size_t most_blocks = 64;
struct Blocks {
  Block given[most_blocks], taken[most_blocks];
};

/// What a process tells of one call, and how far it is with it. It stays until all have left the call. An outcome is
/// twice the number of the call, and 1 more if it has failed.
struct alignas(64) Slot {
  std::atomic<std::uint64_t> call;    ///< its number
  std::atomic<std::uint64_t> mapped;  ///< outcome: this process's GPU reaches what it needs
  std::atomic<std::uint64_t> done;    ///< outcome: what this process's GPU does has been done
  Contribution contribution;
  Blocks blocks;

  static constexpr std::uint64_t outcome(std::uint64_t call, bool failed) { return 2 * call + (failed ? 1 : 0); }
  /// Of a call that has had an outcome.
  static constexpr bool has(std::uint64_t outcome, std::uint64_t call) { return outcome >= 2 * call; }
};

/// Calls that a process can tell of at a time.
inline constexpr std::size_t slot_count = 16;

/// A process numbers the calls that it tells of on this board, all communicators' that the board has served. Call i is
/// in slot i % slot_count; if another one is there, the process has told that call i cannot be done by GPUs.
struct alignas(4096) Board {
  std::atomic<std::uint64_t> told;  ///< the latest call that this process has told of
  std::atomic<std::uint64_t> left;  ///< of this call, and those before, it reads nothing more
  Slot slots[slot_count];

  Slot& slot_of(std::uint64_t call) { return slots[call % slot_count]; }
};

/// Communicators of a process that use boards at a time.
inline constexpr int board_count = 64;

}  // namespace gpudt::interpose::peer
