// What parts below the engine (requests/operation.hpp), which implements this, may ask of it.
#pragma once

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

/// How many of the real requests one step tests: a bounded number, the next step going on with the others; or all of
/// them, so that what has happened before the step is seen by it.
enum class Tests { some, all };

/// Drives all operations one step. Returns the number of completions. Safe from any thread and from within MPI's
/// progress engine; does nothing if it is running already.
int engine_progress(Tests tests = Tests::some);
/// Looks once at all real operations that are under way now, does background work as long as there is any, and waits
/// for whoever drives them just now. Does nothing within the engine.
void engine_settle();
/// The same as engine_progress() for callers that must not throw: what goes wrong is logged.
int engine_progress_logged(Tests tests = Tests::some) noexcept;

}  // namespace gpudt::interpose
