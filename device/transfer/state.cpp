// Transfers under way: how their end is seen.
#include "device/transfer/state.hpp"

#include <array>
#include <cstring>
#include <span>
#include <string>
#include <thread>

#include "datatype/runs.hpp"
#include "device/transfer/channel.hpp"
#include "device/transfer/pageable_transfer.hpp"
#include "device/transfer/points.hpp"
#include "device/transfer/resident.hpp"

namespace gpudt::device {

namespace {

/// Polls between two reads of the clock, by which a waiting transfer decides to check its stream for errors.
constexpr std::uint32_t polls_per_clock = 1024;
/// Polls between two reads of the clock if the transfer's start delay is learnt, and between two polls of the probe.
constexpr std::uint32_t polls_per_observation = 16;
constexpr auto error_check_period = std::chrono::milliseconds(100);
/// Polls between two yields of a waiting thread, for other threads of a busy machine.
constexpr std::uint32_t polls_per_yield = 64;
/// Runs of a transfer in the host's memory that are prefetched together.
constexpr std::size_t runs_prefetched = 32;
}  // namespace

bool Transfer::has_ended() {
  return pageable_ ? pageable_->done() : state_->done();
}

void Transfer::wait() {
  while (pageable_ && !pageable_->done()) std::this_thread::yield();
  if (state_) state_->wait();
}

Way Transfer::way() const {
  return state_ ? state_->way : Way::automatic;
}

/// Each run lies on a cache line that is not in the host's caches yet: several are prefetched at a time.
void CopiedSpan::pack() {
  struct Run {
    const char* from;
    char* to;
    std::size_t bytes;
  };
  std::array<Run, runs_prefetched> runs;
  std::size_t count = 0;
  const auto take = [&] {
    for (const Run& run : std::span(runs).first(count)) std::memcpy(run.to, run.from, run.bytes);
    count = 0;
  };
  const char* const copied = static_cast<const char*>(memory.data());
  datatype::for_each_run(*layout, 0, bytes, [&](std::int64_t at, std::int64_t position, std::int64_t length) {
    runs[count] = {copied + (at - offset), static_cast<char*>(packed) + position, static_cast<std::size_t>(length)};
    __builtin_prefetch(runs[count].from);
    if (++count == runs.size()) take();
  });
  take();
  memory = {};
}

bool Transfer::State::done() {
  // This comes first: another thread may be launching a queued transfer, and then owns the other members.
  if (queued.load(std::memory_order_acquire) && !channel->closed()) {
    channel->launch_queued();
    if (queued.load(std::memory_order_acquire)) return false;  // held
  }
  if (finished) return true;
  if (failure) throw Error(*failure);
  if (channel->closed()) {
    channel->check_lost();
    finished = true;
  } else {
    poll();
  }
  return finished;
}

bool Transfer::State::landed() const {
  return channel->closed() || flag_is_set();
}

bool Transfer::State::flag_is_set() const {
  return std::atomic_ref(*flag).load(std::memory_order_acquire) == sequence;
}

void Transfer::State::poll() {
  finished = flag_is_set();
  if (finished) {
    mark(point::flag_seen);
    if (resident) resident->done(*this);
    if (lesson.delay) observe();
    if (!is_probe) channel->look_after_probe();
    if (copied_span.memory) copied_span.pack();
    return;
  }
  ++polls;
  if (polls % polls_per_observation == 1) {
    if (lesson.delay) unfinished = Clock::now();
    if (!is_probe) channel->look_after_probe();
  }
  if (!is_probe && polls % polls_per_clock == 0) check_now_and_then();
  if (resident && resident->gone())
    if (const std::optional<ResidentWork> work = resident->take_back(*this)) channel->launch_again({*work, this});
}

void Transfer::State::observe() {
  const auto microseconds = [&](auto time) {
    return std::chrono::duration<double, std::micro>(time - started).count();
  };
  lesson.delay->observe(lesson.expected_us, polls == 0 ? 0 : microseconds(unfinished), microseconds(Clock::now()),
                        lesson.roughly);
  lesson.delay = nullptr;
}

/// Checks the stream for errors each error_check_period. Short transfers end before the first check, which costs
/// microseconds.
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

void Transfer::End::operator()(State* state) const noexcept {
  if (state->queued.load(std::memory_order_acquire)) state->channel->drop_held(*state);
  try {
    state->wait();
  } catch (const Error&) {
    // The GPU has failed and nothing runs on it any more; done() reports it elsewhere.
  }
  const std::shared_ptr<Channel> channel = std::move(state->channel);
  channel->put(state);
}

void Transfer::End::operator()(PageableTransfer* pageable) const noexcept {
  delete pageable;
}

}  // namespace gpudt::device
