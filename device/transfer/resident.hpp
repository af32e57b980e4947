// The host's side of the persistent kernel (resident_body.hpp): when it is launched, which jobs it gets, and how long
// it runs. There is one for each GPU in each process.
//
// It is launched where the host is about to wait for a message or a collective anyway, if recent short work came so
// close together that the next will probably find the kernel running. It ends when it has had nothing to do for a
// while, and gets no more jobs after a millisecond, so that the program's own cudaDeviceSynchronize is not kept
// waiting. A launch that served few jobs makes the next launch less likely (exponential back-off).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/backoff.hpp"
#include "base/mutex.hpp"
#include "device/choice/clock.hpp"
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

  /// Makes what launches need, so that none of them allocates anything; not while a gate is taken. Throws Error.
  void prepare();
  /// Counts short work that begins, a transfer or a part of a collective: what the kernel would take, whatever does it.
  void note_short();
  /// The calling thread is about to wait. If `may_launch`, the kernel is launched where that is promising.
  void about_to_wait(WaitKind kind, bool may_launch) noexcept;
  /// Nothing is enqueued in streams any more: ends a kernel that was launched for that.
  void no_more_enqueued() noexcept;

  /// Cheap test whether a job can be handed over; may return true although hand_over() then fails.
  bool ready() const { return ready_.load(std::memory_order_relaxed); }
  /// Gives the kernel a job, which sets the flag of `state` at its end. False if the work must be launched instead.
  bool hand_over(const ResidentJob& job, const ResidentWork& work, Transfer::State& state);
  /// Whether the kernel that was given a job has ended, perhaps without doing it.
  bool gone() const NO_THREAD_SAFETY_ANALYSIS;  // while it has a job, there is no other launch
  /// After gone(): the work to be launched instead, unless the job is done.
  std::optional<ResidentWork> take_back(Transfer::State& state);
  /// Call when the job of `state`, if there is one, is done, or when nobody waits for it any more.
  void done(Transfer::State& state) noexcept;

  /// Call when another process uses the GPU, whose kernels would wait for this one: it is launched no more, unless
  /// ResidentUse::always.
  void shared_with_others() noexcept;
  /// Ends the kernel for good: the GPU has failed, or other processes use it.
  void give_up() noexcept;
  /// Ends the kernel for good and waits for it. Returns the job that it has not done, which must be launched.
  std::optional<TakenBack> stop() noexcept;

  std::int64_t jobs() const { return jobs_.load(std::memory_order_relaxed); }

 private:
  /// What is known about the waits of one kind.
  struct Waits {
    Clock::time_point began;        ///< when the latest wait began
    bool open = false;              ///< no short transfer has begun since then
    Clock::duration until_short{};  ///< latest time from the beginning of a wait to the next short transfer
  };
  bool promising(WaitKind kind) const REQUIRES(mutex_);
  bool alive() const REQUIRES(mutex_);
  void launch(WaitKind kind) REQUIRES(mutex_);
  bool make_box() REQUIRES(mutex_);
  void make_new_box() REQUIRES(mutex_);
  void settle() REQUIRES(mutex_);
  void send_away() REQUIRES(mutex_);
  std::optional<ResidentWork> release(Transfer::State& state) REQUIRES(mutex_);

  Runtime& runtime_;
  const int ordinal_;
  const std::shared_ptr<const ContextWatch> watch_;
  Mutex mutex_;
  std::atomic<ResidentUse> use_;
  StreamHandle stream_ = nullptr;              ///< created by prepare() or for the first launch, like the mailbox
  Mailbox* box_ GUARDED_BY(mutex_) = nullptr;  ///< in mapped memory
  Relay* relay_ = nullptr;  ///< in the GPU's memory, lives as long as the mailbox; null: there was no room
  std::uint32_t launch_ GUARDED_BY(mutex_) = 0;         ///< number of the last launch; 0: there was none
  bool leaving_ GUARDED_BY(mutex_) = false;             ///< the latest launch gets no more jobs
  bool for_enqueued_ GUARDED_BY(mutex_) = false;        ///< it was for a wait of WaitKind::enqueued
  bool settled_ GUARDED_BY(mutex_) = true;              ///< settle() has seen the result of the latest launch
  std::uint32_t job_ GUARDED_BY(mutex_) = 0;            ///< number of the last job
  host::JobWords words_ GUARDED_BY(mutex_);             ///< that the latest launch has
  std::int64_t jobs_of_launch_ GUARDED_BY(mutex_) = 0;  ///< done, or handed over
  Clock::time_point launched_ GUARDED_BY(mutex_), last_short_ GUARDED_BY(mutex_);
  Waits waits_[wait_kinds] GUARDED_BY(mutex_);
  int blocked_ GUARDED_BY(mutex_) = 0;  ///< consecutive launches that took too long
  int streak_ GUARDED_BY(mutex_) = 0;   ///< short transfers that followed each other closely
  /// Short transfers that pass after a kernel that was not worth its launch, in one streak or in several; twice as many
  /// after each further such kernel.
  Backoff<8, 256> launching_ GUARDED_BY(mutex_);
  Transfer::State* served_ GUARDED_BY(mutex_) = nullptr;  ///< the transfer whose job the kernel has
  std::optional<ResidentWork> work_ GUARDED_BY(mutex_);   ///< the work of served_
  std::atomic<bool> ready_{false};                        ///< the kernel runs and has no job, as far as is known
  std::atomic<std::int64_t> jobs_{0};
};

}  // namespace gpudt::device
