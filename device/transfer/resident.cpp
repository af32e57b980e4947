#include "device/transfer/resident.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "device/memory/in_time.hpp"
#include "device/transfer/engine.hpp"
#include "device/transfer/points.hpp"
#include "device/transfer/start.hpp"

namespace gpudt::device {
namespace {

using std::chrono::microseconds;

/// Short transfers that begin within this of each other are one streak.
constexpr microseconds most_between{100};
/// A launch is promising after this many short transfers in a streak.
constexpr int least_streak = 4;
/// A kernel was worth its launch if it did at least this many jobs.
constexpr std::int64_t worthwhile_jobs = 4;
/// A kernel ends after this time without a job, since the program's cudaDeviceSynchronize waits for it.
constexpr microseconds timeout{40};
/// The same for operations in streams, several of which may come between two short jobs: the kernel is ended as soon as
/// nothing is enqueued.
constexpr microseconds timeout_enqueued{200};
/// The timeout with ResidentUse::always, for tests and experiments.
constexpr microseconds timeout_always{5000};
/// After this time a kernel gets no more jobs, so that work that waits for the whole GPU gets its turn.
constexpr microseconds longest_life{1000};
/// After most_blocked consecutive launches that take this long, launches are taken to wait for the kernel's end, as
/// they do with CUDA_LAUNCH_BLOCKING or in a debugger.
constexpr microseconds blocked_launch = timeout;
constexpr int most_blocked = 3;

microseconds timeout_of(WaitKind kind) {
  return kind == WaitKind::enqueued ? timeout_enqueued : timeout;
}

}  // namespace

Resident::Resident(Runtime& runtime, int ordinal, ResidentUse use, std::shared_ptr<const ContextWatch> watch)
    : runtime_(runtime), ordinal_(ordinal), watch_(std::move(watch)), use_(use) {}

Resident::~Resident() {
  stop();
  if (!box_) return;
  if (!watch_->ended()) {
    if (relay_) runtime_.device_free(ordinal_, relay_);
    runtime_.stream_destroy(ordinal_, stream_);
  }
  runtime_.mapped_free(ordinal_, box_);
}

std::optional<TakenBack> Resident::stop() noexcept {
  {
    const LockGuard lock(mutex_);
    use_ = ResidentUse::never;
    if (!box_) return std::nullopt;
    send_away();
  }
  try {
    watch_->check();
    runtime_.stream_synchronize(ordinal_, stream_);
  } catch (const Error&) {
    // A GPU that has failed has nothing left to wait for.
  }
  const LockGuard lock(mutex_);
  Transfer::State* const state = served_;
  if (state == nullptr) return std::nullopt;
  const bool done = std::atomic_ref(*state->flag).load(std::memory_order_acquire) == state->sequence;
  const std::optional<ResidentWork> work = release(*state);
  if (done) return std::nullopt;
  jobs_.fetch_sub(1, std::memory_order_relaxed);
  return TakenBack{*work, state};
}

/// The kernel gets no more jobs, and ends when it has done the one that it has begun.
void Resident::send_away() {
  leaving_ = true;
  ready_.store(false, std::memory_order_relaxed);
  std::atomic_ref(box_->job[0]).store(numbered(no_more_jobs, 0, 0), std::memory_order_release);
}

/// Separates `state` from the kernel. Returns its work, which may not have been done.
std::optional<ResidentWork> Resident::release(Transfer::State& state) {
  served_ = nullptr;
  state.resident = nullptr;
  return std::exchange(work_, std::nullopt);
}

bool Resident::alive() const {
  return launch_ != 0 && std::atomic_ref(box_->ended).load(std::memory_order_acquire) != launch_;
}

void Resident::note_short() {
  if (use_.load(std::memory_order_relaxed) == ResidentUse::never) return;
  const auto now = Clock::now();
  const LockGuard lock(mutex_);
  streak_ = now - last_short_ <= most_between ? std::min(streak_ + 1, least_streak) : 0;
  launching_.passes();
  last_short_ = now;
  for (Waits& waits : waits_)
    if (std::exchange(waits.open, false)) waits.until_short = now - waits.began;
}

/// A launch may delay the first job by some microseconds, which the fourth has made up for.
bool Resident::promising(WaitKind kind) const {
  if (use_ == ResidentUse::always) return true;
  return streak_ >= least_streak && !launching_.waits() &&
         waits_[static_cast<int>(kind)].until_short <= timeout_of(kind);
}

/// Learns from the jobs of the latest kernel when to launch the next one.
void Resident::settle() {
  if (std::exchange(settled_, true) || use_ == ResidentUse::always) return;
  const bool worthwhile = jobs_of_launch_ >= worthwhile_jobs;
  worthwhile ? launching_.worked() : launching_.failed();
  if (!worthwhile) streak_ = 0;
}

void Resident::about_to_wait(WaitKind kind, bool may_launch) noexcept {
  if (use_.load(std::memory_order_relaxed) == ResidentUse::never) return;
  const LockGuard lock(mutex_);
  if (use_ == ResidentUse::never) return;
  const auto now = Clock::now();
  Waits& waits = waits_[static_cast<int>(kind)];
  waits = {now, /*open=*/true, waits.until_short};
  if (alive()) {
    if (!leaving_ && !served_ && now - launched_ > longest_life) send_away();
    return;
  }
  if (served_) return;  // the thread that waits for the job takes it back
  ready_.store(false, std::memory_order_relaxed);
  settle();
  if (may_launch && promising(kind) && !watch_->ended()) try {
      if (!make_box()) return;
      launch(kind);
    } catch (const Error&) {
      use_ = ResidentUse::never;  // other launches do without, or say what is wrong
    }
}

void Resident::prepare() {
  const LockGuard lock(mutex_);
  if (use_ != ResidentUse::never) static_cast<void>(make_box());
}

/// Whether there is one. None is made while a gate is taken.
bool Resident::make_box() {
  const auto make = [this]() NO_THREAD_SAFETY_ANALYSIS { make_new_box(); };  // this thread calls it
  return box_ != nullptr || in_time(make, std::chrono::milliseconds(0));
}

void Resident::make_new_box() {
  StreamHandle const stream = runtime_.stream_create(ordinal_);
  try {
    box_ = static_cast<Mailbox*>(runtime_.mapped_alloc(ordinal_, sizeof(Mailbox)));
  } catch (const Error&) {
    runtime_.stream_destroy(ordinal_, stream);
    throw;
  }
  std::memset(static_cast<void*>(box_), 0, sizeof *box_);
  stream_ = stream;
  void* relay = nullptr;
  try {
    relay = runtime_.device_alloc(ordinal_, sizeof(Relay));
    runtime_.memset_async(ordinal_, relay, 0, sizeof(Relay), stream_);
    relay_ = static_cast<Relay*>(relay);
  } catch (const Error&) {  // the GPU is full: the first block goes without the others
    if (relay) runtime_.device_free(ordinal_, relay);
  }
}

void Resident::no_more_enqueued() noexcept {
  const LockGuard lock(mutex_);
  if (box_ && alive() && !served_ && for_enqueued_ && use_ == ResidentUse::automatic) send_away();
}

void Resident::launch(WaitKind kind) {
  for (std::uint64_t& word : box_->job) std::atomic_ref(word).store(numbered(no_job, 0, 0), std::memory_order_release);
  words_ = {};
  const std::uint32_t next_launch = launch_ + 1 == 0 ? 1 : launch_ + 1;
  const microseconds wanted = use_ == ResidentUse::always ? timeout_always : timeout_of(kind);
  const auto its_timeout = static_cast<std::uint32_t>(wanted.count());
  const auto began = Clock::now();
  mark(point::resident_planned);
  runtime_.launch(ordinal_, ResidentArgs{box_, relay_, next_launch, job_after(job_), its_timeout}, stream_);
  mark(point::resident_launched);
  launch_ = next_launch;
  launched_ = Clock::now();
  leaving_ = settled_ = false;
  for_enqueued_ = kind == WaitKind::enqueued;
  jobs_of_launch_ = 0;
  const Clock::duration took = launched_ - began;
  blocked_ = took >= blocked_launch ? blocked_ + 1 : 0;
  if (blocked_ == most_blocked && use_ == ResidentUse::automatic) use_ = ResidentUse::never;
  ready_.store(true, std::memory_order_relaxed);
}

bool Resident::hand_over(const ResidentJob& job, const ResidentWork& work, Transfer::State& state) {
  const LockGuard lock(mutex_);
  if (served_ || !ready() || (job.blocks > 1 && relay_ == nullptr)) return false;
  if (!alive()) {
    ready_.store(false, std::memory_order_relaxed);
    return false;
  }
  if (std::atomic_ref(box_->started).load(std::memory_order_acquire) != launch_) return false;
  if (Clock::now() - launched_ > longest_life) {
    send_away();
    return false;
  }
  work_ = work;
  served_ = &state;
  state.resident = this;
  job_ = job_after(job_);
  words_.send(*box_, job_, job);
  ready_.store(false, std::memory_order_relaxed);
  ++jobs_of_launch_;
  jobs_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

bool Resident::gone() const {
  return !alive();
}

std::optional<ResidentWork> Resident::take_back(Transfer::State& state) {
  const LockGuard lock(mutex_);
  // The kernel sets the job's flag before Mailbox::ended.
  if (served_ != &state || std::atomic_ref(*state.flag).load(std::memory_order_acquire) == state.sequence)
    return std::nullopt;
  --jobs_of_launch_;
  jobs_.fetch_sub(1, std::memory_order_relaxed);
  return release(state);
}

void Resident::done(Transfer::State& state) noexcept {
  const LockGuard lock(mutex_);
  if (served_ != &state) return;
  release(state);
  if (!leaving_ && use_ != ResidentUse::never) ready_.store(true, std::memory_order_relaxed);
}

void Resident::give_up() noexcept {
  const LockGuard lock(mutex_);
  use_ = ResidentUse::never;
  if (box_) send_away();
}

void Resident::shared_with_others() noexcept {
  if (use_.load(std::memory_order_relaxed) == ResidentUse::automatic) give_up();
}

// --- the engine's use of it -----------------------------------------------------------------------------------------

/// Counts a transfer that is residential.
void Engine::note_short(Gpu& gpu) {
  recent_.store(&gpu, std::memory_order_release);
  gpu.resident->note_short();
}

void Engine::about_to_wait(WaitKind kind) noexcept {
  const Gpu* const gpu = recent_.load(std::memory_order_acquire);
  if (gpu && gpu->resident) gpu->resident->about_to_wait(kind, /*may_launch=*/!resident_late(*gpu));
}

void about_to_wait(WaitKind kind) noexcept {
  if (Engine* const engine = process_engine.load(std::memory_order_acquire)) engine->about_to_wait(kind);
}

void Engine::no_more_enqueued() noexcept {
  const Gpu* const gpu = recent_.load(std::memory_order_acquire);
  if (gpu && gpu->resident) gpu->resident->no_more_enqueued();
}

void no_more_enqueued() noexcept {
  if (Engine* const engine = process_engine.load(std::memory_order_acquire)) engine->no_more_enqueued();
}

/// Whether the persistent kernel is not to be launched, because kernels start late.
bool Engine::resident_late(const Gpu& gpu) const {
  if (resident_use_ == ResidentUse::always) return false;
  return std::any_of(std::begin(gpu.channels), std::end(gpu.channels),
                     [](const auto& channel) { return channel->kernels.expected_us() != 0; });
}

void Engine::failed(int ordinal) noexcept {
  const Gpu* const gpu = gpus_[ordinal].load(std::memory_order_acquire);
  if (gpu && gpu->resident) gpu->resident->give_up();
}

}  // namespace gpudt::device
