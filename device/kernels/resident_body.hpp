// The persistent kernel, which does short jobs as the host submits them: its arguments and its body, on GPU threads
// (cuda/resident_kernel.cu) and serially on the host, like those of kernel_body.hpp.
//
// A launch takes two thirds of a short message's time: 3 to 5 us in the driver, and 3 us until the kernel runs. A
// running kernel reads its next job from mapped memory in 1.3 us. GPUrdma (Daoud et al., section 3) and dCUDA keep
// kernels running that communicate. Here it is a few thread blocks, and only while messages keep coming (resident.hpp).
// The first block reads the jobs and does short ones alone. Longer ones it shares with those others that have begun,
// which takes 1.2 us more. (As a cluster they would begin together, but on a busy GPU that takes long: messages then
// took 44 us instead of 16 to 27.)
//
// A job is a transfer as in a batch (batch_body.hpp), a short reduction, or short copies of blocks. Jobs resemble each
// other, so the host sends only those 32-bit words that differ from the job before: of a message that is repeated three
// words, of 86. Each travels in a word of 64 bits with its place in the job and the job's number. The kernel reads all
// words of the mailbox at once, one by each thread, until as many have the expected number as the job says. So the
// words need no order, and one round trip over the host link is enough.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <utility>

#include "base/nap.hpp"
#include "device/kernels/copy_blocks_body.hpp"
#include "device/kernels/kernel_host.hpp"
#include "device/kernels/reduce_body.hpp"

namespace gpudt::device {

/// Threads of each block. More threads make the block-wide check for a new job slower, and this many already saturate
/// one multiprocessor's peer bandwidth.
constexpr int resident_threads = 256;
constexpr int resident_warps = resident_threads / warp_threads;
/// Programs of layouts of at most this number of 8-byte words are copied to shared memory first, so that searches in
/// them are fast.
constexpr std::uint32_t own_program_words = 1024;

struct ResidentJob {
  enum class Kind : std::uint8_t { transfer, reduction, copies };
  Kind kind;            // the first three are word 0, `sent` in its upper half
  std::uint8_t blocks;  ///< 1: the first thread block does it alone; more: with all that have begun
  std::uint16_t sent;   ///< number of words that are sent; the first one, with this number, always is
  union {
    BatchJob transfer;
    ShortReduction reduction;
    ShortCopies copies;
  };

  ResidentJob(const BatchJob& job, int its_blocks)
      : kind(Kind::transfer), blocks(static_cast<std::uint8_t>(its_blocks)), sent(0), transfer(job) {}
  explicit ResidentJob(const ShortReduction& job)
      : kind(Kind::reduction), blocks(static_cast<std::uint8_t>(job.blocks)), sent(0), reduction(job) {}
  explicit ResidentJob(const ShortCopies& job)
      : kind(Kind::copies), blocks(static_cast<std::uint8_t>(job.blocks)), sent(0), copies(job) {}

  GPUDT_HD const Completion& completion() const {
    if (kind == Kind::reduction) return reduction.completion;
    return kind == Kind::copies ? copies.completion : transfer.completion;
  }
};

static_assert(std::is_trivially_copyable_v<ResidentJob> && sizeof(ResidentJob) % sizeof(std::uint32_t) == 0);
// Other jobs do not make those of messages longer.
static_assert(sizeof(ShortReduction) <= sizeof(BatchJob) && sizeof(ShortCopies) <= sizeof(BatchJob));
constexpr int job_words = sizeof(ResidentJob) / sizeof(std::uint32_t);
static_assert(job_words <= resident_threads && job_words < 256);

/// Jobs have numbers of 24 bits; these are none: that of an empty mailbox, and that which ends the kernel.
constexpr std::uint32_t number_mask = (std::uint32_t{1} << 24) - 1, no_job = 0, no_more_jobs = number_mask;

/// The mailbox of the host and the kernel, in mapped memory. Writing a cache line that the kernel polls costs the host
/// a microsecond, so while a kernel runs the host writes only jobs, and its end.
struct alignas(64) Mailbox {
  /// Written by the host: the words that are sent, one behind the other, each below its place and the job's number.
  /// When a kernel is launched, all have number no_job.
  std::uint64_t job[job_words];
  /// Written by the kernel: the number of its launch, when it begins, and when it takes no more jobs.
  alignas(64) std::uint32_t started;
  std::uint32_t ended;
};

/// Through which the first thread block passes a job to others, in the GPU's memory; all zeros before the first launch.
struct Relay {
  /// told_word(): written by the first block when `job` is there, or when the kernel ends.
  alignas(64) std::uint64_t told;
  alignas(64) std::uint32_t begun[resident_blocks];  ///< written by each but the first: the number of the launch
  alignas(64) std::uint64_t done[resident_blocks];   ///< written by each but the first: `told` of its last job
  alignas(64) std::uint32_t job[job_words];
};

/// The arguments of the kernel. Jobs are numbered from first_job on, skipping no_job and no_more_jobs.
struct ResidentArgs {
  Mailbox* box;
  Relay* relay;  ///< null: the first block is the only one
  std::uint32_t launch;
  std::uint32_t first_job;
  std::uint32_t timeout_us;  ///< the kernel ends this long after it has begun, or after its last job
};

GPUDT_HD std::uint32_t job_after(std::uint32_t number) {
  return number >= no_more_jobs - 1 ? no_job + 1 : number + 1;
}
GPUDT_HD std::uint64_t numbered(std::uint32_t number, int place, std::uint32_t word) {
  return static_cast<std::uint64_t>(number) << 40 | static_cast<std::uint64_t>(place) << 32 | word;
}
/// Relay::told of a job (or no_more_jobs) that the blocks in the bits of `blocks` do.
GPUDT_HD std::uint64_t told_word(std::uint32_t launch, std::uint32_t number, std::uint32_t blocks) {
  static_assert(resident_blocks <= 8);
  return static_cast<std::uint64_t>(launch) << 32 | static_cast<std::uint64_t>(blocks) << 24 | number;
}
GPUDT_HD std::uint32_t number_of(std::uint64_t word) {
  return static_cast<std::uint32_t>(word >> 40);
}
GPUDT_HD int place_of_word(std::uint64_t word) {
  return static_cast<int>(word >> 32 & 0xff);
}

namespace host {

/// The words of the latest job that a kernel has: with one the host sends, with another the simulated kernel receives.
class JobWords {
 public:
  /// Sends what differs from the job before.
  void send(Mailbox& box, std::uint32_t number, const ResidentJob& job) {
    const auto* const given = reinterpret_cast<const char*>(&job);
    const int used = used_by(job);
    std::uint32_t sent = 1;
    for (int place = header_words; place < used; place += compared_words) {
      const std::size_t at = place * sizeof(std::uint32_t);
      if (place < known_ && std::memcmp(&words_[place], given + at, compared_words * sizeof(std::uint32_t)) == 0)
        continue;
      for (int each = place; each < place + compared_words; ++each) {
        const std::uint32_t before = std::exchange(words_[each], word_at(given, each));
        if (each >= known_ || words_[each] != before) put(box, sent++, numbered(number, each, words_[each]));
      }
    }
    known_ = std::max(known_, used);
    if (job.kind == ResidentJob::Kind::transfer) forget_programs(job.transfer);
    put(box, 0, numbered(number, 0, word_at(given, 0) | sent << 16));
  }
  /// Whether all words of job `number` have arrived; then job() is that job.
  bool receive(Mailbox& box, std::uint32_t number) {
    std::uint64_t sent[job_words];
    int arrived = 0;
    for (; arrived < job_words; ++arrived) {
      sent[arrived] = std::atomic_ref(box.job[arrived]).load(std::memory_order_acquire);
      if (number_of(sent[arrived]) != number) break;
    }
    if (arrived == 0) return false;
    for (int i = 0; i < arrived; ++i) {  // as bytes, since they are read as members of the job
      const auto word = static_cast<std::uint32_t>(sent[i]);
      std::memcpy(words_ + place_of_word(sent[i]), &word, sizeof word);
    }
    return job().sent == arrived;
  }
  const ResidentJob& job() const { return *reinterpret_cast<const ResidentJob*>(words_); }

 private:
  static void put(Mailbox& box, std::uint32_t at, std::uint64_t word) {
    std::atomic_ref(box.job[at]).store(word, std::memory_order_release);
  }
  static std::uint32_t word_at(const char* job, int place) {
    std::uint32_t word;
    std::memcpy(&word, job + place * sizeof word, sizeof word);
    return word;
  }
  static int used_by(const ResidentJob& job) {
    const auto of_kind = [&] {
      if (job.kind == ResidentJob::Kind::reduction) return sizeof job.reduction;
      return job.kind == ResidentJob::Kind::copies ? sizeof job.copies : sizeof job.transfer;
    };
    return header_words + static_cast<int>(of_kind() / sizeof(std::uint32_t));
  }
  /// The kernel replaces the addresses of programs by those of its copies: all words from there on are sent again.
  void forget_programs(const BatchJob& job) {
    for (const BatchMap* const map : {&job.pair.map, &job.pair.from_map}) {
      if (map->kind != datatype::ShapeKind::general) continue;
      const auto at = reinterpret_cast<const char*>(&map->program) - reinterpret_cast<const char*>(&job);
      known_ = std::min(known_, header_words + static_cast<int>(static_cast<std::size_t>(at) / sizeof(std::uint32_t)));
    }
  }

  /// In front of what differs between kinds, of which words are compared two at a time: most are equal.
  static constexpr int header_words = (sizeof(ResidentJob) - sizeof(BatchJob)) / sizeof(std::uint32_t),
                       compared_words = 2;
  static_assert(header_words % compared_words == 0 &&
                sizeof(BatchJob) % (compared_words * sizeof(std::uint32_t)) == 0 &&
                sizeof(ShortReduction) % (compared_words * sizeof(std::uint32_t)) == 0 &&
                sizeof(ShortCopies) % (compared_words * sizeof(std::uint32_t)) == 0 &&
                offsetof(BatchMap, program) % (compared_words * sizeof(std::uint32_t)) == 0);
  alignas(ResidentJob) std::uint32_t words_[job_words] = {};
  int known_ = 0;  ///< words in front that the kernel has
};

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
      return copy_blocks_on_host(job.copies, resident_warps * job.blocks, memory);
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
  host::JobWords words;
  for (Clock::time_point active = Clock::now();;) {
    if (words.receive(box, number)) {
      const ResidentJob& job = words.job();
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
