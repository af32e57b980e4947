// The body of the kernel that copies blocks (copy_blocks.hpp), written once as host and device inline functions:
// cuda/copy_blocks_kernel.cu runs it on GPU threads, copy_blocks_on_host() serially on the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "device/kernels/copy_blocks.hpp"
#include "device/kernels/kernel_args.hpp"
#include "device/kernels/kernel_body.hpp"

namespace gpudt::device {

/// The arguments of the kernel. Blocks are divided into pieces; a thread block, or a warp, copies one piece at a time.
struct CopyBlocksArgs {
  Address from[most_block_copies];
  Address to[most_block_copies];
  std::int64_t bytes[most_block_copies];
  std::int64_t first_piece[most_block_copies + 1];  ///< of each block; the last entry is the number of all pieces
  std::int32_t count;
  std::int32_t by_warps;     ///< each warp of the only thread block copies a piece
  std::int64_t piece_bytes;  ///< of a whole piece
  std::int32_t grid, block;
  Completion completion;
};

inline constexpr std::int64_t copy_piece_bytes = 16 << 10;
/// The length of a warp's piece: four words of 16 bytes for each thread.
inline constexpr std::int64_t warp_piece_bytes = 2 << 10;
/// Maximum number of warps in a thread block of the kernel.
inline constexpr std::int32_t most_copy_warps = 32;
inline constexpr std::int32_t warp_threads = 32;

/// Copies of few short blocks, among which the warps of the persistent kernel are divided (resident_body.hpp).
struct ShortCopies {
  static constexpr std::size_t most = 14;
  Address from[most];
  Address to[most];
  std::uint32_t bytes[most];
  std::int32_t count;
  std::int32_t blocks;  ///< thread blocks of the kernel that do it
  Completion completion;
};

/// Returns the arguments, without the completion, for a GPU with that number of multiprocessors.
CopyBlocksArgs plan_block_copies(std::span<const BlockCopy> copies, int multiprocessors);

/// The copies for the persistent kernel, of `warps` warps in each thread block, without the completion; none if that
/// does not suit.
std::optional<ShortCopies> shortened(std::span<const BlockCopy> copies, std::int32_t warps,
                                     const LaunchPolicy& policy = launch_policy());
/// The arguments of a launch that does the same.
CopyBlocksArgs lengthened(const ShortCopies& copies, int multiprocessors);

/// Number of warps, of `warps`, that copy a block together.
GPUDT_HD std::int32_t warps_per_block(std::int32_t warps, std::int32_t blocks) {
  return blocks < warps ? warps / blocks : 1;
}

/// Threads first, first + step, ... of a piece.
struct PieceThread {
  std::int64_t first, step;
};

/// Loads that a thread has in flight.
inline constexpr int copied_at_once = 4;

/// Copies whole words and returns their number of bytes.
template <class Word, class Memory>
GPUDT_HD std::int64_t copy_words(const Memory& memory, Address from, Address to, std::int64_t bytes,
                                 const PieceThread& thread) {
  const std::int64_t words = bytes / static_cast<std::int64_t>(sizeof(Word));
  for (std::int64_t begin = thread.first; begin < words; begin += copied_at_once * thread.step) {
    Word word[copied_at_once] = {};
    for (int i = 0; i < copied_at_once; ++i)
      if (const std::int64_t at = begin + i * thread.step; at < words)
        word[i] = memory.template load<Word>(from + static_cast<Address>(at) * sizeof(Word));
    for (int i = 0; i < copied_at_once; ++i)
      if (const std::int64_t at = begin + i * thread.step; at < words)
        memory.template store<Word>(to + static_cast<Address>(at) * sizeof(Word), word[i]);
  }
  return words * static_cast<std::int64_t>(sizeof(Word));
}

/// Copies in the widest words for which both addresses are aligned, and the rest byte by byte.
template <class Memory>
GPUDT_HD void copy_bytes(const Memory& memory, Address from, Address to, std::int64_t bytes,
                         const PieceThread& thread) {
  const Address alignment = from | to;
  std::int64_t copied = 0;
  if (alignment % sizeof(Word16) == 0)
    copied = copy_words<Word16>(memory, from, to, bytes, thread);
  else if (alignment % sizeof(std::uint64_t) == 0)
    copied = copy_words<std::uint64_t>(memory, from, to, bytes, thread);
  else if (alignment % sizeof(std::uint32_t) == 0)
    copied = copy_words<std::uint32_t>(memory, from, to, bytes, thread);
  copy_words<unsigned char>(memory, from + static_cast<Address>(copied), to + static_cast<Address>(copied),
                            bytes - copied, thread);
}

template <class Memory>
GPUDT_HD void copy_piece(const CopyBlocksArgs& args, std::int64_t piece, const Memory& memory,
                         const PieceThread& thread) {
  int block = 0;
  while (block + 1 < args.count && args.first_piece[block + 1] <= piece) ++block;
  const std::int64_t begin = (piece - args.first_piece[block]) * args.piece_bytes;
  const std::int64_t left = args.bytes[block] - begin, bytes = left < args.piece_bytes ? left : args.piece_bytes;
  copy_bytes(memory, args.from[block] + static_cast<Address>(begin), args.to[block] + static_cast<Address>(begin),
             bytes, thread);
}

/// What thread `thread` of `warps` warps copies of short blocks.
template <class Memory>
GPUDT_HD void copy_short_blocks(const ShortCopies& copies, const Memory& memory, std::int32_t thread,
                                std::int32_t warps) {
  const std::int32_t together = warps_per_block(warps, copies.count), threads = together * warp_threads;
  for (std::int32_t i = thread / threads; i < copies.count; i += warps / together)
    copy_bytes(memory, copies.from[i], copies.to[i], copies.bytes[i], {thread % threads, threads});
}

/// Does the whole launch serially on the host.
template <class Memory>
void copy_blocks_on_host(const CopyBlocksArgs& args, const Memory& memory) {
  for (std::int64_t piece = 0; piece < args.first_piece[args.count]; ++piece) copy_piece(args, piece, memory, {0, 1});
}
template <class Memory>
void copy_blocks_on_host(const ShortCopies& copies, std::int32_t warps, const Memory& memory) {
  for (std::int32_t thread = 0; thread < warps * warp_threads; ++thread)
    copy_short_blocks(copies, memory, thread, warps);
}

}  // namespace gpudt::device
