// How a thread block of `threads` threads moves a job of a batch (batch_body.hpp), alone or with others.
#pragma once

#include "device/cuda/kernel_parts.cuh"
#include "device/kernels/batch_body.hpp"

namespace gpudt::device::cuda {
namespace {

/// Moves the bytes before and behind the whole words, by one block.
__device__ __forceinline__ void move_ends(const BatchJob& job, const WordRange& range) {
  const DeviceMemory memory;
  const std::int64_t head = range.head_end - job.begin, tail = job.end - range.tail_begin;
  for (std::int64_t i = threadIdx.x; i < head + tail; i += blockDim.x)
    transfer_byte(job.pair, memory, i < head ? job.begin + i : range.tail_begin + (i - head));
}

template <class Word>
__device__ __forceinline__ void move_word(const BatchJob& job, unsigned unit) {
  const DeviceMemory memory;
  const PairPlace place = job.pair.place(unit, NoTile());
  memory.template store<Word>(place.to, memory.template load<Word>(place.from));
}

/// Moves the share of thread block `block` of the job's `blocks`, in words.
template <class Word, unsigned threads>
__device__ __forceinline__ void move_words(const BatchJob& job, unsigned block, unsigned blocks) {
  // Neighbouring groups of `threads` words go to different blocks: a job that does not fill a round is spread, too.
  const unsigned step = blocks * threads;
  const WordRange range = whole_words(job.begin, job.end, static_cast<std::int32_t>(sizeof(Word)));
  const auto last = static_cast<unsigned>(range.last);
  if (blocks == 1 && last - static_cast<unsigned>(range.first) <= threads) {  // a word per thread
    const unsigned unit = static_cast<unsigned>(range.first) + threadIdx.x;
    if (unit < last) move_word<Word>(job, unit);
    return move_ends(job, range);
  }
  for (unsigned round = static_cast<unsigned>(range.first); round < last; round += words_per_thread * step) {
    PairPlace place[words_per_thread];
    Word word[words_per_thread] = {};
    bool inside[words_per_thread];
#pragma unroll
    for (int u = 0; u < words_per_thread; ++u) {
      const unsigned unit = round + u * step + block * threads + threadIdx.x;
      inside[u] = unit < last;
      // Idle threads compute the place of the round's first word, so that there is no branch.
      place[u] = job.pair.place(inside[u] ? unit : round, NoTile());
    }
#pragma unroll
    for (int u = 0; u < words_per_thread; ++u) Access<Word>::load(place[u].from, inside[u], false, word[u]);
#pragma unroll
    for (int u = 0; u < words_per_thread; ++u) Access<Word>::store(place[u].to, inside[u], false, word[u]);
  }
  if (block == blocks - 1) move_ends(job, range);
}

/// Moves the share of thread block `block`, in pieces of runs.
template <unsigned threads>
__device__ __forceinline__ void move_pieces(const BatchJob& job, unsigned block, unsigned blocks) {
  const DeviceMemory memory;
  for (std::int64_t position = job.begin + 16 * (std::int64_t{block} * threads + threadIdx.x); position < job.end;
       position += 16 * std::int64_t{blocks} * threads)
    transfer_pieces(job.pair, memory, position, static_cast<int>(min(std::int64_t{16}, job.end - position)), NoTile());
}

template <unsigned threads>
__device__ __forceinline__ void move_job(const BatchJob& job, unsigned block, unsigned blocks) {
  switch (job.word) {
    case 16:
      return move_words<Word16, threads>(job, block, blocks);
    case 8:
      return move_words<std::uint64_t, threads>(job, block, blocks);
    case 4:
      return move_words<std::uint32_t, threads>(job, block, blocks);
    case 1:
      return move_words<std::uint8_t, threads>(job, block, blocks);
    default:
      move_pieces<threads>(job, block, blocks);
  }
}

}  // namespace
}  // namespace gpudt::device::cuda
