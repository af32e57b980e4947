#include "interpose/engine/engine.hpp"

#include <sched.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <exception>

#include "base/cancellation.hpp"
#include "device/device.hpp"
#include "interpose/mpi/progress.hpp"
#include "interpose/mpi/workarounds.hpp"
#include "interpose/support/errors.hpp"

namespace gpudt::interpose {

constinit thread_local bool detail::engine_polls_here = false, detail::engine_driven_by_mpi_here = false;
std::atomic<std::chrono::steady_clock::rep> detail::engine_latest_time{0};

namespace {

constexpr std::size_t parts = 4;
/// Those behind them may take long, for which transfers do not wait.
constexpr auto parts_with_transfers = static_cast<std::size_t>(EnginePart::memory);

std::array<std::atomic<Polled*>, parts> registered{};
std::atomic<bool> busy{false};
using SteadyClock = std::chrono::steady_clock;

void note_time() {
  detail::engine_latest_time.store(SteadyClock::now().time_since_epoch().count(), std::memory_order_relaxed);
}

/// Parts that are due by the time alone need a clock that goes on while no part is polled.
void note_time_at_times() {
  constexpr unsigned polls = 64;
  thread_local unsigned polled = 0;
  if (++polled % polls == 0) note_time();
}

/// While it lives, only this thread polls. An exception of an error handler ends it, too. The thread is not cancelled
/// meanwhile, since it handles operations of other threads.
class Hold {
 public:
  /// After take().
  Hold() { detail::engine_polls_here = true; }
  ~Hold() {
    detail::engine_polls_here = false;
    busy.store(false, std::memory_order_release);
  }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

 private:
  const CancellationPutOff undisturbed_{};
};

bool take() {
  return !busy.exchange(true, std::memory_order_acquire);
}

/// One bit for each part that is due.
unsigned due_parts() {
  unsigned due = 0;
  for (std::size_t part = 0; part < parts; ++part) {
    Polled* const polled = registered[part].load(std::memory_order_acquire);
    if (polled != nullptr && polled->due()) due |= 1U << part;
  }
  return due;
}

bool may_become_due() {
  for (const auto& each : registered) {
    Polled* const polled = each.load(std::memory_order_acquire);
    if (polled != nullptr && polled->may_become_due()) return true;
  }
  return false;
}

int poll_due(unsigned due, Tests tests) {
  note_time();
  int ended = 0;
  const auto poll = [&](std::size_t part) {
    if ((due & 1U << part) == 0) return;
    if (Polled* const polled = registered[part].load(std::memory_order_acquire)) ended += polled->poll(tests);
  };
  {
    // Messages that have arrived together are moved together.
    const device::Gathering gathering(device::Gathering::short_bytes);
    for (std::size_t part = 0; part < parts_with_transfers; ++part) poll(part);
  }
  for (std::size_t part = parts_with_transfers; part < parts; ++part) poll(part);
  return ended;
}

int advance() {
  const struct Driven {
    Driven() { detail::engine_driven_by_mpi_here = true; }
    ~Driven() { detail::engine_driven_by_mpi_here = false; }
  } driven;
  return engine_progress();
}

}  // namespace

void engine_register(EnginePart part, Polled* polled) {
  registered[static_cast<std::size_t>(part)].store(polled, std::memory_order_release);
  if (polled != nullptr) progress_wake();
  engine_let_poll_end();
}

const char* engine_hook() {
  return progress_start({advance, may_become_due});
}

void engine_unhook() {
  progress_stop();
}

int engine_progress(Tests tests) {
  if (detail::engine_polls_here) return 0;
  const unsigned due = due_parts();
  if (due == 0) note_time_at_times();
  if (due == 0 || !take()) return 0;
  const Hold hold;
  try {
    return poll_due(due, tests);
  } catch (const std::exception& failure) {
    log_own("progress", failure);
    return 0;
  }
}

void engine_settle() {
  if (detail::engine_polls_here || !may_become_due()) return;
  while (!take()) sched_yield();
  const Hold hold;
  const device::Gathering gathering(device::Gathering::short_bytes);
  for (const auto& each : registered)
    if (Polled* const polled = each.load(std::memory_order_acquire)) polled->settle();
}

void engine_let_poll_end() {
  if (detail::engine_polls_here) return;  // called by an error handler
  while (!take()) sched_yield();
  busy.store(false, std::memory_order_release);
}

int engine_without_polls(FunctionRef<int()> act) {
  if (detail::engine_polls_here) return act();
  while (!take()) sched_yield();
  const Hold hold;
  return act();
}

void engine_pause(const Pause& pause) {
  note_time();
  if (pause.drives_mpi) make_progress();
  const int ended = engine_progress();
  if (pause.yields && ended == 0) sched_yield();
}

}  // namespace gpudt::interpose
