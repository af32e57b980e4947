// The bodies of kernels for Method::runs: a warp moves 32 equal short runs, each thread one, and shifts them in shared
// memory so that the packed side is accessed in whole words.
#pragma once

#include <cstdint>

#include "device/kernels/kernel_body.hpp"

namespace gpudt::device {

constexpr int lanes = 32;             ///< threads of a warp: each moves one run of a group
constexpr int shortest_lane_run = 3;  ///< so that an aligned word touches at most two runs
constexpr int longest_lane_run = 32;
constexpr int longest_list_run = 13;  ///< between two lists: longer ones are gathered, in 0.8 to 0.9 of the time
constexpr int lane_words = longest_lane_run / 4;
constexpr int few_lane_words = 5;  ///< shorter runs have a kernel of their own, with less to unroll
/// Words of shared memory per warp: a group of the longest runs, and what shifting reads beyond.
constexpr int group_words = lanes * lane_words + 4;

/// The whole runs of a range in groups of 32, of which the last may have fewer. The first group begins at a multiple of
/// 32 runs, so that its packed side is 16-byte aligned if position 0 is. All positions fit 32 bits.
struct GroupRange {
  std::int32_t first;                 ///< group
  std::int32_t runs_end;              ///< one past the last run; at most 32 * first: there is none
  std::int64_t head_end, tail_begin;  ///< positions: [begin, head_end) and [tail_begin, end) are not in groups
};

template <class Map>
GPUDT_HD GroupRange whole_groups(const Job<Map>& job) {
  const auto run = static_cast<std::uint32_t>(job.map.run_bytes), bytes = run * lanes;
  const auto first = static_cast<std::int32_t>((static_cast<std::uint32_t>(job.begin) + bytes - 1) / bytes);
  const auto runs_end = static_cast<std::int32_t>(static_cast<std::uint32_t>(job.end) / run);
  if (first * lanes >= runs_end) return {first, first * lanes, job.end, job.end};
  return {first, runs_end, static_cast<std::int64_t>(first) * bytes, static_cast<std::int64_t>(runs_end) * run};
}

/// The widest access, 1, 4 or 8 bytes, for which all addresses that are or-ed into `bits` are aligned.
GPUDT_HD int access_width(std::uint32_t bits) {
  return (bits & 3) != 0 ? 1 : (bits & 4) != 0 ? 4 : 8;
}

/// Loads one run of `bytes`, at most 4 * (size - 1), at `address` into x, with accesses of at most `word` bytes, which
/// the address allows.
template <int size, class Memory>
GPUDT_HD void load_run(const Memory& memory, Address address, int bytes, int word, std::uint32_t (&x)[size]) {
  const int full = bytes >> 2;
  GPUDT_UNROLL
  for (int i = 0; i < size; ++i) x[i] = 0;
  if (word >= 4) {
    GPUDT_UNROLL
    for (int i = 0; i < size - 1; i += 2) {
      const Address from = address + 4 * static_cast<Address>(i);
      if (word >= 8 && i + 1 < full) {
        const auto pair = memory.template load<std::uint64_t>(from);
        x[i] = static_cast<std::uint32_t>(pair);
        x[i + 1] = static_cast<std::uint32_t>(pair >> 32);
      } else {
        if (i < full) x[i] = memory.template load<std::uint32_t>(from);
        if (i + 1 < full) x[i + 1] = memory.template load<std::uint32_t>(from + 4);
      }
    }
    std::uint32_t tail = 0;
    const Address from = address + 4 * static_cast<Address>(full);
    if (bytes & 2) tail = memory.template load<std::uint16_t>(from);
    if (bytes & 1)
      tail |= static_cast<std::uint32_t>(memory.template load<std::uint8_t>(from + static_cast<Address>(bytes & 2)))
              << (8 * (bytes & 2));
    GPUDT_UNROLL
    for (int i = 0; i < size - 1; ++i) x[i] = i == full ? tail : x[i];
    return;
  }
  GPUDT_UNROLL
  for (int i = 0; i < size - 1; ++i) {
    GPUDT_UNROLL
    for (int j = 0; j < 4; ++j)
      if (4 * i + j < bytes)
        x[i] |=
            static_cast<std::uint32_t>(memory.template load<std::uint8_t>(address + static_cast<Address>(4 * i + j)))
            << (8 * j);
  }
}

template <int size, class Memory>
GPUDT_HD void store_run(const Memory& memory, Address address, int bytes, int word, const std::uint32_t (&x)[size]) {
  const int full = bytes >> 2;
  if (word >= 4) {
    std::uint32_t tail = 0;
    GPUDT_UNROLL
    for (int i = 0; i < size - 1; i += 2) {
      const Address to = address + 4 * static_cast<Address>(i);
      if (word >= 8 && i + 1 < full) {
        memory.template store<std::uint64_t>(to, x[i] | (static_cast<std::uint64_t>(x[i + 1]) << 32));
      } else {
        if (i < full) memory.template store<std::uint32_t>(to, x[i]);
        if (i + 1 < full) memory.template store<std::uint32_t>(to + 4, x[i + 1]);
      }
      tail = i == full ? x[i] : i + 1 == full ? x[i + 1] : tail;
    }
    const Address to = address + 4 * static_cast<Address>(full);
    if (bytes & 2) memory.template store<std::uint16_t>(to, static_cast<std::uint16_t>(tail));
    if (bytes & 1)
      memory.template store<std::uint8_t>(to + static_cast<Address>(bytes & 2),
                                          static_cast<std::uint8_t>(tail >> (8 * (bytes & 2))));
    return;
  }
  GPUDT_UNROLL
  for (int i = 0; i < size - 1; ++i) {
    GPUDT_UNROLL
    for (int j = 0; j < 4; ++j)
      if (4 * i + j < bytes)
        memory.template store<std::uint8_t>(address + static_cast<Address>(4 * i + j),
                                            static_cast<std::uint8_t>(x[i] >> (8 * j)));
  }
}

/// Pack: writes the aligned words that begin in this lane's run to the group's packed image. `next` is the first
/// word of the next lane's run (any value for the last lane: what it adds lies beyond the group).
template <int size>
GPUDT_HD void run_to_image(int lane, int bytes, std::uint32_t (&x)[size], std::uint32_t next, std::uint32_t* image) {
  const int full = bytes >> 2;
  const auto tail_bits = static_cast<std::uint32_t>(8 * (bytes & 3));
  const std::uint32_t rest = tail_bits == 0 ? 0u : next >> (32 - tail_bits);
  GPUDT_UNROLL
  for (int i = 0; i < size; ++i) {
    const std::uint32_t joined = x[i] | (next << tail_bits);  // without a tail, x[full] is 0
    x[i] = i == full ? joined : i == full + 1 ? rest : x[i];
  }
  const int begin = lane * bytes;
  const int first = (begin + 3) >> 2, count = ((begin + bytes + 3) >> 2) - first;
  const auto bits = static_cast<std::uint32_t>(8 * (4 * first - begin));
  GPUDT_UNROLL
  for (int i = 0; i < size - 1; ++i)
    if (i < count) image[first + i] = funnel_right(x[i], x[i + 1], bits);
}

/// Unpack: this lane's run out of the group's packed image. Bits beyond the run are whatever follows it.
template <int size>
GPUDT_HD void run_from_image(int lane, int bytes, const std::uint32_t* image, std::uint32_t (&x)[size]) {
  const int begin = lane * bytes;
  const int first = begin >> 2, count = (bytes + 3) >> 2;
  const auto bits = static_cast<std::uint32_t>(8 * (begin & 3));
  std::uint32_t low = image[first];
  GPUDT_UNROLL
  for (int i = 0; i < size - 1; ++i) {
    if (i < count) {
      const std::uint32_t high = image[first + i + 1];
      x[i] = funnel_right(low, high, bits);
      low = high;
    }
  }
}

/// Where a run begins.
template <class Map>
GPUDT_HD Address run_address(const Job<Map>& job, std::int32_t index) {
  return job.user + static_cast<Address>(job.map.run_offset(static_cast<typename Map::Index>(index)));
}

}  // namespace gpudt::device
