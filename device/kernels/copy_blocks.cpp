#include "device/kernels/copy_blocks.hpp"

#include <algorithm>

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

}  // namespace gpudt::device
