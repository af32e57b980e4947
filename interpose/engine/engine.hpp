// The progress engine. Whatever advances while a program is inside MPI is registered here: transports, operations,
// windows. One thread at a time polls all of it, from MPI's own progress (mpi/progress.hpp) or from a wait of this
// library's. The engine knows nothing of what it polls.
#pragma once

#include <chrono>
#include <thread>

#include "base/function_ref.hpp"

namespace gpudt::interpose {

/// How much one step looks at. `some`: a bounded part, which the next step continues; `all`: everything, so that what
/// was complete before the step is noticed.
enum class Tests { some, all };

/// What the engine polls: by one thread at a time, and never from within a poll. MPI may be called there.
class Polled {
 public:
  Polled() = default;
  Polled(const Polled&) = delete;
  Polled& operator=(const Polled&) = delete;

  /// Whether it is to be polled now. Any thread asks, in every turn of MPI's loops.
  virtual bool due() = 0;
  /// Whether it may become due without progress_wake(), so that a thread of this library's that drives must not sleep.
  virtual bool may_become_due() { return due(); }
  /// One step. Returns how much has come to an end. May throw.
  virtual int poll(Tests tests) = 0;
  /// Polls until all that was complete before the call has been dealt with.
  virtual void settle() { poll(Tests::all); }

 protected:
  ~Polled() = default;  // those that are registered last as long as the process, or take themselves off
};

/// What can be registered, in the order of a step.
enum class EnginePart { transport, operations, windows };

/// Registers `polled`, in place of what was registered as this part; null: of nothing. What was registered is not being
/// polled any more when this returns, unless it is called from a poll.
void engine_register(EnginePart part, Polled* polled);

/// Hooks into MPI's progress. Null, or why that is impossible.
const char* engine_hook();
/// No poll comes from MPI's progress any more.
void engine_unhook();

/// Whether this thread polls, so that it would wait for itself if it waited for progress.
bool engine_within();

/// Whether MPI's progress has called the engine in this thread: then a poll need not make MPI progress.
bool engine_driven_by_mpi();

/// The time of the engine's latest poll or pause. What is polled takes it for its time-outs: thousands of operations
/// would each read the clock otherwise.
std::chrono::steady_clock::time_point engine_time();

/// Polls all that is due. Returns how much has come to an end. Any thread may call it, from within MPI's progress or
/// from a poll, too; it does nothing if a thread is polling. What goes wrong is logged: only what the program's
/// callbacks throw leaves it.
int engine_progress(Tests tests = Tests::some);

/// Returns when all that was complete before the call has been dealt with, by this thread or by another one. No-op from
/// a poll.
void engine_settle();

/// Returns when no poll is under way that began before the call: what has been set holds from here on. No-op from a
/// poll.
void engine_let_poll_end();

/// Returns what `act` returns, which is called while no other thread polls.
int engine_without_polls(FunctionRef<int()> act);

/// How wait_until() passes the time, after so many looks at its condition.
struct Pause {
  unsigned looks;
  bool drives_mpi;  ///< all of MPI's progress; else the engine alone
  bool yields;      ///< to other threads and processes, if nothing has come to an end
};
/// For what the engine brings about, or another thread.
inline constexpr Pause for_engine{.looks = 1, .drives_mpi = false, .yields = true};
/// For a message, whose sender or receiver is at work: over UCX one turn of MPI's progress takes 1 us.
inline constexpr Pause for_message{.looks = 32, .drives_mpi = true, .yields = false};
/// For other processes, which may be late, or wait for the same core.
inline constexpr Pause for_others{.looks = 64, .drives_mpi = true, .yields = true};

void engine_pause(const Pause& pause);

/// Returns when `condition()` holds. Nothing but the condition throws, and the program's callbacks.
template <class Condition>
void wait_until(Condition condition, const Pause& pause = for_engine) {
  for (unsigned look = 1; !condition(); ++look)
    if (look % pause.looks == 0) engine_pause(pause);
}

}  // namespace gpudt::interpose
