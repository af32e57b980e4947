// The persistent kernel, which does short jobs as the host submits them: its arguments and its body, on GPU threads
// (cuda/resident_kernel.cu) and serially on the host, like those of kernel_body.hpp.
//
// A launch takes two thirds of a short message's time: 3 to 5 us in the driver, and 3 us until the kernel runs. A
// running kernel reads its next job from mapped memory in 1.3 us. GPUrdma (Daoud et al., section 3) and dCUDA keep
// kernels running that communicate. Here it is a single thread block, and only while messages keep coming
// (resident.hpp).
//
// A job is a transfer as in a batch (batch_body.hpp), a short reduction, or short copies of blocks. Each 32 bits of it
// travel in a word of 64 bits with the job's number. The kernel reads all words at once, one by each thread, until all
// have the expected number. So the words need no order, and one round trip over the host link is enough.
#pragma once

#include <atomic>
#include <chrono>
#include <cstring>

#include "base/nap.hpp"
#include "device/kernels/copy_blocks_body.hpp"
#include "device/kernels/kernel_host.hpp"
#include "device/kernels/reduce_body.hpp"

namespace gpudt::device {

/// Threads of the block. More threads make the block-wide check for a new job slower, and this many already saturate
/// one multiprocessor's peer bandwidth.
constexpr int resident_threads = 256;
constexpr int resident_warps = resident_threads / warp_threads;
/// Layouts of at most this number of words are copied to shared memory first, so that searches in them are fast.
constexpr std::uint32_t own_program_words = 1024;

struct ResidentJob {
  enum class Kind : std::uint32_t { transfer, reduction, copies };
  Kind kind;
  union {
    BatchJob transfer;
    ShortReduction reduction;
    ShortCopies copies;
  };

  explicit ResidentJob(const BatchJob& job) : kind(Kind::transfer), transfer(job) {}
  explicit ResidentJob(const ShortReduction& job) : kind(Kind::reduction), reduction(job) {}
  explicit ResidentJob(const ShortCopies& job) : kind(Kind::copies), copies(job) {}

  GPUDT_HD const Completion& completion() const {
    if (kind == Kind::reduction) return reduction.completion;
    return kind == Kind::copies ? copies.completion : transfer.completion;
  }
};

static_assert(std::is_trivially_copyable_v<ResidentJob> && sizeof(ResidentJob) % sizeof(std::uint32_t) == 0);
// Other jobs do not make those of messages longer.
static_assert(sizeof(ShortReduction) <= sizeof(BatchJob) && sizeof(ShortCopies) <= sizeof(BatchJob));
constexpr int job_words = sizeof(ResidentJob) / sizeof(std::uint32_t);
static_assert(job_words <= resident_threads);

/// Numbers that no job has: that of an empty mailbox, and that which ends the kernel.
constexpr std::uint32_t no_job = 0, no_more_jobs = UINT32_MAX;

/// The mailbox of the host and the kernel, in mapped memory. Writing a line that the kernel polls costs the host a
/// microsecond, so the host writes only jobs.
struct alignas(64) Mailbox {
  /// Written by the host: in each word 32 bits of the job, below the number of the job.
  std::uint64_t job[job_words];
  /// Written by the kernel: the number of its launch, when it begins, and when it takes no more jobs.
  alignas(64) std::uint32_t started;
  std::uint32_t ended;
};

/// The arguments of the kernel. Jobs are numbered from first_job on, without the two numbers above.
struct ResidentArgs {
  Mailbox* box;
  std::uint32_t launch;
  std::uint32_t first_job;
  std::uint32_t timeout_us;  ///< the kernel ends this long after it has begun, or after its last job
};

GPUDT_HD std::uint32_t job_after(std::uint32_t number) {
  return number >= no_more_jobs - 1 ? no_job + 1 : number + 1;
}
GPUDT_HD std::uint64_t numbered(std::uint32_t number, std::uint32_t word) {
  return static_cast<std::uint64_t>(number) << 32 | word;
}
GPUDT_HD std::uint32_t number_of(std::uint64_t word) {
  return static_cast<std::uint32_t>(word >> 32);
}

namespace host {

/// True if all words of job `number` have arrived.
inline bool read_job(Mailbox& box, std::uint32_t number, std::uint32_t (&words)[job_words]) {
  for (int i = 0; i < job_words; ++i) {
    const std::uint64_t word = std::atomic_ref(box.job[i]).load(std::memory_order_acquire);
    if (number_of(word) != number) return false;
    words[i] = static_cast<std::uint32_t>(word);
  }
  return true;
}

inline void write_job(Mailbox& box, std::uint32_t number, const ResidentJob& job) {
  std::uint32_t words[job_words];
  std::memcpy(words, &job, sizeof words);
  for (int i = 0; i < job_words; ++i)
    std::atomic_ref(box.job[i]).store(numbered(number, words[i]), std::memory_order_release);
}

}  // namespace host

template <class Translate>
void run_on_host(const ResidentJob& job, const Translate& translate) {
  const HostMemory<Translate> memory{translate};
  switch (job.kind) {
    case ResidentJob::Kind::transfer:
      return run_on_host(job.transfer, translate);
    case ResidentJob::Kind::reduction:
      return reduce_on_host(job.reduction, memory);
    case ResidentJob::Kind::copies:
      return copy_blocks_on_host(job.copies, resident_warps, memory);
  }
}

/// Does the jobs of the mailbox until the host ends it, or until it has been idle for the time-out. `ended(completion)`
/// is called after each job.
template <class Translate, class Ended>
void run_on_host(const ResidentArgs& args, const Translate& translate, const Ended& ended) {
  using Clock = std::chrono::steady_clock;
  Mailbox& box = *args.box;
  std::atomic_ref(box.started).store(args.launch, std::memory_order_release);
  std::uint32_t number = args.first_job;
  alignas(ResidentJob) std::uint32_t words[job_words];
  for (Clock::time_point active = Clock::now();;) {
    if (host::read_job(box, number, words)) {
      const ResidentJob& job = *reinterpret_cast<const ResidentJob*>(words);
      run_on_host(job, translate);
      ended(job.completion());
      number = job_after(number);
      active = Clock::now();
      continue;
    }
    const bool told = number_of(std::atomic_ref(box.job[0]).load(std::memory_order_acquire)) == no_more_jobs;
    const Clock::duration idle = Clock::now() - active;
    if (told || idle >= std::chrono::microseconds(args.timeout_us)) break;
    nap_after(idle);  // the host may have few processors for many GPUs
  }
  std::atomic_ref(box.ended).store(args.launch, std::memory_order_release);
}

}  // namespace gpudt::device
