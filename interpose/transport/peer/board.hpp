// What processes of one node tell each other of a collective, in memory that they share: one board of each for each
// communicator whose collectives use boards (collectives/board_group.hpp).
#pragma once

#include <atomic>
#include <cstdint>

#include "device/device.hpp"

namespace gpudt::interpose::peer {

/// What a process has to do with one reduction. Addresses are those of its own address space.
struct Contribution {
  std::uint32_t fit;        ///< 1: its data are as `from` and `to` say; 0: GPUs cannot do it, the rest means nothing
  std::uint32_t operation;  ///< operator, element and result (device::Reduction), the same in all processes
  std::int32_t root;        ///< that alone gets something; negative: all do
  std::int32_t reserved;
  std::int64_t bytes;          ///< of its input
  std::uint64_t from_address;  ///< in `from`
  std::uint64_t to_address;    ///< in `to`; 0: it gets nothing
  device::Exported from, to;
};

/// Calls are numbered; a number without an outcome is twice that, and with an outcome 1 more if it has failed. What is
/// told of a call stays until all have told something of the next one but one.
struct alignas(64) Board {
  std::atomic<std::uint64_t> told;    ///< the latest call of which `contributions` tells
  std::atomic<std::uint64_t> read;    ///< the latest call of which this process has read everybody's contribution
  std::atomic<std::uint64_t> mapped;  ///< outcome: this process's GPU reaches what it needs
  std::atomic<std::uint64_t> done;    ///< outcome: what this process's GPU does has been done
  alignas(64) Contribution contributions[2];  ///< by the call's number

  static constexpr std::uint64_t outcome(std::uint64_t call, bool failed) { return 2 * call + (failed ? 1 : 0); }
  /// Of a call that one of the two has had an outcome of, or later.
  static constexpr bool has(std::uint64_t outcome, std::uint64_t call) { return outcome >= 2 * call; }
};

/// Communicators of a process that use boards at a time.
inline constexpr int board_count = 128;

}  // namespace gpudt::interpose::peer
