// The hook into the MPI library's progress, by which operations advance in any MPI call in which the program waits.
// Each family of MPI libraries has an implementation, progress_<family>.cpp; the build picks one.
#pragma once

#include <atomic>

namespace gpudt::interpose {

/// Callbacks that MPI's progress loop calls. Both are thread-safe and do not throw.
struct Progressing {
  int (*advance)();   ///< makes one step, by calls to MPI; returns the number of completions
  bool (*pending)();  ///< whether there is anything to advance
};

/// The level of thread support that MPI_Init_thread gets if the program requests `required`: the hook may need more.
int progress_thread_level(int required);

/// Installs the hook; to be called after MPI_Init. Returns null, or the reason why the hook is not possible.
const char* progress_start(const Progressing& driven);

/// After this, advance() is not called, and no call is running in another thread.
void progress_stop();

/// Another thread of the library that calls MPI on its own holds this meanwhile: in MPI_Finalize, MPICH takes no locks.
/// The progress thread, if there is one, waits.
class WithoutProgressThread {
 public:
  WithoutProgressThread();
  ~WithoutProgressThread();  // NOLINT(performance-trivially-destructible): it is not over MPICH
  WithoutProgressThread(const WithoutProgressThread&) = delete;
  WithoutProgressThread& operator=(const WithoutProgressThread&) = delete;
};

namespace detail {
inline std::atomic<void (*)()> wake_progress{nullptr};  ///< set where a thread of the library drives MPI
}
/// To be called when pending() has become true.
inline void progress_wake() {
  if (void (*const wake)() = detail::wake_progress.load(std::memory_order_acquire)) wake();
}

}  // namespace gpudt::interpose
