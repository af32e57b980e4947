// Mutexes that Clang's -Wthread-safety understands (scripts/check/clang_warnings.py, in .ci/run), and the annotations:
// what a mutex guards, and what a function expects to be held. For other compilers the annotations are empty.
//
// https://clang.llvm.org/docs/ThreadSafetyAnalysis.html
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <shared_mutex>

#include "base/one_thread.hpp"

#ifdef __clang__
#define GPUDT_THREAD_ANNOTATION(annotation) __attribute__((annotation))
#else
#define GPUDT_THREAD_ANNOTATION(annotation)
#endif

/// Marks a member or an object that is read and written only while the mutex is held.
#define GUARDED_BY(mutex) GPUDT_THREAD_ANNOTATION(guarded_by(mutex))
/// Marks a pointer to an object that is read and written only while the mutex is held.
#define PT_GUARDED_BY(mutex) GPUDT_THREAD_ANNOTATION(pt_guarded_by(mutex))
/// The caller of this function holds the mutex.
#define REQUIRES(...) GPUDT_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
/// The caller of this function holds the mutex, shared or exclusively.
#define REQUIRES_SHARED(...) GPUDT_THREAD_ANNOTATION(requires_shared_capability(__VA_ARGS__))
/// The caller of this function does not hold the mutex.
#define EXCLUDES(...) GPUDT_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))
/// Marks a mutex that is taken before the other by a thread that takes both. Clang 14 checks this only with -beta.
#define ACQUIRED_BEFORE(...) GPUDT_THREAD_ANNOTATION(acquired_before(__VA_ARGS__))
/// Marks a function whose locks Clang cannot follow; a comment there gives the reason.
#define NO_THREAD_SAFETY_ANALYSIS GPUDT_THREAD_ANNOTATION(no_thread_safety_analysis)

// For the classes below.
#define GPUDT_CAPABILITY GPUDT_THREAD_ANNOTATION(capability("mutex"))
#define GPUDT_SCOPED_CAPABILITY GPUDT_THREAD_ANNOTATION(scoped_lockable)
#define GPUDT_ACQUIRE(...) GPUDT_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define GPUDT_ACQUIRE_SHARED(...) GPUDT_THREAD_ANNOTATION(acquire_shared_capability(__VA_ARGS__))
#define GPUDT_RELEASE(...) GPUDT_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define GPUDT_RELEASE_SHARED(...) GPUDT_THREAD_ANNOTATION(release_shared_capability(__VA_ARGS__))
#define GPUDT_RELEASE_GENERIC(...) GPUDT_THREAD_ANNOTATION(release_generic_capability(__VA_ARGS__))
#define GPUDT_ASSERT_CAPABILITY() GPUDT_THREAD_ANNOTATION(assert_capability())
#define GPUDT_TRY_ACQUIRE(...) GPUDT_THREAD_ANNOTATION(try_acquire_capability(__VA_ARGS__))

namespace gpudt {

/// Inlined: a message takes some twenty mutexes, nearly all of them free, and std::mutex, which calls the C library,
/// was 16 % of the time of 512 messages. A thread sleeps while another has it.
class GPUDT_CAPABILITY Mutex {
 public:
  void lock() GPUDT_ACQUIRE() {
    if (!try_lock()) wait();
  }
  void unlock() GPUDT_RELEASE() {
    if (one_thread()) return state_.store(State::free, std::memory_order_release);
    if (state_.exchange(State::free, std::memory_order_release) == State::awaited) state_.notify_one();
  }
  bool try_lock() GPUDT_TRY_ACQUIRE(true) {
    State none = State::free;
    if (one_thread()) {
      if (state_.load(std::memory_order_acquire) != none) return false;
      state_.store(State::held, std::memory_order_relaxed);
      return true;
    }
    return state_.compare_exchange_strong(none, State::held, std::memory_order_acquire, std::memory_order_relaxed);
  }
  /// Shows Clang that the mutex is held in generic lambdas, whose annotations Clang 14 cannot compile. Does nothing.
  void assert_held() const GPUDT_ASSERT_CAPABILITY() {}

 private:
  enum class State : int { free, held, awaited };  // int: the system waits for words of that size
  /// A thread that has waited leaves it awaited, since others may wait, too.
  void wait() {
    while (state_.exchange(State::awaited, std::memory_order_acquire) != State::free)
      state_.wait(State::awaited, std::memory_order_relaxed);
  }
  std::atomic<State> state_{State::free};
};

class GPUDT_CAPABILITY SharedMutex {
 public:
  void lock() GPUDT_ACQUIRE() { mutex_.lock(); }
  void unlock() GPUDT_RELEASE() { mutex_.unlock(); }
  void lock_shared() GPUDT_ACQUIRE_SHARED() { mutex_.lock_shared(); }
  void unlock_shared() GPUDT_RELEASE_SHARED() { mutex_.unlock_shared(); }

 private:
  std::shared_mutex mutex_;
};

/// Holds the mutex for its life.
template <class M>
class GPUDT_SCOPED_CAPABILITY LockGuard {
 public:
  explicit LockGuard(M& mutex) GPUDT_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  /// Takes over a mutex that the caller holds, as after try_lock().
  LockGuard(M& mutex, std::adopt_lock_t) REQUIRES(mutex) : mutex_(mutex) {}
  ~LockGuard() GPUDT_RELEASE() { mutex_.unlock(); }
  LockGuard(const LockGuard&) = delete;
  LockGuard& operator=(const LockGuard&) = delete;

 private:
  M& mutex_;
};

/// Releases, for its life, a mutex that the caller holds.
class GPUDT_SCOPED_CAPABILITY Unlocked {
 public:
  explicit Unlocked(Mutex& mutex) GPUDT_RELEASE(mutex) : mutex_(mutex) { mutex_.unlock(); }
  ~Unlocked() GPUDT_RELEASE() { mutex_.lock(); }  // "release" ends the scope, which takes the mutex again
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  Mutex& mutex_;
};

/// Holds the mutex for its life, shared with others.
class GPUDT_SCOPED_CAPABILITY SharedLock {
 public:
  explicit SharedLock(SharedMutex& mutex) GPUDT_ACQUIRE_SHARED(mutex) : mutex_(mutex) { mutex_.lock_shared(); }
  ~SharedLock() GPUDT_RELEASE_GENERIC() { mutex_.unlock_shared(); }
  SharedLock(const SharedLock&) = delete;
  SharedLock& operator=(const SharedLock&) = delete;

 private:
  SharedMutex& mutex_;
};

/// Holds the mutex for its life, except while the caller has unlocked it or waits for a condition.
class GPUDT_SCOPED_CAPABILITY UniqueLock {
 public:
  explicit UniqueLock(Mutex& mutex) GPUDT_ACQUIRE(mutex) : lock_(mutex) {}
  ~UniqueLock() GPUDT_RELEASE() = default;
  UniqueLock(const UniqueLock&) = delete;
  UniqueLock& operator=(const UniqueLock&) = delete;

  void lock() GPUDT_ACQUIRE() { lock_.lock(); }
  void unlock() GPUDT_RELEASE() { lock_.unlock(); }
  /// Waits once; wake-ups may be spurious. The caller loops, so that Clang can check its condition.
  void wait(std::condition_variable_any& condition) { condition.wait(lock_); }
  template <class Time>
  std::cv_status wait_until(std::condition_variable_any& condition, const Time& time) {
    return condition.wait_until(lock_, time);
  }

 private:
  std::unique_lock<Mutex> lock_;
};

}  // namespace gpudt
