// How launches are laid out: what plan.cpp makes its choices with, by the compute capability of the GPU. All values are
// measured; what the kernels themselves are compiled with (block_threads, registers) is in kernel_body.hpp and cuda/.
#pragma once

#include <cstdint>
#include <iterator>

namespace gpudt::device {

/// Thread blocks per multiprocessor of kernels that read the memory of several GPUs: many words must be under way.
inline constexpr int blocks_for_several_gpus = 8;

struct LaunchPolicy {
  /// What one thread block moves at most, with one word, or one thread of an entry, per thread. It needs no counter and
  /// has the lowest latency.
  struct SingleBlock {
    std::int64_t words = 1024;
    std::int64_t gather_words = 256;
    std::int64_t entry_threads = 512;
  } single_block;

  /// Blocks of block_threads threads per multiprocessor, on data in GPUs' memory.
  struct Blocks {
    int all = 4;  ///< as many as every kernel's registers allow to be resident
    /// Lists wait twice, for the displacement and for the data: more warps hide it, even if not all are resident at
    /// once. Not if their runs are moved through shared memory: more warps then read from too many places at once.
    int list = 8;
    /// Runs that are unpacked through shared memory are better moved in short steps.
    int unpacked_runs = 6, unpacked_runs_threads = 128;
    /// Maximum number of blocks in all, so large that no block loops: for short runs that are written to GPUs' memory,
    /// and for lists of equal runs moved within this GPU's.
    int passing = 1 << 20;
  } blocks;

  /// To and from the host.
  struct Host {
    /// Bytes that thread blocks keep in flight to saturate the link (50 GB/s over some microseconds).
    int bytes_in_flight = 256 << 10;
    /// Factors of the number of thread blocks where each byte costs more waiting: lists, runs through shared memory.
    int list_factor = 4, runs_factor = 3;
    int general_blocks = 2;  ///< per multiprocessor
    /// Consecutive rounds of a block, which share one search of the list. Blocks that write far apart slow the link by
    /// 1 %.
    std::int32_t list_rounds = 1;
  } host;
  std::int32_t list_rounds = 16;  ///< Host::list_rounds for data in GPUs' memory

  /// Irregular lists are divided by their runs if none is longer than `unevenness` times the mean, nor than that number
  /// of words for each of 2^most_threads_log threads, so that no thread loops long alone. Not for large messages to or
  /// from the host, where whole segments count for more than the search.
  struct Entries {
    std::int64_t unevenness = 16;
    std::int64_t most_host_bytes = 256 << 10;
    int most_threads_log = 5;
    int most_blocks = 1 << 20;  ///< so that 32 bits number their threads
  } entries;

  struct Words {
    /// Where only words of 1 byte are possible: messages of at most narrow_bytes in runs shorter than narrow_run are
    /// moved in words, with the most threads and the least time for one word; otherwise runs are gathered.
    std::int64_t narrow_bytes = 1024;
    std::int64_t narrow_run = 16;
  } words;

  struct Caches {
    /// Messages of at least this many packed bytes are taken not to fit the caches. Packing reads scattered data once,
    /// which must not evict the lists; unpacked data must not evict the packed ones. Beyond the second limit nothing is
    /// kept in the caches, except partial sectors at random places, which gain a quarter by it at any length.
    std::int64_t streaming_bytes = std::int64_t{8} << 20;
    std::int64_t all_streaming_bytes = std::int64_t{24} << 20;
    /// Transfers of at least this length within this GPU's memory exceed its caches. Then one thread for each word is
    /// faster than threads that loop, because these drift apart: blocks start and end in the order of memory, so that a
    /// page of memory is opened once. (To pack a list it is faster if each thread looks up several displacements.) A
    /// fence and a count for each block would cost what that gains, so the stream sets the flag behind the kernel.
    std::int64_t beyond_bytes = std::int64_t{48} << 20;
  } caches;

  /// Kernels with a thread for each word.
  struct ThreadPerWord {
    int threads = 512, short_run_threads = 1024;  ///< of a block; more where many short runs are read
    std::int64_t short_run = 128;
  } thread_per_word;

  /// For kernels of several blocks that move at least this many bytes within this GPU's memory the stream sets the flag
  /// too: the last block's fences would take 0.3 to 1 us longer.
  std::int64_t flag_behind_bytes = 256 << 10;

  /// Longer jobs with the point-based traversal are not batched: a kernel for lists is faster, even by itself.
  std::int64_t most_general_batch_bytes = 64 << 10;

  /// Jobs of the persistent kernel (resident_body.hpp): up to what length its first thread block does them alone, and
  /// up to what length together with the others; longer ones are launched. A word is the widest, of 4 to 16 bytes, that
  /// the addresses allow. The limits are lower for lists and for more than batch_dims nested strides (traversed). Jobs
  /// that move pieces of 16 bytes instead of words gain nothing by more blocks.
  struct Persistent {
    std::int64_t most_words = 1024, most_traversed_words = 256, most_pieces = 128;
    std::int64_t most_words_together = 16 << 10, most_traversed_words_together = 2048;
    std::int64_t most_bytes = 128 << 10;     ///< from there on copy engines are as fast
    std::int64_t most_reduced_words = 1024;  ///< of each block, also where they share a reduction
    /// Rounds of four words per thread, for the blocks that a collective copies.
    std::int64_t most_copy_rounds = 2;
  } persistent;
};

struct CapabilityPolicy {
  int least_capability;  ///< ten times the major number, and the minor one
  LaunchPolicy policy;
};

/// By capability, ascending. An architecture gets a row when values measured on it differ from the row before.
inline constexpr CapabilityPolicy launch_policies[] = {
    {0, {}},  // measured on 9.0
};

/// The policy for Traits::capability; 0: the simulated device.
constexpr const LaunchPolicy& launch_policy(int capability = 0) {
  const CapabilityPolicy* found = std::begin(launch_policies);
  for (const CapabilityPolicy& each : launch_policies)
    if (each.least_capability <= capability) found = &each;
  return found->policy;
}

}  // namespace gpudt::device
