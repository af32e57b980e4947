// The host's side of the persistent kernel (resident_body.hpp): when it is launched, what it is given, and how long it
// is kept. One for each GPU.
//
// It is launched where the host is about to wait for a message anyway, if recent short transfers came so close together
// that the next one will probably find the kernel running, and if a launch fits into the expected wait. It ends when it
// has had nothing to do for a while, and gets no more jobs after a millisecond, so that the program's own
// cudaDeviceSynchronize is not kept waiting. A launch that served few jobs makes the next launch less likely
// (exponential back-off).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/mutex.hpp"
#include "device/kernels/resident_body.hpp"
#include "device/transfer/config.hpp"
#include "device/transfer/context_watch.hpp"
#include "device/transfer/state.hpp"
#include "device/transfer/work.hpp"

namespace gpudt::device {

class Resident {
 public:
  Resident(Runtime& runtime, int ordinal, ResidentUse use, std::shared_ptr<const ContextWatch> watch);
  ~Resident();
  Resident(const Resident&) = delete;
  Resident& operator=(const Resident&) = delete;

  /// A short transfer begins, by whatever way: so often the kernel would have had something to do.
  void note_short();
  /// The calling thread is about to wait. `may_launch`: the kernel, if that is promising.
  void about_to_wait(WaitKind kind, bool may_launch) noexcept;

  /// Cheap test whether a job can be handed over; may return true although hand_over() then fails.
  bool ready() const;
  /// False if the work must be launched after all. Else `state` is under way: its flag is set when the job is done.
  bool hand_over(const BatchJob& job, const Work& work, Transfer::State& state);
  /// Of one that has a job: whether the kernel has ended, perhaps before it came to that.
  bool gone() const NO_THREAD_SAFETY_ANALYSIS;  // while it has a job, there is no other launch
  /// When it is: what is to be launched instead, unless the job is done.
  std::optional<Work> take_back(Transfer::State& state);
  /// The job of `state`, if it has one here, is done, or nobody waits for it any more.
  void done(Transfer::State& state) noexcept;

  /// Another process uses the GPU: its kernels would wait while this one's wait for jobs.
  void shared_with_others() noexcept;
  /// The GPU has failed.
  void give_up() noexcept;
  /// Waits for the kernel, which is the last one. What is to be launched since it has not come to it.
  std::optional<Queued> stop() noexcept;

  std::int64_t jobs() const { return jobs_.load(std::memory_order_relaxed); }

 private:
  using Clock = std::chrono::steady_clock;
  /// What is known of the waits of one kind.
  struct Waits {
    Clock::time_point began;        ///< the last one
    bool open = false;              ///< no short transfer has begun since
    bool launched = false;          ///< the kernel, so that the wait began later than the call
    Clock::duration until_short{};  ///< from a wait's beginning to the next short transfer's, when that was last seen
  };
  bool promising(const Waits& waits) REQUIRES(mutex_);
  bool alive() const REQUIRES(mutex_);
  void launch() REQUIRES(mutex_);
  void settle() REQUIRES(mutex_);
  void send_away() REQUIRES(mutex_);
  std::optional<Work> release(Transfer::State& state) REQUIRES(mutex_);

  Runtime& runtime_;
  const int ordinal_;
  const std::shared_ptr<const ContextWatch> watch_;
  Mutex mutex_;
  std::atomic<ResidentUse> use_;
  StreamHandle stream_ = nullptr;                       ///< made for the first launch, as is the mailbox
  Mailbox* box_ GUARDED_BY(mutex_) = nullptr;           ///< mapped
  std::uint32_t launch_ GUARDED_BY(mutex_) = 0;         ///< number of the last launch; 0: there was none
  bool leaving_ GUARDED_BY(mutex_) = false;             ///< that one gets no more jobs
  bool settled_ GUARDED_BY(mutex_) = true;              ///< what became of that one has been taken into account
  std::uint32_t job_ GUARDED_BY(mutex_) = 0;            ///< number of the last job
  std::int64_t jobs_of_launch_ GUARDED_BY(mutex_) = 0;  ///< done, or handed over
  Clock::time_point launched_ GUARDED_BY(mutex_), last_short_ GUARDED_BY(mutex_);
  Clock::duration launch_time_ GUARDED_BY(mutex_);  ///< what a launch takes
  Waits waits_[wait_kinds] GUARDED_BY(mutex_);
  int blocked_ GUARDED_BY(mutex_) = 0;  ///< launches, one after the other, that took too long
  int streak_ GUARDED_BY(mutex_) = 0;   ///< short transfers that followed each other soon
  int passed_ GUARDED_BY(mutex_) = 0;   ///< short transfers since the last kernel not worth its launch
  int to_pass_ GUARDED_BY(mutex_) = 0;  ///< so many before the next launch
  Transfer::State* served_ GUARDED_BY(mutex_) = nullptr;  ///< whose job it has
  std::optional<Work> work_ GUARDED_BY(mutex_);           ///< likewise
  std::atomic<bool> ready_{false};                        ///< launched and without a job, as far as is known
  std::atomic<std::int64_t> jobs_{0};
};

}  // namespace gpudt::device
