#include "device/resident.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "device/timeline.hpp"

namespace gpudt::device {
namespace {

using std::chrono::microseconds;

/// Short transfers that begin within this of each other are one streak.
constexpr microseconds most_between{100};
/// So many in a streak make a launch promising; each kernel that was not worth its launch makes it twice as many.
constexpr int least_streak = 4, most_streak = 1024;
/// A kernel was worth its launch if it did so many jobs: where it ends after each, that saves next to nothing.
constexpr std::int64_t worthwhile_jobs = 4;
/// The kernel's patience: while a call waits, and between calls.
constexpr microseconds patience_waiting{100}, patience_between{20};
/// The same where the kernel is wanted in any case, for tests and experiments.
constexpr microseconds patience_always{5000};
/// So long before the next short transfer a launch costs no time that is needed otherwise.
constexpr microseconds launch_time{4};
/// A short transfer that begins so soon after a launch has probably waited for it.
constexpr microseconds at_once{1};
/// A kernel that has not begun after this time waits for others to end.
constexpr microseconds begins_within{15};
/// Launches that take this long, so often, have waited for the kernel's end: by CUDA_LAUNCH_BLOCKING, or a debugger.
constexpr microseconds blocked_launch{90};
constexpr int most_blocked = 3;

}  // namespace

Resident::Resident(Runtime& runtime, int ordinal, ResidentUse use)
    : runtime_(runtime), ordinal_(ordinal), use_(use), wanted_streak_(least_streak) {}

Resident::~Resident() {
  if (!box_) return;
  set_patience(microseconds(0));
  try {
    runtime_.stream_synchronize(ordinal_, stream_);
  } catch (const Error&) {
    // A GPU that has failed has nothing left to wait for.
  }
  runtime_.stream_destroy(ordinal_, stream_);
  runtime_.mapped_free(box_);
}

bool Resident::alive() const {
  return launch_ != 0 && std::atomic_ref(box_->ended).load(std::memory_order_acquire) != launch_;
}

void Resident::note_short() {
  if (use_.load(std::memory_order_relaxed) == ResidentUse::never) return;
  const auto now = Clock::now();
  const std::lock_guard lock(mutex_);
  streak_ = now - last_short_ <= most_between ? std::min(streak_ + 1, most_streak) : 0;
  last_short_ = now;
  for (Waits& waits : waits_) {
    if (!std::exchange(waits.open, false)) continue;
    if (!waits.launched)
      waits.until_short = now - waits.began;
    else if (now - waits.began < at_once)
      waits.until_short = {};
  }
}

bool Resident::promising(const Waits& waits) const {
  return use_ == ResidentUse::always ||
         (streak_ >= wanted_streak_ && waits.until_short >= launch_time && waits.until_short <= patience_waiting);
}

void Resident::set_patience(microseconds patience) {
  if (use_ == ResidentUse::always && patience != microseconds(0)) patience = patience_always;
  std::atomic_ref(box_->patience)
      .store(numbered(++patience_, static_cast<std::uint32_t>(patience.count())), std::memory_order_release);
}

/// What the last kernel's life says about the next one's.
void Resident::settle() {
  if (std::exchange(settled_, true) || use_ == ResidentUse::always) return;
  const bool worthwhile = jobs_of_launch_ >= worthwhile_jobs;
  wanted_streak_ = worthwhile ? least_streak : std::min(2 * wanted_streak_, most_streak);
  if (!worthwhile) streak_ = 0;
}

void Resident::wait_begins(WaitKind kind, bool may_launch) noexcept {
  const std::lock_guard lock(mutex_);
  ++waiting_;
  if (use_ == ResidentUse::never) return;
  Waits& waits = waits_[static_cast<int>(kind)];
  waits.began = Clock::now();
  waits.open = true;
  waits.launched = false;
  if (alive()) {
    if (waiting_ == 1) set_patience(patience_waiting);
    return;
  }
  if (served_) return;  // whoever waits for it takes it back
  ready_.store(false, std::memory_order_relaxed);
  settle();
  if (may_launch && promising(waits)) try {
      launch();
      waits.began = launched_;
      waits.launched = true;
    } catch (const Error&) {
      use_ = ResidentUse::never;  // other launches do without, or say what is wrong
    }
}

void Resident::wait_ends() noexcept {
  const std::lock_guard lock(mutex_);
  if (--waiting_ == 0 && alive()) set_patience(patience_between);
}

void Resident::launch() {
  if (!box_) {
    StreamHandle const stream = runtime_.stream_create(ordinal_);
    try {
      box_ = static_cast<Mailbox*>(runtime_.mapped_alloc(ordinal_, sizeof(Mailbox)));
    } catch (const Error&) {
      runtime_.stream_destroy(ordinal_, stream);
      throw;
    }
    std::memset(static_cast<void*>(box_), 0, sizeof *box_);
    stream_ = stream;
  }
  set_patience(patience_waiting);
  const std::uint32_t next_launch = launch_ + 1 == 0 ? 1 : launch_ + 1;
  const auto began = Clock::now();
  mark(Point::resident_planned);
  runtime_.launch(ordinal_, ResidentArgs{box_, next_launch, job_ + 1}, stream_);
  mark(Point::resident_launched);
  launch_ = next_launch;
  launched_ = Clock::now();
  settled_ = false;
  jobs_of_launch_ = 0;
  blocked_ = launched_ - began >= blocked_launch ? blocked_ + 1 : 0;
  if (blocked_ == most_blocked && use_ == ResidentUse::automatic) use_ = ResidentUse::never;
  ready_.store(true, std::memory_order_relaxed);
}

bool Resident::ready() const {
  return ready_.load(std::memory_order_relaxed);
}

Resident::Taken Resident::hand_over(const BatchJob& job, const Work& work, Transfer::State& state) {
  const std::lock_guard lock(mutex_);
  if (served_ || !ready()) return Taken::no;
  if (!alive()) {
    ready_.store(false, std::memory_order_relaxed);
    return Taken::no;
  }
  const bool started = std::atomic_ref(box_->started).load(std::memory_order_acquire) == launch_;
  if (!started && Clock::now() - launched_ > begins_within) return Taken::no;
  host::write_job(*box_, ++job_, job);
  served_ = &state;
  work_ = work;
  state.resident = this;
  ready_.store(false, std::memory_order_relaxed);
  ++jobs_of_launch_;
  jobs_.fetch_add(1, std::memory_order_relaxed);
  return started ? Taken::at_once : Taken::when_it_begins;
}

std::optional<Work> Resident::take_back(Transfer::State& state) {
  const std::lock_guard lock(mutex_);
  if (served_ != &state || alive()) return std::nullopt;
  // It sets the flag before it says that it has ended.
  if (std::atomic_ref(*state.flag).load(std::memory_order_acquire) == state.sequence) return std::nullopt;
  served_ = nullptr;
  state.resident = nullptr;
  --jobs_of_launch_;
  jobs_.fetch_sub(1, std::memory_order_relaxed);
  return std::exchange(work_, std::nullopt);
}

void Resident::done(Transfer::State& state) noexcept {
  const std::lock_guard lock(mutex_);
  state.resident = nullptr;
  if (served_ != &state) return;
  served_ = nullptr;
  work_.reset();
  ready_.store(true, std::memory_order_relaxed);
}

void Resident::shared_with_others() noexcept {
  const std::lock_guard lock(mutex_);
  if (use_ == ResidentUse::automatic) use_ = ResidentUse::never;
}

}  // namespace gpudt::device
