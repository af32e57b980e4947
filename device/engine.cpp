#include "device/engine.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <new>
#include <string>
#include <thread>
#include <tuple>

#include "datatype/runs.hpp"
#include "device/context_watch.hpp"
#include "device/host_cpu.hpp"
#include "device/resident.hpp"
#include "device/timeline.hpp"
#include "device/upload.hpp"

namespace gpudt::device {
namespace {

// --- tuning ---------------------------------------------------------------------------------------------------------

/// How often a waiting transfer asks its stream for errors: the clock is read once in so many polls.
constexpr std::uint32_t polls_per_clock = 1024;
/// ... and of one that tells how late its like begin, more often.
constexpr std::uint32_t polls_per_observation = 16;
/// The time of kernels for messages beyond this size depends on more than their size: runs shorter than a sector of
/// memory take as long as one.
constexpr std::int64_t sized_bytes = 1 << 20;
/// So does that of so many short runs in another GPU's memory: when nobody has looked at their pages lately, 1 MiB
/// takes 200 us where 30 are usual.
constexpr std::int64_t far_apart_bytes = 128 << 10;
/// But over the link to the host it is the link's time, as long as runs have words.
constexpr std::int64_t least_linked_run = 4;
/// Where kernels are believed late, and a message takes so much longer by copies than it would by a kernel, it is worth
/// a launch that nobody waits for to hear at once when they are not any more.
constexpr double worth_a_probe_us = 30;
constexpr std::int64_t probe_bytes = 16;
/// Somebody looks after it between so many runs that are given to the copy engine together, or so many calls, at first:
/// each takes some 17 us, and that it has ended tells nothing when three times as much has passed.
constexpr std::int64_t runs_between_looks = 16, calls_between_looks = 8;
constexpr int looks_for_probe = 3;
/// Where so many such launches in a row take long, they wait for what runs (CUDA_LAUNCH_BLOCKING): there are no more.
constexpr int most_slow_probes = 3;
constexpr auto error_check_period = std::chrono::milliseconds(100);
/// A launch that takes longer has loaded the kernel, which its first one does: that says nothing of the GPU.
constexpr auto slow_launch = std::chrono::microseconds(40);

/// States are made in chunks.
constexpr std::size_t chunk_states = 256;
constexpr std::size_t flag_spacing = 64;  ///< a cache line: neighbouring flags are polled by other threads
constexpr std::size_t counter_spacing = sector_bytes;
static_assert(2 * probe_bytes <= flag_spacing && probe_bytes <= counter_spacing);

/// Polls between two naps of wait(): the nap lets another thread of a busy machine work. While short messages are under
/// way there is none, since it takes as long as their last steps: some 30 us.
constexpr std::uint32_t polls_per_yield = 64;
constexpr std::uint32_t most_polls_before_yield = 4096;

/// While more staging memory is in use, messages do not come to the host with what lies between.
constexpr std::size_t most_staging_beside_spans = std::size_t{32} << 20;
/// Runs of a message in the host's memory that are on their way to its caches at a time.
constexpr std::size_t runs_asked_for = 32;

/// Bytes per run; 0: not known.
std::int64_t run_of(const datatype::Shape& shape) {
  return shape.kind == datatype::ShapeKind::general ? 0 : typical_run(shape);
}

/// What a kernel that takes `us` by its size teaches, if its runs are no shorter than `run`.
Lesson lesson_of(Delay& kernels, std::int64_t bytes, double us, std::int64_t run, const TransferContext& context) {
  const bool linked = context.packed_is_host && run >= least_linked_run;
  const bool far_apart = context.peer && run > 0 && run < sector_bytes && bytes >= far_apart_bytes;
  if (linked || (bytes <= sized_bytes && !far_apart)) return {&kernels, us};
  if (run == 0) return {};
  const auto sectors = std::max(static_cast<double>(sector_bytes) / static_cast<double>(run), 1.0);
  return {&kernels, us * sectors, /*roughly=*/true};
}

}  // namespace

/// Each run lies on a cache line that the host has not seen yet: several are asked for at a time.
void Brought::pack() {
  struct Run {
    const char* from;
    char* to;
    std::size_t bytes;
  };
  std::array<Run, runs_asked_for> runs;
  std::size_t count = 0;
  const auto take = [&] {
    for (const Run& run : std::span(runs).first(count)) std::memcpy(run.to, run.from, run.bytes);
    count = 0;
  };
  const char* const brought = static_cast<const char*>(memory.data());
  datatype::for_each_run(*layout, 0, bytes, [&](std::int64_t at, std::int64_t position, std::int64_t length) {
    runs[count] = {brought + (at - offset), static_cast<char*>(packed) + position, static_cast<std::size_t>(length)};
    __builtin_prefetch(runs[count].from);
    if (++count == runs.size()) take();
  });
  take();
  memory = {};
}

// --- states ---------------------------------------------------------------------------------------------------------

bool Transfer::State::done() {
  // First, for as long as it is queued, other threads may be launching it, and the rest is theirs.
  if (queued.load(std::memory_order_acquire) && !channel->closed()) {
    channel->launch_queued();
    if (queued.load(std::memory_order_acquire)) return false;  // held
  }
  if (finished) return true;
  if (failure) throw Error(*failure);
  if (channel->closed()) {
    channel->check_lost();
    finished = true;
  } else if (by_event) {
    channel->check_context();
    finished = channel->runtime().event_done(channel->ordinal(), event);
  } else {
    poll();
  }
  return finished;
}

void Transfer::State::poll() {
  finished = std::atomic_ref(*flag).load(std::memory_order_acquire) == sequence;
  if (finished) {
    mark(Point::flag_seen);
    if (resident) resident->done(*this);
    if (lesson.delay) observe();
    if (!is_probe) channel->look_after_probe();
    if (brought.memory) brought.pack();
    return;
  }
  ++polls;
  if (polls % polls_per_observation == 1) {
    if (lesson.delay) unfinished = std::chrono::steady_clock::now();
    if (!is_probe) channel->look_after_probe();
  }
  if (!is_probe && polls % polls_per_clock == 0) check_now_and_then();
  if (resident && resident->gone())
    if (const std::optional<Work> work = resident->take_back(*this)) channel->launch_again({*work, this});
}

void Transfer::State::observe() {
  const auto microseconds = [&](auto time) {
    return std::chrono::duration<double, std::micro>(time - started).count();
  };
  lesson.delay->observe(lesson.expected_us, polls == 0 ? 0 : microseconds(unfinished),
                        microseconds(std::chrono::steady_clock::now()), lesson.roughly);
  lesson.delay = nullptr;
}

/// Asks the stream for errors, but not of a transfer that takes as long as it should: asking costs microseconds.
void Transfer::State::check_now_and_then() {
  const auto now = std::chrono::steady_clock::now();
  if (checked == std::chrono::steady_clock::time_point()) {
    checked = now;
  } else if (now - checked >= error_check_period) {
    checked = now;
    channel->check();
  }
}

void Transfer::State::fail(const std::exception& why) {
  const auto* const error = dynamic_cast<const Error*>(&why);
  failure = error ? *error : Error(Failure::out_of_memory, why.what());  // std::bad_alloc
}

void Transfer::State::wait() {
  const std::uint32_t timeout = channel->polls_before_yield();
  for (std::uint32_t i = 1; !done(); ++i)
    if (i >= timeout && i % polls_per_yield == 0) std::this_thread::yield();
}

void Transfer::State::operator delete(State* state, std::destroying_delete_t) noexcept {
  if (state->queued.load(std::memory_order_acquire)) state->channel->drop_held(*state);
  try {
    state->wait();
  } catch (const Error&) {
    // The GPU has failed and nothing runs on it any more; done() reports it elsewhere.
  }
  const std::shared_ptr<Channel> channel = std::move(state->channel);
  channel->put(state);
}

// --- channels -------------------------------------------------------------------------------------------------------

namespace {

Lateness of_runs(Lateness lateness) {
  lateness.model_error = lateness.runs_error;
  return lateness;
}

}  // namespace

Channel::Channel(Engine& engine, int ordinal, std::shared_ptr<const ContextWatch> watch, const Lateness& lateness)
    : kernels(lateness),
      copies(lateness),
      short_runs(of_runs(lateness)),
      engine_(&engine),
      runtime_(&engine.runtime()),
      ordinal_(ordinal),
      watch_(std::move(watch)),
      polls_before_yield_(engine.runtime().works_on_host() ? 0 : most_polls_before_yield),
      stream_(engine.runtime().stream_create(ordinal)) {}

void Channel::grow() {
  Chunk chunk = {std::make_unique<Transfer::State[]>(chunk_states), nullptr, nullptr};
  chunks_.reserve(chunks_.size() + 1);
  chunk.flags = runtime_->mapped_alloc(ordinal_, chunk_states * flag_spacing);
  try {
    chunk.counters = runtime_->device_alloc(ordinal_, chunk_states * counter_spacing);
    runtime_->memset_async(ordinal_, chunk.counters, 0, chunk_states * counter_spacing, stream_);
  } catch (...) {
    if (chunk.counters) runtime_->device_free(ordinal_, chunk.counters);
    runtime_->mapped_free(chunk.flags);
    throw;
  }
  std::memset(chunk.flags, 0, chunk_states * flag_spacing);
  unprepared_.store(true, std::memory_order_relaxed);
  for (std::size_t i = 0; i < chunk_states; ++i) {
    Transfer::State& state = chunk.states[i];
    state.flag = reinterpret_cast<std::uint32_t*>(static_cast<char*>(chunk.flags) + i * flag_spacing);
    state.counter = reinterpret_cast<unsigned*>(static_cast<char*>(chunk.counters) + i * counter_spacing);
    state.next_idle = i + 1 < chunk_states ? &chunk.states[i + 1] : idle_;
  }
  idle_ = &chunk.states[0];
  chunks_.push_back(std::move(chunk));
}

StateOwner Channel::take() {
  const std::lock_guard lock(mutex_);
  if (!idle_) grow();
  Transfer::State* const state = idle_;
  idle_ = state->next_idle;
  lent_.fetch_add(1, std::memory_order_relaxed);
  state->channel = shared_from_this();
  state->finished = true;  // nothing to wait for until something has been started
  state->by_event = state->is_probe = false;
  state->failure.reset();
  state->way = Way::kernel;
  state->polls = 0;
  state->lesson.delay = nullptr;
  state->checked = {};
  ++state->sequence;
  return StateOwner(state);
}

void Channel::put(Transfer::State* state) noexcept {
  if (state->brought.memory) state->brought.memory = {};  // nobody has waited until it was packed
  if (state->resident) state->resident->done(*state);
  const std::lock_guard lock(mutex_);
  state->next_idle = idle_;
  idle_ = state;
  if (!state->by_event && !state->is_probe) lent_.fetch_sub(1, std::memory_order_relaxed);
}

void Channel::learn(Transfer::State& state, const Lesson& lesson) {
  if (unprepared_.load(std::memory_order_relaxed)) return;                  // the stream clears memory, and wakes up
  if (!lesson.delay || lent_.load(std::memory_order_relaxed) != 1) return;  // behind others it would wait for them
  state.lesson = lesson;
  state.started = std::chrono::steady_clock::now();
}

void Channel::handed_over(Transfer::State& state, const Lesson& lesson) {
  learn(state, lesson);
  under_way(state);
}

void Channel::launched(Transfer::State& state) {
  unprepared_.store(false, std::memory_order_relaxed);
  under_way(state);
}

void Channel::under_way(Transfer::State& state) {
  state.finished = false;
  last_flag_ = state.flag;
  last_sequence_ = state.sequence;
}

void Channel::check_context() const {
  watch_->check();
}

void Channel::check_lost() const {
  if (lost_) throw Error(Failure::runtime, ContextWatch::complaint(ordinal_));
}

std::uint64_t Channel::generation() const {
  return watch_->number();
}

/// Throws if the stream's work has failed; then nothing is under way that further work could wait for.
void Channel::check() {
  check_context();
  try {
    runtime_->stream_check(ordinal_, stream_);
  } catch (const Error&) {
    const std::lock_guard lock(queue_mutex);
    last_flag_ = nullptr;
    engine_->failed(ordinal_);
    throw;
  }
}

/// A flag that is set by a later transfer than the one meant has been set by that one, too.
bool Channel::idle() const {
  if (last_flag_ == nullptr) return true;
  const std::uint32_t value = std::atomic_ref(*last_flag_).load(std::memory_order_acquire);
  return static_cast<std::int32_t>(value - last_sequence_) >= 0;
}

void Channel::start_kernel(Transfer::State& state, KernelArgs& args, const Lesson& lesson) {
  learn(state, lesson);
  if (args.flag_behind == 0) args.completion = completion_of(state);
  mark(Point::kernel_planned);
  runtime_->launch(ordinal_, args, stream_);
  if (args.flag_behind != 0) set_flag_behind(state);
  kernel_launched(state);
}

void Channel::kernel_launched(Transfer::State& state) {
  mark(Point::kernel_launched);
  if (state.lesson.delay) allow_for_loading(state);
  launched(state);
}

/// Whether the launch took so long that it may have loaded the kernel, or waited.
bool Channel::allow_for_loading(Transfer::State& state) {
  const auto now = std::chrono::steady_clock::now();
  if (now - state.started <= slow_launch) return false;
  state.started = now;
  state.lesson.roughly = true;  // nor that it was not late
  return true;
}

void Channel::probe(double expected_us) noexcept try {
  check_context();
  const std::unique_lock lock(probe_mutex_, std::try_to_lock);
  if (!lock || probing_.load(std::memory_order_relaxed) || slow_probes_ == most_slow_probes) return;
  const bool first = probe_stream_ == nullptr;
  if (first) probe_stream_ = runtime_->stream_create(ordinal_);
  StateOwner state = take();
  lent_.fetch_sub(1, std::memory_order_relaxed);
  state->is_probe = true;
  if (unprepared_.load(std::memory_order_relaxed)) return;  // the other stream clears the state's memory
  datatype::Shape shape;
  shape.kind = datatype::ShapeKind::contiguous;
  shape.total = shape.run = shape.count = shape.align = probe_bytes;
  shape.extent = 1;
  // From the counter, which nobody else uses, to behind the flag.
  KernelArgs args = plan(shape, /*unpack=*/false, state->counter, reinterpret_cast<char*>(state->flag) + probe_bytes, 0,
                         probe_bytes, {.multiprocessors = 1, .packed_is_host = true});
  args.completion = completion_of(*state);
  if (!first) state->lesson = {&kernels, expected_us};  // as in learn()
  state->started = std::chrono::steady_clock::now();
  runtime_->launch(ordinal_, args, probe_stream_);
  slow_probes_ = allow_for_loading(*state) ? slow_probes_ + 1 : 0;
  state->finished = false;
  probe_ = Transfer(std::move(state));
  looks_left_ = looks_for_probe;
  probing_.store(true, std::memory_order_relaxed);
} catch (const std::exception&) {
  // Then nothing is learnt; what is wrong will show in what somebody waits for.
}

/// While a message is given to the stream.
void Channel::look_in_time() noexcept {
  if (looks_left_ == 0) return;
  look_after_probe();
  looks_left_ = probing_.load(std::memory_order_relaxed) ? looks_left_ - 1 : 0;
}

void Channel::look_after_probe() noexcept {
  if (!probing_.load(std::memory_order_relaxed)) return;
  const std::unique_lock lock(probe_mutex_, std::try_to_lock);
  if (!lock || !probing_.load(std::memory_order_relaxed)) return;
  try {
    if (!probe_.done()) return;
  } catch (const Error&) {  // as above
  }
  probe_ = {};
  probing_.store(false, std::memory_order_relaxed);
}

/// What the stream has been given may use the buffers, even if no flag can tell when that ends.
void Channel::set_flag_behind(const Transfer::State& state) {
  try {
    runtime_->signal_async(ordinal_, state.flag, state.sequence, stream_);
  } catch (const Error&) {
    drain();
    throw;
  }
}

void Channel::start_kernel(Transfer::State& state, TransferArgs& args, const Lesson& lesson) {
  learn(state, lesson);
  args.to.completion = completion_of(state);
  mark(Point::kernel_planned);
  runtime_->launch(ordinal_, args, stream_);
  kernel_launched(state);
}

StateOwner Channel::start_copy(void* to, const void* from, std::size_t bytes) {
  StateOwner state = take();
  state->way = Way::copy;
  if (!state->event) state->event = runtime_->event_create(ordinal_);
  runtime_->copy_async(ordinal_, to, from, bytes, stream_);
  runtime_->event_record(ordinal_, state->event, stream_);
  state->by_event = true;
  state->finished = false;
  lent_.fetch_sub(1, std::memory_order_relaxed);
  return state;
}

/// `give` gives the copies to the stream; false if the runtime refuses one.
template <class Give>
bool Channel::start_copies(Transfer::State& state, const Lesson& lesson, const Give& give) {
  learn(state, lesson);
  mark(Point::copy_planned);
  try {
    if (!give()) {
      state.lesson.delay = nullptr;
      return false;
    }
  } catch (const Error&) {
    drain();  // as in set_flag_behind()
    throw;
  }
  looks_left_ = 0;
  set_flag_behind(state);
  mark(Point::copy_launched);
  state.way = Way::copy;
  launched(state);
  return true;
}

bool Channel::start_copies(Transfer::State& state, const CopyPlan& copy_plan, const Lesson& lesson) {
  return start_copies(state, lesson, [&] {
    for (std::int64_t call = 0; call < copy_plan.calls(); ++call)
      if (!runtime_->copy_box_async(ordinal_, copy_plan[call], stream_)) {
        if (call > 0) drain();  // those before it are queued
        return false;
      } else if (call % calls_between_looks == calls_between_looks - 1) {
        look_in_time();
      }
    return true;
  });
}

bool Channel::start_runs(Transfer::State& state, const CopyPlan& runs, const Lesson& lesson) {
  return start_copies(state, lesson, [&] {
    for (std::int64_t first = 0, last = 0; first < runs.calls(); first = last) {
      last = std::min(first + (looks_left_ > 0 ? runs_between_looks : CopyPlan::most_together), runs.calls());
      if (!runtime_->copy_runs_async(ordinal_, runs, first, last, stream_)) {
        drain();  // those before them are queued, and some of them may be
        return false;
      }
      look_in_time();
    }
    return true;
  });
}

void Channel::drain() noexcept {
  try {
    check_context();
    runtime_->stream_synchronize(ordinal_, stream_);
  } catch (const Error&) {
    // A GPU that has failed has nothing left to wait for.
  }
}

void Channel::close() noexcept {
  if (closed()) return;
  drain();
  lost_ = watch_->ended();
  closed_.store(true, std::memory_order_release);
  if (probe_stream_) {
    const std::lock_guard lock(probe_mutex_);
    try {
      check_context();
      runtime_->stream_synchronize(ordinal_, probe_stream_);
    } catch (const Error&) {  // as in drain()
    }
    probe_ = {};
    probing_.store(false, std::memory_order_relaxed);
    if (!lost_) runtime_->stream_destroy(ordinal_, probe_stream_);
  }
  const std::lock_guard lock(mutex_);
  for (const Chunk& chunk : chunks_) {
    if (!lost_) free_of_gpu(chunk);
    runtime_->mapped_free(chunk.flags);
  }
  if (!lost_) runtime_->stream_destroy(ordinal_, stream_);
  watch_.reset();
}

void Channel::free_of_gpu(const Chunk& chunk) noexcept {
  for (std::size_t i = 0; i < chunk_states; ++i)
    if (chunk.states[i].event) runtime_->event_destroy(ordinal_, chunk.states[i].event);
  runtime_->device_free(ordinal_, chunk.counters);
}

// --- engine ---------------------------------------------------------------------------------------------------------

Gpu::Gpu(int its_ordinal, Traits its_traits, Tuning its_tuning, std::shared_ptr<const ContextWatch> its_watch,
         std::unique_ptr<Resident> its_resident)
    : ordinal(its_ordinal),
      traits(std::move(its_traits)),
      tuning(std::move(its_tuning)),
      watch(std::move(its_watch)),
      resident(std::move(its_resident)) {}
Gpu::~Gpu() = default;

Engine::Engine(std::unique_ptr<Runtime> runtime, const Config& config)
    : runtime_(std::move(runtime)),
      way_(config.way),
      order_(config.order),
      batches_wanted_(config.batches),
      staging_limited_(config.staging_limit != 0),
      resident_use_(config.way == Way::copy ? ResidentUse::never : config.resident),
      tuning_(config.tuning),
      warn_(config.warn),
      trace_(config.trace),
      staging_(Pool::make(*runtime_, {config.staging_limit, config.staging_cache})),
      uploads_(Pool::make(*runtime_, {})),
      peers_(std::make_unique<Peers>(*runtime_)) {}

Engine::~Engine() {
  for (std::atomic<Gpu*>& slot : gpus_)
    if (Gpu* const gpu = slot.load(); gpu && gpu->watch->ended()) lose(*gpu);
  for (std::atomic<Gpu*>& slot : gpus_) {
    const std::unique_ptr<Gpu> gpu(slot.load());
    if (!gpu) continue;
    if (gpu->resident)
      if (const std::optional<Queued> job = gpu->resident->stop()) job->state->channel->launch_again(*job);
    for (const auto& channel : gpu->channels) {
      channel->launch_queued();
      channel->close();
    }
  }
  for (const std::atomic<DefaultStream*>& slot : default_streams_) delete slot.load();
  for (const auto& [address, registered] : registered_)
    if (registered.taken) runtime_->host_unregister(address);
}

/// Its context has ended: nothing that is left of it is given back to the runtime. The caller holds gpus_mutex_, or
/// there are no other threads.
void Engine::lose(Gpu& gpu) noexcept {
  if (trace_) trace_("GPU " + std::to_string(gpu.ordinal) + ": its context has ended; all begins anew");
  recent_.store(nullptr, std::memory_order_release);
  gpus_[gpu.ordinal].store(nullptr, std::memory_order_release);
  lost_.emplace_back(&gpu);
  for (const auto& channel : gpu.channels) {
    channel->launch_queued();  // which fails
    channel->close();
  }
  staging_->lose(gpu.ordinal);
  uploads_->lose(gpu.ordinal);
  peers_->lose(gpu.ordinal);
  if (DefaultStream* const stream = default_streams_[gpu.ordinal].load()) stream->lose();
  const std::lock_guard lock(registered_mutex_);
  std::erase_if(registered_, [&](const auto& entry) { return entry.second.ordinal == gpu.ordinal; });
  runtime_->forget(gpu.ordinal);
}

DefaultStream* Engine::default_stream(int ordinal) {
  if (order_ == Order::none || ordinal < 0 || ordinal >= max_gpus) return nullptr;
  static_cast<void>(gpu(ordinal));  // whose context may have ended
  std::atomic<DefaultStream*>& slot = default_streams_[ordinal];
  if (DefaultStream* const stream = slot.load(std::memory_order_acquire)) return stream;
  const std::lock_guard lock(gpus_mutex_);
  if (slot.load(std::memory_order_acquire) == nullptr)
    slot.store(new DefaultStream(*runtime_, ordinal, order_), std::memory_order_release);
  return slot.load(std::memory_order_acquire);
}

bool Engine::register_host(int ordinal, void* address, std::size_t bytes) {
  static_cast<void>(gpu(ordinal));
  const std::lock_guard lock(registered_mutex_);
  const auto [at, is_new] = registered_.emplace(address, Registered{ordinal, false});
  if (is_new) at->second.taken = runtime_->host_register(ordinal, address, bytes);
  return at->second.taken;
}

Gpu& Engine::gpu(int ordinal) {
  if (ordinal < 0 || ordinal >= max_gpus)
    throw Error(Failure::runtime, "GPU " + std::to_string(ordinal) + ": only GPUs 0 to " +
                                      std::to_string(max_gpus - 1) + " are supported");
  std::atomic<Gpu*>& slot = gpus_[ordinal];
  if (Gpu* gpu = slot.load(std::memory_order_acquire); gpu && !gpu->watch->ended()) return *gpu;
  const std::lock_guard lock(gpus_mutex_);
  if (Gpu* gpu = slot.load(std::memory_order_acquire)) {
    if (!gpu->watch->ended()) return *gpu;
    lose(*gpu);
  }
  Traits traits = runtime_->traits(ordinal);
  Tuning tuning = read_tuning(tuning_, {traits.name, host_cpu()});
  if (warn_ && !tuning.complaint.empty()) warn_(tuning.complaint);
  const auto watch = std::make_shared<const ContextWatch>(*runtime_, ordinal);
  std::unique_ptr<Resident> resident;
  if (resident_use_ != ResidentUse::never)
    resident = std::make_unique<Resident>(*runtime_, ordinal, resident_use_, watch);
  auto made = std::make_unique<Gpu>(ordinal, std::move(traits), std::move(tuning), watch, std::move(resident));
  for (auto& channel : made->channels)
    channel = std::make_shared<Channel>(*this, ordinal, watch, made->tuning.model.lateness);
  Gpu* const gpu = made.release();
  slot.store(gpu, std::memory_order_release);
  return *gpu;
}

Movements Engine::movements() const {
  Movements sum = {kernels_.load(), copies_.load(), batches_.load(), batched_.load()};
  for (const std::atomic<Gpu*>& slot : gpus_)
    if (const Gpu* gpu = slot.load(std::memory_order_acquire)) {
      for (const auto& channel : gpu->channels)
        sum.late += channel->kernels.times() + channel->copies.times() + channel->short_runs.times();
      if (gpu->resident) sum.resident += gpu->resident->jobs();
    }
  return sum;
}

void Engine::about_to_wait(WaitKind kind) noexcept {
  const Gpu* const gpu = recent_.load(std::memory_order_acquire);
  if (gpu && gpu->resident) gpu->resident->about_to_wait(kind, /*may_launch=*/!resident_late(*gpu));
}

/// Whether the persistent kernel had better not, since kernels begin late.
bool Engine::resident_late(const Gpu& gpu) const {
  if (resident_use_ == ResidentUse::always) return false;
  return std::any_of(std::begin(gpu.channels), std::end(gpu.channels),
                     [](const auto& channel) { return channel->kernels.expected_us() != 0; });
}

/// Null where there is none, or the GPU has not been used.
Resident* Engine::resident_of(int ordinal) const {
  const Gpu* const gpu = gpus_[ordinal].load(std::memory_order_acquire);
  return gpu ? gpu->resident.get() : nullptr;
}

void Engine::failed(int ordinal) noexcept {
  if (Resident* const resident = resident_of(ordinal)) resident->give_up();
}

void Engine::shared_with_others(int ordinal, bool yields) noexcept {
  shared_[ordinal].store(true, std::memory_order_relaxed);
  const Gpu* const gpu = gpus_[ordinal].load(std::memory_order_acquire);
  if (gpu == nullptr) return;
  if (gpu->resident) gpu->resident->shared_with_others();
  if (!yields) return;
  for (const auto& channel : gpu->channels) channel->kernels.yield_turns();
}

std::vector<std::string> Engine::cost_sources() const {
  std::vector<std::string> sources;
  for (const std::atomic<Gpu*>& slot : gpus_)
    if (const Gpu* gpu = slot.load(std::memory_order_acquire))
      sources.push_back("GPU " + std::to_string(gpu->ordinal) + ": " + gpu->tuning.source);
  return sources;
}

// --- the ways to move a message --------------------------------------------------------------------------------------

Transfer Engine::start(Direction direction, int ordinal, const datatype::Layout& layout, std::int64_t count, void* user,
                       std::int64_t begin, std::int64_t end, void* packed, std::optional<MemoryKind> packed_kind,
                       const StreamMark& after) {
  if (begin >= end) return {};
  Gpu& here = gpu(ordinal);
  const MemoryKind kind = packed_kind ? *packed_kind : runtime_->classify(packed).kind;
  const Packing packing = {direction, &layout, layout.shape(count), user, begin, end, packed, kind};
  return this->begin(here, here.channel(direction), packing, after);
}

Transfer Engine::copy(int ordinal, void* to, const void* from, std::size_t bytes, const StreamMark& after) {
  if (bytes == 0) return {};
  const Location to_place = runtime_->classify(to), from_place = runtime_->classify(from);
  const bool pack = from_place.on_device() && from_place.ordinal == ordinal;
  const Location& packed = pack ? to_place : from_place;
  // Kernels reach pinned memory and this GPU's own; another GPU's only where peer access is on, which is not known.
  const bool reachable = packed.kind == MemoryKind::pinned || (packed.on_device() && packed.ordinal == ordinal);
  Packing packing = {pack ? Direction::pack : Direction::unpack, nullptr, {},         nullptr, 0,
                     static_cast<std::int64_t>(bytes),           nullptr, packed.kind};
  if (!reachable) packing.packed_kind = MemoryKind::host;
  packing.shape.kind = datatype::ShapeKind::contiguous;
  packing.shape.total = packing.shape.run = packing.shape.count = packing.end;
  packing.shape.extent = 1;
  packing.user = pack ? const_cast<void*>(from) : to;
  packing.packed = pack ? to : const_cast<void*>(from);
  Gpu& here = gpu(ordinal);
  return begin(here, here.channel(packing.direction), packing, after);
}

namespace {

/// Of an irregular message that is divided into them. To the host, more come with what lies between (consider_span());
/// from there, they take too long one by one.
std::int64_t most_runs(const TransferContext& context) {
  return context.unpack && context.runs_together ? CopyPlan::most_calls : CopyPlan::most_together;
}

/// Null where runs one by one are slower than kernels.
const datatype::Layout* layout_of_runs(const Packing& packing, const TransferContext& context) {
  return context.packed_is_host ? packing.layout : nullptr;
}

/// The calls that the copy engine would move the message by, runs each by its own.
CopyPlan divided(const Packing& packing, const TransferContext& context) {
  return copy_plan_of(packing.shape, context.unpack, packing.user, packing.packed, packing.begin, packing.end,
                      layout_of_runs(packing, context), most_runs(context));
}

}  // namespace

/// Where other processes have the GPU for time slices, short runs from the host that go together would wait for one.
TransferContext Engine::transfer_context(const Gpu& gpu, const Packing& packing) const {
  const bool unpack = packing.direction == Direction::unpack;
  const bool from_host_together =
      runtime_->copies_runs_together() && !shared_[gpu.ordinal].load(std::memory_order_relaxed);
  return {.unpack = unpack,
          .packed_is_host = is_host(packing.packed_kind),
          .peer = packing.peer,
          .runs_together = packing.packed_kind == MemoryKind::pinned && (!unpack || from_host_together)};
}

Engine::Forecast Engine::foresee(const Gpu& gpu, const Channel& channel, const Packing& packing, bool spans) const {
  const TransferContext context = transfer_context(gpu, packing);
  const bool unpack = context.unpack;
  CopyPlan copy_plan;
  if (!kernels_reach(packing) ||
      !surely_a_kernel(gpu, channel, packing.shape, packing.bytes(), context, layout_of_runs(packing, context)))
    copy_plan = divided(packing, context);
  if (unpack && context.packed_is_host && copy_plan.are_runs())
    return forecast_of_runs(gpu, channel, packing.bytes(), context, std::move(copy_plan));
  Forecast forecast = forecast_of(gpu, channel, packing.bytes(), context, std::move(copy_plan));
  if (spans && !unpack && context.packed_is_host) consider_span(gpu, channel, packing, context, forecast);
  return forecast;
}

/// From the host: together, or in pairs (in_two_rows()), which the copy engine moves.
Engine::Forecast Engine::forecast_of_runs(const Gpu& gpu, const Channel& channel, std::int64_t bytes,
                                          const TransferContext& context, CopyPlan runs) {
  TransferContext alone = context;
  alone.runs_together = false;
  const double row_bytes = gpu.tuning.model.engine_row_bytes;
  const auto one_by_one_of = [&] {
    Forecast forecast = forecast_of(gpu, channel, bytes, alone, in_two_rows(runs, row_bytes));
    forecast.in_pairs = forecast.copy_plan.calls() < runs.calls();
    return forecast;
  };
  if (!context.runs_together) return one_by_one_of();
  // So many are quicker together unless these wait for a time slice, and to list them takes a while.
  if (runs.calls() > CopyPlan::most_together && channel.short_runs.expected_us() == 0)
    return forecast_of(gpu, channel, bytes, context, std::move(runs));
  Forecast one_by_one = one_by_one_of();
  Forecast together = forecast_of(gpu, channel, bytes, context, std::move(runs));
  const bool sooner = together.copy_us + together.copy_late_us < one_by_one.copy_us + one_by_one.copy_late_us;
  return std::move(sooner ? together : one_by_one);
}

/// All of a message that goes to the host may come there with what lies between its runs.
void Engine::consider_span(const Gpu& gpu, const Channel& channel, const Packing& packing,
                           const TransferContext& context, Forecast& forecast) const {
  if (packing.layout == nullptr || packing.begin != 0 || packing.end != packing.shape.total) return;
  const datatype::Span span = span_to_bring(*packing.layout, packing.shape);
  if (span.bytes() == 0) return;
  const CostModel& model = gpu.tuning.model;
  forecast.span_us = span_cost_us(model, span, *packing.layout, packing.shape);
  if (!forecast.copy_plan.empty() && forecast.copy_us <= forecast.span_us) return;
  const std::tuple without = {forecast.copy_us, forecast.extra_copy_us, forecast.copy_better};
  forecast.span = span;
  forecast.copy_us = forecast.span_us;
  forecast.extra_copy_us = forecast.span_us - model.copy_pack_to_host.base_us + model.extra_copy_us;
  compare(gpu, channel, context, forecast);
  if (prefers_copy(forecast) && may_bring(packing, span)) return;
  forecast.span = {};
  std::tie(forecast.copy_us, forecast.extra_copy_us, forecast.copy_better) = without;
}

namespace {

std::uintptr_t first_of(const datatype::Span& span, const void* user) {
  return reinterpret_cast<std::uintptr_t>(user) + static_cast<std::uintptr_t>(span.begin);
}

}  // namespace

/// Not where memory is scarce, for it is others' then; nor a struct whose members were allocated one by one.
bool Engine::may_bring(const Packing& packing, const datatype::Span& span) const {
  if (staging_limited_ || staging_->statistics(StagingKind::mapped).in_use > most_staging_beside_spans) return false;
  return in_one_allocation(packing, span);
}

/// Else the driver may refuse a copy from what lies between, or of rows that lie in several. Takes a question to it.
bool Engine::in_one_allocation(const Packing& packing, const datatype::Span& span) const {
  const std::uintptr_t first = first_of(span, packing.user);
  Allocation allocation;
  return runtime_->allocation_of(reinterpret_cast<const void*>(first), allocation) && first >= allocation.base &&
         first + static_cast<std::uint64_t>(span.bytes()) <= allocation.base + allocation.size;
}

Engine::Forecast Engine::foresee(const Gpu& gpu, const Channel& channel, const LayoutTransfer& layouts) const {
  const TransferContext context = {.unpack = true, .packed_is_host = false, .peer = true};
  CopyPlan copy_plan;
  if (!surely_a_kernel(gpu, channel, layouts.to_shape, layouts.bytes(), context))
    copy_plan = copy_plan_between(
        copy_plan_of(layouts.from_shape, /*unpack=*/false, layouts.from.user, nullptr, 0, layouts.bytes()),
        copy_plan_of(layouts.to_shape, /*unpack=*/true, layouts.to.user, nullptr, 0, layouts.bytes()));
  return forecast_of(gpu, channel, layouts.bytes(), context, std::move(copy_plan));
}

/// Whether a message need not be divided into calls of the copy engine to see that it had better be moved by a kernel,
/// alone or with others: what a further copy takes less than a first one (extra_copy_us) is not looked at. Short
/// messages would spend a fortieth of their time on it, and those of many runs more.
bool Engine::surely_a_kernel(const Gpu& gpu, const Channel& channel, const datatype::Shape& shape, std::int64_t bytes,
                             const TransferContext& context, const datatype::Layout* layout) const {
  if (way_ != Way::automatic || trace_) return way_ == Way::kernel && !trace_;
  const CostModel& model = gpu.tuning.model;
  const std::int64_t calls = least_calls(shape, bytes, layout, most_runs(context));
  return calls == 0 || least_copy_cost_us(model, shape, bytes, calls, context) >
                           kernel_cost_us(model, bytes, context) + channel.kernels.expected_us();
}

Engine::Forecast Engine::forecast_of(const Gpu& gpu, const Channel& channel, std::int64_t bytes,
                                     const TransferContext& context, CopyPlan given) {
  const CostModel& model = gpu.tuning.model;
  Forecast forecast = {std::move(given), {}, kernel_cost_us(model, bytes, context), channel.kernels.expected_us()};
  const CopyPlan& copy_plan = forecast.copy_plan;
  forecast.job_us = batch_job_cost_us(model, bytes, context);
  if (copy_plan.empty()) return forecast;
  forecast.copy_us = copy_cost_us(model, bytes, copy_plan, context);
  forecast.extra_copy_us = extra_copy_cost_us(model, bytes, copy_plan, context);
  forecast.together = context.runs_together && copy_plan.are_runs();
  forecast.short_runs = forecast.together && context.unpack && has_short_row(copy_plan, model.engine_row_bytes);
  compare(gpu, channel, context, forecast);
  return forecast;
}

/// Whether the copy engine is the better way, as things are.
void Engine::compare(const Gpu& gpu, const Channel& channel, const TransferContext& context, Forecast& forecast) {
  const Delay& copies = forecast.short_runs ? channel.short_runs : channel.copies;
  if (context.packed_is_host) forecast.copy_late_us = copies.expected_us();
  Estimate copy = {forecast.copy_us, forecast.copy_late_us, copies.seen()};
  // Late short runs wait for what kernels wait for, so that taking turns with these would tell nothing.
  if (forecast.short_runs) copy = {copy.us + copy.late_us, 0};
  forecast.copy_better = copy_is_better(copy, {forecast.kernel_us, forecast.kernel_late_us, channel.kernels.seen()},
                                        gpu.tuning.model.lateness);
}

bool Engine::prefers_copy(const Forecast& forecast) const {
  if (!forecast.can_copy()) return false;
  if (way_ != Way::automatic) return way_ == Way::copy;
  return forecast.copy_better;
}

/// False if the copy engine refuses.
bool Engine::start_copy_engine(Gpu& gpu, Channel& channel, const Packing& packing, const Forecast& forecast,
                               Transfer::State& state) {
  if (forecast.span.bytes() != 0) {
    if (start_span(gpu, channel, packing, forecast.span, state)) return true;
    const Forecast without = foresee(gpu, channel, packing, /*spans=*/false);
    const bool copy = kernels_reach(packing) ? prefers_copy(without) : without.can_copy();
    return copy && start_copy_engine(gpu, channel, packing, without, state);
  }
  const auto bytes = static_cast<double>(packing.bytes());
  const CostModel& model = gpu.tuning.model;
  if (forecast.in_pairs && !in_one_allocation(packing, packing.layout->span(packing.shape.count))) {
    Forecast alone = forecast;
    alone.in_pairs = false;
    alone.copy_plan =
        in_two_rows(divided(packing, transfer_context(gpu, packing)), model.engine_row_bytes, /*in_pairs=*/false);
    return start_copy_engine(gpu, channel, packing, alone, state);
  }
  const CopyPlan& copy_plan = forecast.copy_plan;
  const bool host = is_host(packing.packed_kind);
  const bool unpack = packing.direction == Direction::unpack;
  const bool one_row = unpack && host && copy_plan.rows() == 1 && bytes < model.engine_row_bytes;
  if (one_row && bytes < model.engine_quicker_bytes && forecast.kernel_late_us == 0)
    return channel.start_copies(state, copy_plan, {&channel.kernels, forecast.copy_us});
  if (forecast.together)
    return channel.start_runs(state, copy_plan,
                              {forecast.short_runs ? &channel.short_runs : &channel.copies, forecast.copy_us});
  // Where rows go either way, who knows which of them is late.
  const bool mixed = unpack && copy_plan.calls() > 1 && has_short_row(copy_plan, model.engine_row_bytes);
  Delay* const learner = host && !mixed ? &channel.copies : nullptr;
  return channel.start_copies(state, one_row ? in_two_rows(copy_plan, model.engine_row_bytes) : copy_plan,
                              {learner, forecast.copy_us});
}

/// False if there is no memory for it, or the copy engine refuses.
bool Engine::start_span(Gpu& gpu, Channel& channel, const Packing& packing, const datatype::Span& span,
                        Transfer::State& state) {
  void* const first = reinterpret_cast<void*>(first_of(span, packing.user));
  const auto bytes = static_cast<std::size_t>(span.bytes());
  Staging memory = staging_->try_acquire(StagingKind::mapped, gpu.ordinal, bytes);
  if (!memory) return false;
  CopyPlan row;
  row.add({{memory.data(), bytes, bytes}, {first, bytes, bytes}, bytes});
  if (!channel.start_copies(state, row, {&channel.copies, span_copy_cost_us(gpu.tuning.model, span)})) return false;
  state.brought = {std::move(memory), packing.layout, packing.bytes(), span.begin, packing.packed};
  return true;
}

bool Engine::start_copy_engine(Gpu&, Channel& channel, const LayoutTransfer&, const Forecast& forecast,
                               Transfer::State& state) {
  return channel.start_copies(state, forecast.copy_plan);
}

void Engine::start_kernel(Gpu& gpu, Channel& channel, const Packing& packing, const Forecast& forecast,
                          Transfer::State& state) {
  const PlanHints hints = {gpu.traits.multiprocessors, is_host(packing.packed_kind),
                           packing.layout ? packing.layout->program().lookaside : nullptr, packing.peer};
  KernelArgs args = plan(packing.shape, packing.direction == Direction::unpack, packing.user, packing.packed,
                         packing.begin, packing.end, hints);
  const datatype::ShapeKind kind = packing.shape.kind;
  Lesson lesson = lesson_of(channel.kernels, packing.bytes(), forecast.kernel_us, run_of(packing.shape),
                            {.packed_is_host = is_host(packing.packed_kind), .peer = packing.peer});
  if (kind == datatype::ShapeKind::list || kind == datatype::ShapeKind::general) {
    Upload& upload = Upload::of(*packing.layout, gpu.ordinal);
    args.program = upload.program(*this, channel, *packing.layout);
    if (!upload.there()) lesson = {};  // the kernel waits for it
  }
  if (kind == datatype::ShapeKind::general) {
    args.nodes = packing.layout->program().nodes;
    args.node_count =
        reinterpret_cast<const datatype::SerialisedHeader*>(packing.layout->serialised().data())->node_count;
  }
  channel.start_kernel(state, args, lesson);
}

void Engine::start_kernel(Gpu& gpu, Channel& channel, const LayoutTransfer& layouts, const Forecast& forecast,
                          Transfer::State& state) {
  const auto upload = [&](const Side& side, const datatype::Shape& shape, datatype::Program& program) -> Upload* {
    if (shape.kind == datatype::ShapeKind::strided) return nullptr;
    Upload& its = Upload::of(*side.layout, gpu.ordinal);
    program = its.program(*this, channel, *side.layout);
    return &its;
  };
  datatype::Program from_program, to_program;
  Upload* const from_upload = upload(layouts.from, layouts.from_shape, from_program);
  Upload* const to_upload = upload(layouts.to, layouts.to_shape, to_program);
  const bool alike = alike_forms(layouts.from_shape, layouts.to_shape) &&
                     (!from_upload || from_upload->same_program(*layouts.from.layout, *to_upload, *layouts.to.layout));
  TransferArgs args =
      plan_transfer({layouts.from_shape, layouts.from.user}, {layouts.to_shape, layouts.to.user}, alike,
                    layouts.bytes(), {.multiprocessors = gpu.traits.multiprocessors, .packed_is_peer = true});
  args.from.program = from_program;
  args.to.program = to_program;
  const bool waits = (from_upload && !from_upload->there()) || (to_upload && !to_upload->there());
  const Lesson lesson = lesson_of(channel.kernels, layouts.bytes(), forecast.kernel_us,
                                  std::min(run_of(layouts.from_shape), run_of(layouts.to_shape)), {.peer = true});
  channel.start_kernel(state, args, waits ? Lesson() : lesson);
}

/// Of a message that goes by copies. A process that yields its turns had better launch nothing.
bool Engine::worth_a_probe(const Channel& channel, const Forecast& forecast) const {
  return way_ == Way::automatic && forecast.kernel_late_us != 0 && !channel.kernels.yields() &&
         forecast.copy_us - forecast.kernel_us > worth_a_probe_us;
}

/// A message by itself.
void Engine::launch(Gpu& gpu, Channel& channel, const Work& work, Transfer::State& state) {
  channel.check_context();
  std::visit(
      [&](const auto& it) {
        const Forecast forecast = foresee(gpu, channel, it);
        const bool unreachable = !kernels_reach(it);
        const bool copy = (unreachable && forecast.can_copy()) || prefers_copy(forecast);
        mark(Point::way_chosen);
        if (copy && !unreachable && worth_a_probe(channel, forecast))
          channel.probe(gpu.tuning.model.kernel_pack_to_host.base_us);
        if (copy && try_copy(gpu, channel, work, forecast, state)) return;
        if (unreachable)
          throw Error(Failure::runtime, "GPU " + std::to_string(gpu.ordinal) + ": its copy engine refuses to move " +
                                            std::to_string(it.bytes()) +
                                            " bytes to or from memory that kernels cannot reach");
        start_kernel(gpu, channel, it, forecast, state);
        kernels_.fetch_add(1, std::memory_order_relaxed);
        if (trace_) trace(gpu, work, forecast, "a kernel");
      },
      work);
}

/// False if the copy engine refuses.
bool Engine::try_copy(Gpu& gpu, Channel& channel, const Work& work, const Forecast& forecast, Transfer::State& state) {
  return std::visit(
      [&](const auto& it) {
        if (!start_copy_engine(gpu, channel, it, forecast, state)) return false;
        copies_.fetch_add(1, std::memory_order_relaxed);
        if (trace_) trace(gpu, work, forecast, "the copy engine");
        return true;
      },
      work);
}

namespace {

const char* name_of(const Packing& packing) {
  return packing.direction == Direction::pack ? "pack" : "unpack";
}
const char* name_of(const LayoutTransfer&) {
  return "transfer from layout to layout";
}

std::int64_t calls_of(const CopyPlan& copy_plan, bool together) {
  return together ? (copy_plan.calls() + CopyPlan::most_together - 1) / CopyPlan::most_together : copy_plan.calls();
}

}  // namespace

void Engine::trace(const Gpu& gpu, const Work& work, const Forecast& forecast, const std::string& mover) const {
  const auto microseconds = [](double us) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f us", us);
    return std::string(text);
  };
  std::visit(
      [&](const auto& it) {
        std::string text = name_of(it);
        text += " of " + std::to_string(it.bytes()) + " B on GPU " + std::to_string(gpu.ordinal) + " by " + mover +
                "; expected: kernel " +
                (kernels_reach(it) ? microseconds(forecast.kernel_us) : "impossible (pageable memory)");
        if (forecast.kernel_late_us != 0) text += " + " + microseconds(forecast.kernel_late_us) + " late";
        text += ", copy engine ";
        if (forecast.span.bytes() != 0)
          text += microseconds(forecast.copy_us) + " (a span of " + std::to_string(forecast.span.bytes()) +
                  " B, which the host packs)";
        else if (forecast.copy_plan.empty())
          text += forecast.span_us == 0 ? "impossible" : microseconds(forecast.span_us) + " by a span";
        else
          text += microseconds(forecast.copy_us) + " (" + std::to_string(forecast.copy_plan.rows()) + " rows, " +
                  std::to_string(calls_of(forecast.copy_plan, forecast.together)) + " calls)";
        if (forecast.copy_late_us != 0) text += " + " + microseconds(forecast.copy_late_us) + " late";
        if (way_ != Way::automatic) text += ", GPUDT_WAY";
        trace_(text);
      },
      work);
}

// --- from layout to layout -------------------------------------------------------------------------------------------

Transfer Engine::transfer(int ordinal, const Side& from, const Side& to, std::int64_t begin, std::int64_t end,
                          const StreamMark& after) {
  if (begin >= end) return {};
  const datatype::Shape from_shape = from.layout->shape(from.count), to_shape = to.layout->shape(to.count);
  if (end > from_shape.total || end > to_shape.total)
    throw Error(Failure::runtime, "a transfer of more bytes than there are");
  Gpu& here = gpu(ordinal);
  // What comes from a peer is an unpack to the rest of the process, whichever side is the packed one.
  Channel& channel = here.channel(Direction::unpack);
  const auto place_of = [begin](const Side& side, const datatype::Shape& shape) {
    return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(side.user) +
                                   static_cast<std::uintptr_t>(shape.offset + begin));
  };
  using datatype::ShapeKind;
  if (from_shape.kind == ShapeKind::contiguous)
    return this->begin(here, channel,
                       Packing{Direction::unpack, to.layout, to_shape, to.user, begin, end, place_of(from, from_shape),
                               MemoryKind::device, true},
                       after);
  if (begin != 0) throw Error(Failure::runtime, "a transfer of the later part of a message that is not packed");
  if (to_shape.kind == ShapeKind::contiguous)
    return this->begin(here, channel,
                       Packing{Direction::pack, from.layout, from_shape, from.user, 0, end, place_of(to, to_shape),
                               MemoryKind::device, true},
                       after);
  return this->begin(here, channel, LayoutTransfer{from, to, from_shape, to_shape, end}, after);
}

}  // namespace gpudt::device
