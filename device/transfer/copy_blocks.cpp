#include "device/kernels/copy_blocks.hpp"

#include <algorithm>

#include "device/kernels/copy_blocks_body.hpp"
#include "device/timeline.hpp"
#include "device/transfer/engine.hpp"

namespace gpudt::device {
namespace {

constexpr int threads = 256;
/// Thread blocks of so many threads per multiprocessor: reading another GPU's memory takes many words under way.
constexpr int blocks_per_multiprocessor = 8;

Address address_of(const void* address) {
  return static_cast<Address>(reinterpret_cast<std::uintptr_t>(address));
}

/// Into pieces of so many bytes, the last one of each block perhaps shorter.
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
  // Several thread blocks would have to tell each other of their ends, which takes some 2 us.
  divide(args, warp_piece_bytes);
  if (const std::int64_t pieces = args.first_piece[args.count]; pieces <= most_copy_warps) {
    args.by_warps = args.grid = 1;
    args.block = warp_threads * static_cast<std::int32_t>(std::max(pieces, std::int64_t{1}));
    return args;
  }
  divide(args, copy_piece_bytes);
  const std::int64_t most = std::int64_t{multiprocessors} * blocks_per_multiprocessor;
  args.block = threads;
  args.grid = static_cast<std::int32_t>(std::min(args.first_piece[args.count], most));
  return args;
}

Transfer Engine::copy_blocks(int ordinal, std::span<const BlockCopy> copies) {
  if (copies.empty() || copies.size() > most_block_copies)
    throw Error(Failure::runtime, "more blocks, or less, than a kernel copies");
  Gpu& here = gpu(ordinal);
  CopyBlocksArgs args = plan_block_copies(copies, here.traits.multiprocessors);
  return start_alone(here, args);
}

}  // namespace gpudt::device
