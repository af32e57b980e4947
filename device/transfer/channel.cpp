#include "device/transfer/channel.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <string>

#include "base/one_thread.hpp"
#include "device/memory/in_time.hpp"
#include "device/transfer/context_watch.hpp"
#include "device/transfer/engine.hpp"
#include "device/transfer/points.hpp"
#include "device/transfer/resident.hpp"

namespace gpudt::device {
namespace {

/// Polls after which a waiting thread yields: no fewer, since a yield takes as long as the last steps of a short
/// transfer, some 30 us.
constexpr std::uint32_t most_polls_before_yield = 4096;
/// The runs, or the calls, that are given to the copy engine between two of the first polls of a probe. Either takes
/// some 17 us; an end that is seen after three times as long would show nothing.
constexpr std::int64_t runs_between_looks = 16, calls_between_looks = 8;
/// A launch that takes longer has loaded the kernel, as its first launch does, which shows nothing about the GPU.
constexpr auto slow_launch = std::chrono::microseconds(40);

/// States are made in chunks.
constexpr std::size_t chunk_states = 256;
/// Those that a channel has before the program enqueues anything in streams.
constexpr std::size_t states_prepared = 1024;
constexpr std::size_t flag_spacing = 64;  ///< a cache line: neighbouring flags are polled by other threads
constexpr std::size_t counter_spacing = sector_bytes;
static_assert(2 * Channel::probe_bytes <= flag_spacing && Channel::probe_bytes <= counter_spacing);
static_assert(CopyPlan::most_together <= static_cast<std::int64_t>(Runtime::most_runs));

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
      generation_(watch_->number()),
      polls_before_yield_(engine.runtime().works_on_host() ? 0 : most_polls_before_yield),
      stream_(engine.runtime().stream_create(ordinal)),
      uploaded_(engine.runtime().event_create(ordinal)) {}

/// Makes more states, unless there are idle ones.
void Channel::grow() {
  {
    const LockGuard lock(mutex_);
    if (idle_ != nullptr) return;
    chunks_.reserve(chunks_.size() + 1);
  }
  Chunk chunk = {std::make_unique<Transfer::State[]>(chunk_states), nullptr, nullptr, false};
  chunk.flags = runtime_->mapped_alloc(ordinal_, chunk_states * flag_spacing);
  try {
    make_counters(chunk);
  } catch (...) {
    runtime_->mapped_free(ordinal_, chunk.flags);
    throw;
  }
  std::memset(chunk.flags, 0, chunk_states * flag_spacing);
  unprepared_.store(true, std::memory_order_relaxed);
  const LockGuard lock(mutex_);
  for (std::size_t i = 0; i < chunk_states; ++i) {
    Transfer::State& state = chunk.states[i];
    state.flag = reinterpret_cast<std::uint32_t*>(static_cast<char*>(chunk.flags) + i * flag_spacing);
    state.counter = reinterpret_cast<unsigned*>(static_cast<char*>(chunk.counters) + i * counter_spacing);
    state.next_idle = i + 1 < chunk_states ? &chunk.states[i + 1] : idle_;
  }
  idle_ = &chunk.states[0];
  chunks_.push_back(std::move(chunk));
}

/// The counters are in device memory or, if the GPU has none left, in pinned memory.
void Channel::make_counters(Chunk& chunk) {
  constexpr std::size_t bytes = chunk_states * counter_spacing;
  try {
    chunk.counters = runtime_->device_alloc(ordinal_, bytes);
  } catch (const Error& error) {
    if (error.failure() != Failure::out_of_memory) throw;
    chunk.counters = std::memset(runtime_->mapped_alloc(ordinal_, bytes), 0, bytes);
    chunk.counters_on_host = true;
    return;
  }
  try {
    runtime_->memset_async(ordinal_, chunk.counters, 0, bytes, stream_);
  } catch (...) {
    runtime_->device_free(ordinal_, chunk.counters);
    throw;
  }
}

void Channel::prepare() {
  std::vector<StateOwner> some;  // which go back at the end
  while (some.size() < states_prepared) some.push_back(take());
  const LockGuard lock(queue_mutex);
  make_second_stream(short_time);
}

/// Whether there is one.
bool Channel::make_second_stream(std::chrono::milliseconds time) {
  const auto make = [self = shared_from_this()] {
    if (self->second_stream_ == nullptr) self->second_stream_ = self->runtime_->stream_create(self->ordinal_);
  };
  return second_stream_ != nullptr || in_time(make, time);
}

StateOwner Channel::take() {
  StateOwner state = take_within(long_time);
  if (!state)
    throw Error(Failure::out_of_memory,
                "no memory for more transfers can be had in time while operations are enqueued in streams");
  return state;
}

StateOwner Channel::take_within(std::chrono::milliseconds time) {
  const LockGuard lock(mutex_);
  while (!idle_) {
    const Unlocked unlocked(mutex_);
    if (!in_time([self = shared_from_this()] { self->grow(); }, time)) return nullptr;
  }
  Transfer::State* const state = idle_;
  idle_ = state->next_idle;
  add_to(lent_, 1, std::memory_order_relaxed);
  state->channel = shared_from_this();
  state->finished = true;  // nothing to wait for until something has been started
  state->is_probe = false;
  state->counted = true;
  state->failure.reset();
  state->way = Way::kernel;
  state->polls = 0;
  state->lesson.delay = nullptr;
  state->checked = {};
  ++state->sequence;
  return StateOwner(state);
}

void Channel::do_not_count(Transfer::State& state) {
  state.counted = false;
  take_from(lent_, 1, std::memory_order_relaxed);
}

void Channel::put(Transfer::State* state) noexcept {
  if (state->copied_span.memory) state->copied_span.memory = {};  // it failed, or its channel was closed
  if (state->resident) state->resident->done(*state);
  const LockGuard lock(mutex_);
  state->next_idle = idle_;
  idle_ = state;
  if (state->counted) take_from(lent_, 1, std::memory_order_relaxed);
}

void Channel::learn(Transfer::State& state, const Lesson& lesson) {
  if (unprepared_.load(std::memory_order_relaxed)) return;                  // the stream clears memory, and wakes up
  if (!lesson.delay || lent_.load(std::memory_order_relaxed) != 1) return;  // its time would include that of other work
  state.lesson = lesson;
  state.started = Clock::now();
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
  one_before_ = latest_;
  latest_began_ = std::chrono::steady_clock::now();
  crowded_polls_ = 0;
  launched_too(state);
}

void Channel::launched_too(Transfer::State& state) {
  state.finished = false;
  latest_ = {state.flag, state.sequence};
}

void Channel::check_lost() const {
  if (lost_) throw Error(Failure::runtime, ContextWatch::complaint(ordinal_));
}

/// Throws if the stream's work has failed; then nothing is under way that further work could wait for.
void Channel::check() {
  check_context();
  try {
    runtime_->stream_check(ordinal_, stream_);
    if (const StreamHandle second = second_stream_) runtime_->stream_check(ordinal_, second);
  } catch (const Error&) {
    const LockGuard lock(queue_mutex);
    latest_ = one_before_ = {};
    engine_->failed(ordinal_);
    throw;
  }
}

bool Channel::at_rest() {
  if (!queue_mutex.try_lock()) return false;
  const LockGuard lock(queue_mutex, std::adopt_lock);
  return queue.empty() && held.empty() && idle();
}

void Channel::start_kernel(Transfer::State& state, KernelArgs& args, const Lesson& lesson) {
  learn(state, lesson);
  if (args.flag_behind == 0) args.completion = completion_of(state);
  mark(point::kernel_planned);
  runtime_->launch(ordinal_, args, stream_);
  if (args.flag_behind != 0) set_flag_behind(state, stream_);
  kernel_launched(state);
}

void Channel::kernel_launched(Transfer::State& state) {
  mark(point::kernel_launched);
  if (state.lesson.delay) allow_for_loading(state);
  launched(state);
}

/// Whether the launch took so long that it may have loaded the kernel, or waited.
bool Channel::allow_for_loading(Transfer::State& state) {
  const auto now = Clock::now();
  if (now - state.started <= slow_launch) return false;
  state.started = now;
  state.lesson.roughly = true;  // the time cannot show that it began in time
  return true;
}

/// Has the stream set the flag. If that fails, waits for the stream's work, which may use the buffers.
void Channel::set_flag_behind(const Transfer::State& state, StreamHandle stream) {
  try {
    runtime_->signal_async(ordinal_, state.flag, state.sequence, stream);
  } catch (const Error&) {
    drain(stream);
    throw;
  }
}

void Channel::start_kernel(Transfer::State& state, TransferArgs& args, const Lesson& lesson) {
  learn(state, lesson);
  args.to.completion = completion_of(state);
  mark(point::kernel_planned);
  runtime_->launch(ordinal_, args, stream_);
  kernel_launched(state);
}

StateOwner Channel::start_copy(void* to, const void* from, std::size_t bytes) {
  StateOwner state = take();
  state->way = Way::copy;
  do_not_count(*state);
  runtime_->copy_async(ordinal_, to, from, bytes, stream_);
  runtime_->event_record(ordinal_, uploaded_, stream_);
  set_flag_behind(*state, stream_);
  state->finished = false;
  return state;
}

/// `give` gives the copies to the stream; false if the runtime refuses one.
template <class Give>
bool Channel::give_copies(Transfer::State& state, const Lesson& lesson, StreamHandle stream, const Give& give) {
  learn(state, lesson);
  mark(point::copy_planned);
  try {
    if (!give()) {
      state.lesson.delay = nullptr;
      return false;
    }
  } catch (const Error&) {
    drain(stream);  // as in set_flag_behind()
    throw;
  }
  looks_left_ = 0;
  set_flag_behind(state, stream);
  mark(point::copy_launched);
  state.way = Way::copy;
  state.finished = false;
  return true;
}

bool Channel::start_copies(Transfer::State& state, const CopyPlan& copy_plan, const Lesson& lesson) {
  if (!give_copies(state, copy_plan, lesson, stream_)) return false;
  launched(state);
  return true;
}

bool Channel::start_peer_copies(Transfer::State& state, const CopyPlan& copy_plan) {
  on_second_ = !idle() && !on_second_ && make_second_stream(std::chrono::milliseconds(0));
  if (!give_copies(state, copy_plan, {}, on_second_ ? second_stream_.load() : stream_)) return false;
  launched(state);
  return true;
}

bool Channel::start_aside(Transfer::State& state, const CopyPlan& copy_plan) {
  return make_second_stream(std::chrono::milliseconds(0)) && give_copies(state, copy_plan, {}, second_stream_);
}

bool Channel::give_copies(Transfer::State& state, const CopyPlan& copy_plan, const Lesson& lesson,
                          StreamHandle stream) {
  return give_copies(state, lesson, stream, [&]() REQUIRES(queue_mutex) {
    for (std::int64_t call = 0; call < copy_plan.calls(); ++call)
      if (!runtime_->copy_box_async(ordinal_, copy_plan[call], stream)) {
        if (call > 0) drain(stream);  // those before it are queued
        return false;
      } else if (call % calls_between_looks == calls_between_looks - 1) {
        look_in_time();
      }
    return true;
  });
}

bool Channel::start_runs(Transfer::State& state, const CopyPlan& runs, const Lesson& lesson) {
  const bool given = give_copies(state, lesson, stream_, [&]() REQUIRES(queue_mutex) {
    for (std::int64_t first = 0, last = 0; first < runs.calls(); first = last) {
      last = std::min(first + (looks_left_ > 0 ? runs_between_looks : CopyPlan::most_together), runs.calls());
      std::array<CopyBox, CopyPlan::most_together> boxes;
      const auto count = static_cast<std::size_t>(last - first);
      for (std::size_t i = 0; i < count; ++i) boxes[i] = runs[first + static_cast<std::int64_t>(i)];
      if (!runtime_->copy_runs_async(ordinal_, std::span(boxes).first(count), stream_)) {
        drain(stream_);  // those before them are queued, and some of them may be
        return false;
      }
      look_in_time();
    }
    return true;
  });
  if (given) launched(state);
  return given;
}

void Channel::drain(StreamHandle stream) noexcept {
  try {
    check_context();
    runtime_->stream_synchronize(ordinal_, stream);
  } catch (const Error&) {
    // A GPU that has failed has nothing left to wait for.
  }
}

void Channel::close() noexcept {
  if (closed()) return;
  drain(stream_);
  if (second_stream_ != nullptr) drain(second_stream_);
  lost_ = watch_->ended();
  closed_.store(true, std::memory_order_release);
  close_probe();
  const LockGuard lock(mutex_);
  for (const Chunk& chunk : chunks_) {
    if (!lost_) free_of_gpu(chunk);
    if (chunk.counters_on_host) runtime_->mapped_free(ordinal_, chunk.counters);
    runtime_->mapped_free(ordinal_, chunk.flags);
  }
  for (const StreamHandle stream : {stream_, second_stream_.load()})
    if (!lost_ && stream != nullptr) runtime_->stream_destroy(ordinal_, stream);
  if (!lost_) runtime_->event_destroy(ordinal_, uploaded_);
  watch_.reset();
}

void Channel::free_of_gpu(const Chunk& chunk) noexcept {
  if (!chunk.counters_on_host) runtime_->device_free(ordinal_, chunk.counters);
}

}  // namespace gpudt::device
