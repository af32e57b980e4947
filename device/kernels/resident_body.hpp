// The persistent kernel, which does short jobs as the host hands them over: what it is told, and its
// body, on GPU threads (cuda/resident_kernel.cu) and serially on the host, like those of kernel_body.hpp.
//
// A launch takes two thirds of a short message's time: 3 to 5 us in the driver, 3 more until the kernel runs. A
// kernel that runs already reads its next job from mapped memory in 1.3 us. GPUrdma (Daoud et al., section 3) and dCUDA
// keep kernels that communicate; here a single thread block does, and only while messages keep coming (resident.hpp).
//
// A job is that of a batch (batch_body.hpp). Each 32 bits of it travel in a word of 64 with the job's number, so that
// the kernel reads all words at once, by a thread each, and again until all have the number that it expects: no word
// needs to be ordered behind another one, and one round trip over the host link does.
#pragma once

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "device/kernels/kernel_host.hpp"

namespace gpudt::device {

/// Threads of the block. More threads make the block-wide check for a new job slower, and this many already saturate
/// one multiprocessor's peer bandwidth.
constexpr int resident_threads = 256;
/// Layouts that are no longer are brought to the block's own memory first, so that searches in them wait for no other.
constexpr std::uint32_t own_program_words = 1024;

static_assert(std::is_trivially_copyable_v<BatchJob> && sizeof(BatchJob) % sizeof(std::uint32_t) == 0);
constexpr int job_words = sizeof(BatchJob) / sizeof(std::uint32_t);
static_assert(job_words <= resident_threads);

/// Numbers that are no job's: of an empty mailbox, and of one that tells the kernel to end.
constexpr std::uint32_t no_job = 0, no_more_jobs = UINT32_MAX;

/// What the host and the kernel tell each other, in mapped memory. A line that the host writes while the kernel reads
/// it again and again costs the host a microsecond: it writes nothing but jobs.
struct alignas(64) Mailbox {
  /// By the host: 32 bits of the job each, below the number of the job.
  std::uint64_t job[job_words];
  /// By the kernel: the number of its launch, when it begins and when it will take no more jobs.
  alignas(64) std::uint32_t started;
  std::uint32_t ended;
};

/// What the kernel gets. Jobs are numbered from first_job on, without the two numbers above.
struct ResidentArgs {
  Mailbox* box;
  std::uint32_t launch;
  std::uint32_t first_job;
  std::uint32_t timeout_us;  ///< it ends so long after its beginning, or the end of its last job
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

/// True if the whole job `number` is there.
inline bool read_job(Mailbox& box, std::uint32_t number, std::uint32_t (&words)[job_words]) {
  for (int i = 0; i < job_words; ++i) {
    const std::uint64_t word = std::atomic_ref(box.job[i]).load(std::memory_order_acquire);
    if (number_of(word) != number) return false;
    words[i] = static_cast<std::uint32_t>(word);
  }
  return true;
}

inline void write_job(Mailbox& box, std::uint32_t number, const BatchJob& job) {
  std::uint32_t words[job_words];
  std::memcpy(words, &job, sizeof words);
  for (int i = 0; i < job_words; ++i)
    std::atomic_ref(box.job[i]).store(numbered(number, words[i]), std::memory_order_release);
}

}  // namespace host

/// As run_on_host() of a batch, until it is told to end, or has nothing to do for too long.
template <class Translate, class Ended>
void run_on_host(const ResidentArgs& args, const Translate& translate, const Ended& ended) {
  using Clock = std::chrono::steady_clock;
  constexpr auto nap = std::chrono::microseconds(20);  // the host may have few processors for many GPUs
  Mailbox& box = *args.box;
  std::atomic_ref(box.started).store(args.launch, std::memory_order_release);
  std::uint32_t number = args.first_job;
  alignas(BatchJob) std::uint32_t words[job_words];
  for (Clock::time_point active = Clock::now();;) {
    if (host::read_job(box, number, words)) {
      const BatchJob& job = *reinterpret_cast<const BatchJob*>(words);
      run_on_host(job, translate);
      ended(job.completion);
      number = job_after(number);
      active = Clock::now();
      continue;
    }
    const bool told = number_of(std::atomic_ref(box.job[0]).load(std::memory_order_acquire)) == no_more_jobs;
    if (told || Clock::now() - active >= std::chrono::microseconds(args.timeout_us)) break;
    std::this_thread::sleep_for(nap);
  }
  std::atomic_ref(box.ended).store(args.launch, std::memory_order_release);
}

}  // namespace gpudt::device
