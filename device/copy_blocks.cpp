#include "device/copy_blocks.hpp"

#include <algorithm>

#include "device/copy_blocks_body.hpp"
#include "device/engine.hpp"
#include "device/timeline.hpp"

namespace gpudt::device {
namespace {

constexpr int threads = 256;
/// Thread blocks per multiprocessor: reading another GPU's memory takes many words under way.
constexpr int blocks_per_multiprocessor = 8;
/// No more than this in each block: warps copy them, since several thread blocks would have to tell each other of their
/// ends. It is four words of 16 bytes for each thread.
constexpr std::int64_t most_by_warps = 2 << 10;
/// ... and no more blocks than each warp can copy two of.
constexpr std::size_t most_blocks_by_warps = 16;

Address address_of(const void* address) {
  return static_cast<Address>(reinterpret_cast<std::uintptr_t>(address));
}

}  // namespace

CopyBlocksArgs plan_block_copies(std::span<const BlockCopy> copies, int multiprocessors) {
  CopyBlocksArgs args = {};
  args.count = static_cast<std::int32_t>(copies.size());
  for (std::size_t i = 0; i < copies.size(); ++i) {
    args.from[i] = address_of(copies[i].from);
    args.to[i] = address_of(copies[i].to);
    args.bytes[i] = copies[i].bytes;
    args.first_piece[i + 1] = args.first_piece[i] + (copies[i].bytes + copy_piece_bytes - 1) / copy_piece_bytes;
  }
  const auto is_short = [](const BlockCopy& copy) { return copy.bytes <= most_by_warps; };
  args.by_warps = copies.size() <= most_blocks_by_warps && std::all_of(copies.begin(), copies.end(), is_short) ? 1 : 0;
  const std::int64_t most = std::int64_t{multiprocessors} * blocks_per_multiprocessor;
  args.block = threads;
  args.grid = args.by_warps != 0
                  ? 1
                  : static_cast<std::int32_t>(std::clamp(args.first_piece[args.count], std::int64_t{1}, most));
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
