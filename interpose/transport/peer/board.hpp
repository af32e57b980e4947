// What processes of one node tell each other of collectives, in memory that they share (collectives/board_group.hpp):
// each has a record for every communicator whose collectives are asked about, and a board with it as soon as it has
// data for GPUs in one of them.
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

/// Call i is in slot i % slot_count; if another one is there, the process has told that call i cannot be done by GPUs.
struct alignas(4096) Board {
  Slot slots[slot_count];

  Slot& slot_of(std::uint64_t call) { return slots[call % slot_count]; }
};

/// Communicators of a process that use boards at a time.
inline constexpr int board_count = 64;

/// The calls of a process on one communicator, or its starts of one persistent request, numbered from 1 on. Others find
/// the record by its key, which all processes of the communicator know alike.
struct alignas(64) CallRecord {
  std::atomic<std::uint64_t> key;       ///< 0: nobody's
  std::atomic<std::uint64_t> told;      ///< the latest call that the process has told of, or declined
  std::atomic<std::uint64_t> left;      ///< of this call, and those before, it reads nothing more
  std::atomic<std::int32_t> board;      ///< negative: all calls so far have been declined
  std::atomic<std::uint32_t> departed;  ///< so many other processes read the record and the board no more
  std::uint64_t serial;                 ///< of all records of the process
};
/// As the latest call: all that may come are declined.
inline constexpr std::uint64_t all_calls = ~std::uint64_t{0};

/// Records of a process at a time.
inline constexpr std::uint32_t record_count = 4096;
/// That get memory together.
inline constexpr std::uint32_t records_at_a_time = 64;

}  // namespace gpudt::interpose::peer
