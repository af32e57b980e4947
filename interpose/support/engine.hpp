// What parts below the engine (requests/operation.hpp), which implements this, may ask of it.
#pragma once

#include <thread>

namespace gpudt::interpose {

/// Work of another part that MPI's progress is to drive: returns the number of completions. Like the engine's own, it
/// never runs within itself, nor in two threads at once. There is one at most; null: none, and the last call has ended.
using EngineService = int (*)();
void engine_service(EngineService service);

/// The same for work that may never end, and must not cost much: it is done when it says that it is due. Null: none.
struct EngineBackground {
  EngineService run;
  bool (*due)();
};
void engine_background(const EngineBackground* background);

/// Whether this is called by the engine, on this thread.
bool engine_within();

/// How many MPI requests one step tests. `some`: a bounded window, continued by the next step; `all`: every request, so
/// that anything completed before the step is noticed.
enum class Tests { some, all };

/// Drives all operations one step. Returns the number of completions. Safe from any thread and from within MPI's
/// progress engine; does nothing if it is running already.
int engine_progress(Tests tests = Tests::some);
/// Returns when `condition()` holds, driving the engine meanwhile.
template <class Condition>
void drive_until(Condition condition) {
  while (!condition())
    if (engine_progress() == 0) std::this_thread::yield();
}
/// Tests all MPI requests once and runs background work until there is none; if another thread is in the engine, waits
/// for it first. No-op inside the engine.
void engine_settle();
/// The same as engine_progress() for callers that throw nothing of this library's: what goes wrong is logged.
int engine_progress_logged(Tests tests = Tests::some);
/// drive_until() where other processes wait for this one: nothing but the condition throws.
template <class Condition>
void drive_safely_until(Condition condition) {
  while (!condition())
    if (engine_progress_logged() == 0) std::this_thread::yield();
}

}  // namespace gpudt::interpose
