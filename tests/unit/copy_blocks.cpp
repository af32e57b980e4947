// Copies of blocks as the kernel does them (device/kernels/copy_blocks_body.hpp), on the host.
#include <cstring>
#include <optional>
#include <random>
#include <vector>

#include "device/kernels/copy_blocks_body.hpp"
#include "device/kernels/kernel_host.hpp"
#include "tests/support/catch.hpp"

using namespace gpudt::device;

namespace {

constexpr std::size_t room = 200000;
constexpr char untouched = 0x5a;

/// Blocks one behind the other, each `gap` bytes from the next, from `skew` bytes behind an aligned address.
void check(const std::vector<std::int64_t>& lengths, std::size_t from_skew, std::size_t to_skew, std::size_t gap) {
  alignas(16) static char from[room], to[room], expected[room];
  for (std::size_t i = 0; i < room; ++i) from[i] = static_cast<char>(i * 7 + i / 251);
  std::memset(to, untouched, room);
  std::memset(expected, untouched, room);
  std::vector<BlockCopy> copies;
  std::size_t at_from = from_skew, at_to = to_skew;
  for (const std::int64_t length : lengths) {
    copies.push_back({from + at_from, to + at_to, length});
    std::memcpy(expected + at_to, from + at_from, static_cast<std::size_t>(length));
    at_from += static_cast<std::size_t>(length) + gap;
    at_to += static_cast<std::size_t>(length) + gap;
  }
  const CopyBlocksArgs args = plan_block_copies(copies, 4);
  const auto same = [](const void* address) { return const_cast<void*>(address); };
  const HostMemory<decltype(same)> memory{same};
  copy_blocks_on_host(args, memory);
  CHECK(std::memcmp(to, expected, room) == 0);
  constexpr std::int32_t warps = 8;
  const std::optional<ShortCopies> job = shortened(copies, warps);
  if (!job) return;
  for (std::int32_t blocks = 1; blocks <= job->blocks; ++blocks) {  // those that have begun
    std::memset(to, untouched, room);
    copy_blocks_on_host(*job, blocks * warps, memory);
    CHECK(std::memcmp(to, expected, room) == 0);
  }
  std::memset(to, untouched, room);
  copy_blocks_on_host(lengthened(*job, 4), memory);
  CHECK(std::memcmp(to, expected, room) == 0);
}

/// With how many thread blocks the persistent kernel copies blocks of these lengths, `skew` bytes behind aligned
/// addresses; 0: not.
int resident_blocks_of(const std::vector<std::int64_t>& lengths, std::size_t skew = 0) {
  alignas(16) static char memory[32];
  std::vector<BlockCopy> copies;
  for (const std::int64_t length : lengths) copies.push_back({memory, memory + skew, length});
  const std::optional<ShortCopies> job = shortened(copies, 8);
  return job ? job->blocks : 0;
}

}  // namespace

TEST_CASE("blocks are copied, and nothing else", "[kernel][copy-blocks]") {
  const std::vector<std::vector<std::int64_t>> all_lengths = {{0},
                                                              {1},
                                                              {15},
                                                              {16},
                                                              {warp_piece_bytes - 1, warp_piece_bytes + 1},
                                                              {most_copy_warps * warp_piece_bytes},
                                                              {most_copy_warps * warp_piece_bytes, 1},
                                                              {copy_piece_bytes},
                                                              {copy_piece_bytes + 1},
                                                              {0, 3, 0, 100, 0},
                                                              {copy_piece_bytes - 1, 2 * copy_piece_bytes + 17, 5}};
  for (const auto& lengths : all_lengths)
    for (const std::size_t from_skew : {0, 1, 4, 8})
      for (const std::size_t to_skew : {0, 2, 4, 8})
        for (const std::size_t gap : {0, 16, 24}) {
          INFO(lengths.size() << " blocks, skews " << from_skew << " and " << to_skew << ", gap " << gap);
          check(lengths, from_skew, to_skew, gap);
        }
}

TEST_CASE("which copies are short", "[kernel][copy-blocks]") {
  constexpr int all = 8;
  CHECK(resident_blocks_of({32 << 10}) == 1);
  CHECK(resident_blocks_of({(32 << 10) + 1}) == all);
  CHECK(resident_blocks_of({all * (32 << 10)}) == all);
  CHECK(resident_blocks_of({all * (32 << 10) + 1}) == 0);
  CHECK(resident_blocks_of({16 << 10, 8}) == 1);
  CHECK(resident_blocks_of({(16 << 10) + 1, 8}) == all);
  CHECK(resident_blocks_of({1 << 10, 8}, 1) == 1);
  CHECK(resident_blocks_of({2 << 10, 8}, 1) == all);
  CHECK(resident_blocks_of(std::vector<std::int64_t>(14, 2 << 10)) == 1);
  CHECK(resident_blocks_of(std::vector<std::int64_t>(14, 3 << 10)) == all);
  CHECK(resident_blocks_of(std::vector<std::int64_t>(15, 8)) == 0);
}

TEST_CASE("as many blocks as a kernel takes, of random lengths", "[kernel][copy-blocks]") {
  std::mt19937 random(20240229);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::int64_t> lengths(most_block_copies);
    for (std::int64_t& length : lengths) length = random() % 2000;
    check(lengths, random() % 17, random() % 17, random() % 40);
  }
}
