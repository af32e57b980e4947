// The progress engine. Whatever advances while a program is inside MPI is registered here: transports, operations,
// windows. One thread at a time polls all of it, from MPI's own progress (mpi/progress.hpp) or from a wait of this
// library's. The engine knows nothing of what it polls.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

#include "base/function_ref.hpp"

namespace gpudt::interpose {

/// How much one step checks. `some`: a bounded part, which the next step continues; `all`: everything, so that what
/// was complete before the step is found.
enum class Tests { some, all };

/// What the engine polls: by one thread at a time, and never from within a poll. MPI may be called there.
class Polled {
 public:
  Polled() = default;
  Polled(const Polled&) = delete;
  Polled& operator=(const Polled&) = delete;

  /// Whether it is to be polled now. Called by any thread, in every turn of MPI's loops.
  virtual bool due() = 0;
  /// Whether it may become due without progress_wake(), so that a progress thread must not sleep.
  virtual bool may_become_due() { return due(); }
  /// Makes one step. Returns the number of completions. May throw.
  virtual int poll(Tests tests) = 0;
  /// Polls until all that was complete before the call has been dealt with.
  virtual void settle() { poll(Tests::all); }

 protected:
  ~Polled() = default;  // registered objects live as long as the process, or unregister themselves
};

/// What can be registered, in the order of a step.
enum class EnginePart { transport, operations, windows, memory };

/// Registers `polled` as this part, in place of what was registered before; null only unregisters. When this returns,
/// what was registered is not being polled any more, unless this is called from a poll.
void engine_register(EnginePart part, Polled* polled);

/// Lets MPI's progress poll the engine. Returns null, or the reason why that is impossible.
const char* engine_hook();
/// When this returns, MPI's progress polls the engine no more.
void engine_unhook();

namespace detail {
extern constinit thread_local bool engine_polls_here, engine_driven_by_mpi_here;
extern std::atomic<std::chrono::steady_clock::rep> engine_latest_time;
}  // namespace detail

/// Whether this thread polls, so that it would wait for itself if it waited for progress.
inline bool engine_within() {
  return detail::engine_polls_here;
}

/// Whether MPI's progress has called the engine in this thread: then a poll need not make MPI progress.
inline bool engine_driven_by_mpi() {
  return detail::engine_driven_by_mpi_here;
}

/// The time of the engine's latest poll or pause. What is polled takes it for its time-outs: thousands of operations
/// would each read the clock otherwise.
inline std::chrono::steady_clock::time_point engine_time() {
  using Clock = std::chrono::steady_clock;
  return Clock::time_point(Clock::duration(detail::engine_latest_time.load(std::memory_order_relaxed)));
}

/// Polls all that is due. Returns the number of completions. Any thread may call it, also within MPI's progress or a
/// poll; it does nothing while a thread is polling. Failures are logged: only exceptions of the program's callbacks
/// leave it.
int engine_progress(Tests tests = Tests::some);

/// Returns when all that was complete before the call has been dealt with, by this thread or by another one. No-op from
/// a poll.
void engine_settle();

/// Returns when no poll is under way that began before the call: later polls see what the caller has set.
/// No-op from a poll.
void engine_let_poll_end();

/// Calls `act` while no other thread polls, and returns its result.
int engine_without_polls(FunctionRef<int()> act);

/// What wait_until() does each time its condition has been false `looks` times.
struct Pause {
  unsigned looks;
  bool drives_mpi;  ///< make all of MPI's progress; false: of the engine alone
  bool yields;      ///< yield the core if nothing has completed
};
/// For a condition that the engine or another thread makes true.
inline constexpr Pause for_engine{.looks = 1, .drives_mpi = false, .yields = true};
/// For a message that another process is handling now: over UCX one turn of MPI's progress takes 1 us.
inline constexpr Pause for_message{.looks = 32, .drives_mpi = true, .yields = false};
/// For other processes, which may take long, or need this core.
inline constexpr Pause for_others{.looks = 64, .drives_mpi = true, .yields = true};

void engine_pause(const Pause& pause);

/// Returns when `condition()` holds. Only the condition and the program's callbacks throw.
template <class Condition>
void wait_until(Condition condition, const Pause& pause = for_engine) {
  for (unsigned look = 1; !condition(); ++look)
    if (look % pause.looks == 0) engine_pause(pause);
}

}  // namespace gpudt::interpose
