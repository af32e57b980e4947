#include "device/kernels/copy_blocks.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "device/kernels/copy_blocks_body.hpp"

namespace gpudt::device {
namespace {

/// Divides the blocks into pieces of `piece_bytes`; the last one of each block may be shorter.
void divide(CopyBlocksArgs& args, std::int64_t piece_bytes) {
  args.piece_bytes = piece_bytes;
  for (std::int32_t i = 0; i < args.count; ++i)
    args.first_piece[i + 1] = args.first_piece[i] + (args.bytes[i] + piece_bytes - 1) / piece_bytes;
}

}  // namespace

CopyBlocksArgs plan_block_copies(std::span<const BlockCopy> copies, int multiprocessors) {
  CopyBlocksArgs args = {};
  args.count = static_cast<std::int32_t>(copies.size());
  for (std::size_t i = 0; i < copies.size(); ++i) {
    args.from[i] = address_of(copies[i].from);
    args.to[i] = address_of(copies[i].to);
    args.bytes[i] = copies[i].bytes;
  }
  // Several thread blocks would have to count their ends, which takes some 2 us.
  divide(args, warp_piece_bytes);
  if (const std::int64_t pieces = args.first_piece[args.count]; pieces <= most_copy_warps) {
    args.by_warps = args.grid = 1;
    args.block = warp_threads * static_cast<std::int32_t>(std::max(pieces, std::int64_t{1}));
    return args;
  }
  divide(args, copy_piece_bytes);
  const std::int64_t most = std::int64_t{multiprocessors} * blocks_for_several_gpus;
  args.block = block_threads;
  args.grid = static_cast<std::int32_t>(std::min(args.first_piece[args.count], most));
  return args;
}

namespace {

/// Bytes of the words in which a block is copied.
std::int64_t copied_word(Address from, Address to) {
  for (const std::int64_t word : {16, 8, 4})
    if ((from | to) % static_cast<Address>(word) == 0) return word;
  return 1;
}

/// Whether so many warps copy each block in few rounds.
bool in_few_rounds(std::span<const BlockCopy> copies, std::int32_t warps, const LaunchPolicy& policy) {
  const auto count = static_cast<std::int32_t>(copies.size());
  const std::int32_t together = warps_per_block(warps, count), at_a_time = warps / together;
  const std::int64_t turns = (count + at_a_time - 1) / at_a_time;
  return std::all_of(copies.begin(), copies.end(), [&](const BlockCopy& copy) {
    const std::int64_t round = copied_word(address_of(copy.from), address_of(copy.to)) * copied_at_once * together;
    return turns * copy.bytes <= policy.persistent.most_copy_rounds * round * warp_threads;
  });
}

}  // namespace

std::optional<ShortCopies> shortened(std::span<const BlockCopy> copies, std::int32_t warps,
                                     const LaunchPolicy& policy) {
  if (copies.size() > ShortCopies::most) return std::nullopt;
  const bool alone = in_few_rounds(copies, warps, policy);
  if (!alone && !in_few_rounds(copies, warps * resident_blocks, policy)) return std::nullopt;
  std::optional<ShortCopies> job(std::in_place);
  job->count = static_cast<std::int32_t>(copies.size());
  job->blocks = alone ? 1 : resident_blocks;
  for (std::size_t i = 0; i < copies.size(); ++i) {
    job->from[i] = address_of(copies[i].from);
    job->to[i] = address_of(copies[i].to);
    job->bytes[i] = static_cast<std::uint32_t>(copies[i].bytes);
  }
  return job;
}

CopyBlocksArgs lengthened(const ShortCopies& copies, int multiprocessors) {
  std::array<BlockCopy, ShortCopies::most> blocks;
  for (std::int32_t i = 0; i < copies.count; ++i)
    blocks[static_cast<std::size_t>(i)] = {reinterpret_cast<const void*>(copies.from[i]),
                                           reinterpret_cast<void*>(copies.to[i]), copies.bytes[i]};
  return plan_block_copies(std::span(blocks).first(static_cast<std::size_t>(copies.count)), multiprocessors);
}

}  // namespace gpudt::device
