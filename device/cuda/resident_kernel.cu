// The persistent kernel: resident_body.hpp on the threads of one block.
#include <cuda_runtime.h>

#include <cuda/atomic>

#include "device/cuda/job_parts.cuh"
#include "device/cuda/kernels.hpp"
#include "device/cuda/plain_memory.cuh"
#include "device/cuda/reduce_parts.cuh"
#include "device/kernels/resident_body.hpp"

namespace gpudt::device::cuda {
namespace {

template <class T>
__device__ __forceinline__ T read_acquired(T& mapped) {
  return ::cuda::atomic_ref<T, ::cuda::thread_scope_system>(mapped).load(::cuda::std::memory_order_acquire);
}

__device__ __forceinline__ void write_released(std::uint32_t& mapped, std::uint32_t value) {
  ::cuda::atomic_ref<std::uint32_t, ::cuda::thread_scope_system>(mapped).store(value,
                                                                               ::cuda::std::memory_order_release);
}

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

template <class T>
__device__ __noinline__ void reduce_short(const ShortReduction& reduction) {
  with_operator<T>(reduction.op, GpuReduction<T, ShortReduction>{reduction});
}

__device__ __noinline__ void do_for_collective(const ResidentJob& job) {
  if (job.kind == ResidentJob::Kind::copies)
    return copy_short_blocks(job.copies, PlainMemory(), static_cast<std::int32_t>(threadIdx.x), resident_warps);
  with_usual_element(job.reduction.element, [&](auto sample) { reduce_short<decltype(sample)>(job.reduction); });
}

__global__ void __launch_bounds__(resident_threads, 1) resident_kernel(const ResidentArgs args) {
  __shared__ alignas(16) std::uint32_t words[job_words];
  __shared__ OwnPrograms programs;
  Mailbox& box = *args.box;
  const bool reads = threadIdx.x < job_words, first = threadIdx.x == 0;
  if (first) write_released(box.started, args.launch);
  if (threadIdx.x < 2) programs.number[threadIdx.x] = 0;
  const std::uint64_t timeout = std::uint64_t{1000} * args.timeout_us;
  std::uint32_t number = args.first_job;
  for (std::uint64_t active = nanoseconds();;) {
    std::uint64_t word = 0;
    if (reads) word = read_acquired(box.job[threadIdx.x]);
    const bool is_part = reads && number_of(word) == number;
    ResidentJob& job = *reinterpret_cast<ResidentJob*>(words);
    bool is_whole = false;
    if (const int arrived = __syncthreads_count(is_part)) {
      if (first) words[0] = 0;
      if (is_part) words[place_of_word(word)] = static_cast<std::uint32_t>(word);
      // Behind the barrier all that the host saw before it wrote the job is visible to all threads, and nothing read
      // earlier is used again, since threads that have read a word of the job have acquired it.
      __syncthreads();
      is_whole = job.sent == arrived;
    }
    if (is_whole) {
      if (job.kind == ResidentJob::Kind::transfer) {
        bring_programs(job.transfer, programs);
        move_job<resident_threads>(job.transfer, 0, 1);
      } else {
        do_for_collective(job);
      }
      complete(job.completion(), 1);
      number = job_after(number);
      if (first) active = nanoseconds();
    } else {
      const bool over = first && (number_of(word) == no_more_jobs || nanoseconds() - active >= timeout);
      if (__syncthreads_or(over)) break;
    }
  }
  if (first) write_released(box.ended, args.launch);
}

}  // namespace

int launch_resident_kernel(const ResidentArgs& args, void* stream) {
  void* parameters[] = {const_cast<ResidentArgs*>(&args)};
  return cudaLaunchKernel(reinterpret_cast<const void*>(resident_kernel), dim3(1), dim3(resident_threads), parameters,
                          0, static_cast<cudaStream_t>(stream));
}

int load_resident_kernel() {
  return load(reinterpret_cast<const void*>(resident_kernel));
}

}  // namespace gpudt::device::cuda
