// Whether one thread at a time is in the library. Then mutexes and counts need no atomic instructions: each of these
// takes some 20 cycles and waits for all stores before it, and a message needed a hundred.
#pragma once

#include <atomic>
#include <type_traits>

namespace gpudt {

/// Written while no second thread is in the library.
struct ThreadsInLibrary {
  static inline constinit std::atomic<bool> one{false}, expected{false};
};

/// Mutexes and counts have right values also when it changes.
inline bool one_thread() noexcept {
  return ThreadsInLibrary::one.load(std::memory_order_relaxed);
}

/// The program's threads call MPI one at a time (less than MPI_THREAD_MULTIPLE). No effect after expect_threads().
inline void threads_take_turns() noexcept {
  if (!ThreadsInLibrary::expected.load()) ThreadsInLibrary::one.store(true);
}

/// To be called before a thread is started that runs in the library, or comes into it beside others.
inline void expect_threads() noexcept {
  ThreadsInLibrary::expected.store(true);
  ThreadsInLibrary::one.store(false);
}

/// number.fetch_add(by)
template <class T>
T add_to(std::atomic<T>& number, std::type_identity_t<T> by, std::memory_order order = std::memory_order_seq_cst) {
  if (!one_thread()) return number.fetch_add(by, order);
  const T before = number.load(std::memory_order_relaxed);
  number.store(before + by, std::memory_order_release);
  return before;
}

/// number.fetch_sub(by)
template <class T>
T take_from(std::atomic<T>& number, std::type_identity_t<T> by, std::memory_order order = std::memory_order_seq_cst) {
  return add_to(number, static_cast<T>(-by), order);
}

}  // namespace gpudt
