// The kernel of batches: batch_body.hpp on GPU threads.
#include <cuda_runtime.h>

#include "device/batch_body.hpp"
#include "device/cuda/kernel_parts.cuh"
#include "device/cuda/kernels.hpp"

namespace gpudt::device::cuda {
namespace {

/// Blocks of block_threads threads that a multiprocessor is to hold.
constexpr int batch_blocks = 4;

/// The part of a job that is its block number `block` of `blocks`.
template <class Word>
__device__ __forceinline__ void move_words(const BatchJob& job, unsigned block, unsigned blocks) {
  constexpr unsigned per_round = block_threads * words_per_thread;
  const WordRange range = whole_words(job.begin, job.end, static_cast<std::int32_t>(sizeof(Word)));
  const auto last = static_cast<unsigned>(range.last);
  for (unsigned round = static_cast<unsigned>(range.first) + block * per_round; round < last;
       round += blocks * per_round) {
    PairPlace place[words_per_thread];
    Word word[words_per_thread] = {};
    bool inside[words_per_thread];
#pragma unroll
    for (int u = 0; u < words_per_thread; ++u) {
      const unsigned unit = round + threadIdx.x + u * block_threads;
      inside[u] = unit < last;
      // Idle threads compute the place of the round's first word, so that there is no branch.
      place[u] = job.pair.place(inside[u] ? unit : round, NoTile());
    }
#pragma unroll
    for (int u = 0; u < words_per_thread; ++u) Access<Word>::load(place[u].from, inside[u], false, word[u]);
#pragma unroll
    for (int u = 0; u < words_per_thread; ++u) Access<Word>::store(place[u].to, inside[u], false, word[u]);
  }
  if (block != blocks - 1) return;
  const DeviceMemory memory{false};
  const std::int64_t head = range.head_end - job.begin, tail = job.end - range.tail_begin;
  for (std::int64_t i = threadIdx.x; i < head + tail; i += blockDim.x)
    transfer_byte(job.pair, memory, i < head ? job.begin + i : range.tail_begin + (i - head));
}

__device__ __forceinline__ void move_pieces(const BatchJob& job, unsigned block, unsigned blocks) {
  const DeviceMemory memory{false};
  for (std::int64_t position = job.begin + 16 * (std::int64_t{block} * block_threads + threadIdx.x); position < job.end;
       position += 16 * std::int64_t{blocks} * block_threads)
    transfer_pieces(job.pair, memory, position, static_cast<int>(min(std::int64_t{16}, job.end - position)), NoTile());
}

__global__ void __launch_bounds__(block_threads, batch_blocks) batch_kernel(const __grid_constant__ BatchArgs batch) {
  const int index = batch_job_of(batch, blockIdx.x);
  const BatchJob& job = batch.job[index];
  const unsigned block = blockIdx.x - batch.first_block[index];
  const unsigned blocks = batch.first_block[index + 1] - batch.first_block[index];
  switch (job.word) {
    case 16:
      move_words<Word16>(job, block, blocks);
      break;
    case 8:
      move_words<std::uint64_t>(job, block, blocks);
      break;
    case 4:
      move_words<std::uint32_t>(job, block, blocks);
      break;
    default:
      move_pieces(job, block, blocks);
  }
  complete(job.completion, blocks);
}

}  // namespace

int launch_batch_kernel(const BatchArgs& batch, void* stream) {
  // cudaLaunchKernel reads the parameters only.
  void* parameters[] = {const_cast<BatchArgs*>(&batch)};
  return cudaLaunchKernel(reinterpret_cast<const void*>(batch_kernel), dim3(batch.first_block[batch.jobs]),
                          dim3(block_threads), parameters, 0, static_cast<cudaStream_t>(stream));
}

int load_batch_kernel() {
  return load(reinterpret_cast<const void*>(batch_kernel));
}

}  // namespace gpudt::device::cuda
