// The hook into the MPI library's own progress, so that operations advance in whatever MPI call the program waits. One
// implementation for each family of MPI libraries, progress_<family>.cpp; the build picks one.
#pragma once

namespace gpudt::interpose {

/// Callbacks that MPI's progress loop calls. Both are thread-safe and throw nothing.
struct Progressing {
  int (*advance)();   ///< goes one step, by calls to MPI; returns the number of completions
  bool (*pending)();  ///< whether there is anything to advance
};

/// The level of thread support to ask of MPI for a program that asks for `required`: the hook may need more.
int progress_thread_level(int required);

/// To be called after MPI_Init. Null if the hook is in place, else why it cannot be.
const char* progress_start(const Progressing& driven);

/// advance() is not called after this, and no call is under way in another thread.
void progress_stop();

/// To be called when pending() has become true.
void progress_wake();

}  // namespace gpudt::interpose
