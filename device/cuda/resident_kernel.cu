// The persistent kernel: resident_body.hpp on the threads of a few blocks.
#include <cuda_runtime.h>

#include <cuda/atomic>

#include "device/cuda/job_parts.cuh"
#include "device/cuda/kernels.hpp"
#include "device/cuda/plain_memory.cuh"
#include "device/cuda/reduce_parts.cuh"
#include "device/kernels/resident_body.hpp"

namespace gpudt::device::cuda {
namespace {

template <::cuda::thread_scope scope, class T>
__device__ __forceinline__ T read_acquired(T& word) {
  return ::cuda::atomic_ref<T, scope>(word).load(::cuda::std::memory_order_acquire);
}

template <::cuda::thread_scope scope, class T>
__device__ __forceinline__ void write_released(T& word, T value) {
  ::cuda::atomic_ref<T, scope>(word).store(value, ::cuda::std::memory_order_release);
}

constexpr ::cuda::thread_scope everywhere = ::cuda::thread_scope_system, in_gpu = ::cuda::thread_scope_device;

__device__ __forceinline__ std::uint64_t nanoseconds() {
  std::uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

/// The latest programs of either side, in shared memory: the next job mostly has the same.
struct OwnPrograms {
  std::uint32_t number[2];
  std::int64_t words[2][own_program_words];
};

/// Copies short programs to shared memory for the job. All threads of the block see the same job.
__device__ __forceinline__ void bring_programs(BatchJob& job, OwnPrograms& own) {
  BatchMap* const maps[] = {&job.pair.from_map, &job.pair.map};
  bool uses = false;
  const auto suits = [](const BatchMap& map) {
    return map.kind == datatype::ShapeKind::general && map.program_words > 0 && map.program_words <= own_program_words;
  };
  for (int side = 0; side < 2; ++side) {
    const BatchMap& map = *maps[side];
    if (!suits(map)) continue;
    uses = true;
    if (own.number[side] == map.program_number) continue;
    const auto* const words = reinterpret_cast<const std::int64_t*>(map.program.nodes);
    for (unsigned i = threadIdx.x; i < map.program_words; i += resident_threads) own.words[side][i] = words[i];
  }
  if (!uses) return;
  __syncthreads();
  if (threadIdx.x < 2) {
    BatchMap& map = *maps[threadIdx.x];
    if (suits(map)) {
      own.number[threadIdx.x] = map.program_number;
      datatype::Program& program = map.program;
      const std::int64_t* const words = own.words[threadIdx.x];
      program.lookaside = words + (program.lookaside - reinterpret_cast<const std::int64_t*>(program.nodes));
      program.nodes = reinterpret_cast<const datatype::Node*>(words);
    }
  }
  __syncthreads();
}

// What messages do not need is not inlined, so that it takes none of their registers.

/// The number of the calling block among those that do a job, and theirs.
struct Share {
  unsigned block, blocks;
};

template <class T>
__device__ __noinline__ void reduce_short(const ShortReduction& reduction, const Share& share) {
  with_operator<T>(reduction.op, GpuReduction<T, ShortReduction>{reduction, share.block, share.blocks});
}

__device__ __noinline__ void do_for_collective(const ResidentJob& job, const Share& share) {
  if (job.kind == ResidentJob::Kind::copies)
    return copy_short_blocks(job.copies, PlainMemory(),
                             static_cast<std::int32_t>(share.block * resident_threads + threadIdx.x),
                             static_cast<std::int32_t>(share.blocks * resident_warps));
  with_usual_element(job.reduction.element, [&](auto sample) { reduce_short<decltype(sample)>(job.reduction, share); });
}

/// What the first block knows of the mailbox and of the other blocks.
struct Found {
  bool has_job;         ///< it is in shared memory
  bool over;            ///< there will be none
  std::uint32_t begun;  ///< the blocks that have begun, as bits
};

/// Looks once for job `number`, which all threads of the first block see afterwards.
__device__ __forceinline__ Found look(const ResidentArgs& args, std::uint32_t number, std::uint32_t* words,
                                      std::uint64_t& active) {
  __shared__ std::uint32_t begun;
  constexpr unsigned last_warp = resident_threads - warp_threads;  // it looks for the other blocks
  static_assert(job_words <= last_warp && resident_blocks <= warp_threads);
  const bool reads = threadIdx.x < job_words, first = threadIdx.x == 0;
  std::uint64_t word = 0;
  if (reads) word = read_acquired<everywhere>(args.box->job[threadIdx.x]);
  if (threadIdx.x >= last_warp) {
    const unsigned block = threadIdx.x - last_warp;
    const bool here =
        args.relay != nullptr && block < resident_blocks && __ldcg(&args.relay->begun[block]) == args.launch;
    const unsigned all = __ballot_sync(~0U, here);
    if (block == 0) begun = all | 1;
  }
  const bool is_part = reads && number_of(word) == number;
  if (const int arrived = __syncthreads_count(is_part)) {
    const std::uint32_t its_begun = begun;
    if (first) words[0] = 0;  // so that the count of an earlier job does not match
    if (is_part) words[place_of_word(word)] = static_cast<std::uint32_t>(word);
    // The barrier passes on what the threads that have read a word have acquired: all threads see what the host saw
    // before it wrote the job, and use nothing again that they read earlier.
    __syncthreads();
    if (reinterpret_cast<const ResidentJob*>(words)->sent == arrived) return {true, false, its_begun};
  }
  const std::uint64_t timeout = std::uint64_t{1000} * args.timeout_us;
  const bool over = first && (number_of(word) == no_more_jobs || nanoseconds() - active >= timeout);
  return {false, __syncthreads_or(over) != 0, 0};
}

/// The first block passes the job in its shared memory to others.
__device__ __forceinline__ void pass_on(Relay& relay, std::uint64_t told, const std::uint32_t* words) {
  if (threadIdx.x < job_words) relay.job[threadIdx.x] = words[threadIdx.x];
  __syncthreads();
  if (threadIdx.x == 0) write_released<in_gpu>(relay.told, told);
}

/// Another block waits for a job that it has a share in, and brings it to its shared memory. False if the kernel ends.
__device__ __forceinline__ bool await(const ResidentArgs& args, std::uint64_t& seen, std::uint32_t* words,
                                      Share& share) {
  __shared__ std::uint64_t told;
  for (;;) {
    if (threadIdx.x == 0) {
      std::uint64_t now = seen;
      // Not acquired each time, which would empty the multiprocessor's cache for the program's kernels.
      const ::cuda::atomic_ref<std::uint64_t, in_gpu> its_word(args.relay->told);
      while (now == seen || now >> 32 != args.launch) now = its_word.load(::cuda::std::memory_order_relaxed);
      ::cuda::atomic_thread_fence(::cuda::std::memory_order_acquire, in_gpu);
      told = now;
    }
    __syncthreads();
    seen = told;
    __syncthreads();  // before `told` is written again
    if ((seen & number_mask) == no_more_jobs) return false;
    const auto blocks = static_cast<std::uint32_t>(seen) >> 24;
    if ((blocks >> blockIdx.x & 1) == 0) continue;
    share = {static_cast<unsigned>(__popc(blocks & ((1U << blockIdx.x) - 1))), static_cast<unsigned>(__popc(blocks))};
    if (threadIdx.x < job_words) words[threadIdx.x] = __ldcg(&args.relay->job[threadIdx.x]);
    __syncthreads();
    return true;
  }
}

__global__ void __launch_bounds__(resident_threads, 1) resident_kernel(const ResidentArgs args) {
  __shared__ alignas(16) std::uint32_t words[job_words];
  __shared__ OwnPrograms programs;
  ResidentJob& job = *reinterpret_cast<ResidentJob*>(words);
  const bool first = threadIdx.x == 0, leads = blockIdx.x == 0;
  if (threadIdx.x < 2) programs.number[threadIdx.x] = 0;
  if (first && leads) write_released<everywhere>(args.box->started, args.launch);
  if (first && !leads) write_released<in_gpu>(args.relay->begun[blockIdx.x], args.launch);
  std::uint32_t number = args.first_job;
  std::uint64_t active = nanoseconds(), seen = 0;  // seen: Relay::told of the latest job that was passed on
  for (;;) {
    Share share = {0, 1};
    std::uint32_t others = 0;
    if (leads) {
      const Found found = look(args, number, words, active);
      if (found.over) break;
      if (!found.has_job) continue;
      if (job.blocks > 1) others = found.begun & ~1U;
      if (others != 0) {
        share.blocks = 1 + __popc(others);
        seen = told_word(args.launch, number, others | 1);
        pass_on(*args.relay, seen, words);
      }
    } else if (!await(args, seen, words, share)) {
      return;
    }
    if (job.kind == ResidentJob::Kind::transfer) {
      bring_programs(job.transfer, programs);
      move_job<resident_threads>(job.transfer, share.block, share.blocks);
    } else {
      do_for_collective(job, share);
    }
    if (!leads) {
      __syncthreads();
      if (first) write_released<in_gpu>(args.relay->done[blockIdx.x], seen);
      continue;
    }
    if (threadIdx.x < resident_blocks && (others >> threadIdx.x & 1) != 0)
      while (read_acquired<in_gpu>(args.relay->done[threadIdx.x]) != seen) {
      }
    complete(job.completion(), 1);
    number = job_after(number);
    if (first) active = nanoseconds();
  }
  if (!first) return;
  if (args.relay != nullptr) write_released<in_gpu>(args.relay->told, told_word(args.launch, no_more_jobs, 0));
  write_released<everywhere>(args.box->ended, args.launch);
}

}  // namespace

int launch_resident_kernel(const ResidentArgs& args, void* stream) {
  void* parameters[] = {const_cast<ResidentArgs*>(&args)};
  return cudaLaunchKernel(reinterpret_cast<const void*>(resident_kernel),
                          dim3(args.relay != nullptr ? resident_blocks : 1), dim3(resident_threads), parameters, 0,
                          static_cast<cudaStream_t>(stream));
}

int load_resident_kernel() {
  return load(reinterpret_cast<const void*>(resident_kernel));
}

}  // namespace gpudt::device::cuda
