// The mutex (base/mutex.hpp): one thread at a time has it, and each that waits gets it.
#include "base/mutex.hpp"
#include "base/one_thread.hpp"

#include "tests/support/catch.hpp"

#include <chrono>
#include <thread>
#include <vector>

using gpudt::LockGuard;
using gpudt::Mutex;
using gpudt::UniqueLock;

TEST_CASE("a mutex lets one thread at a time in, and each that waits") {
  constexpr int threads = 4, rounds = 20000;
  Mutex mutex;
  int sum = 0;
  std::vector<std::thread> all;
  for (int i = 0; i < threads; ++i)
    all.emplace_back([&] {
      for (int k = 0; k < rounds; ++k) {
        const LockGuard lock(mutex);
        const int seen = sum;
        if (k % 64 == 0) std::this_thread::yield();  // so that others come to wait
        sum = seen + 1;
      }
    });
  for (std::thread& each : all) each.join();
  CHECK(sum == threads * rounds);
}

TEST_CASE("a mutex that is held cannot be taken, and one that was awaited can be") {
  Mutex mutex;
  mutex.lock();
  bool taken = true;
  std::thread([&] {
    taken = mutex.try_lock();
    if (taken) mutex.unlock();
  }).join();
  CHECK_FALSE(taken);
  std::thread waiter([&] { const LockGuard lock(mutex); });
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  mutex.unlock();
  waiter.join();
  CHECK(mutex.try_lock());
  mutex.unlock();
}

TEST_CASE("a thread waits for a condition with a mutex") {
  Mutex mutex;
  std::condition_variable_any condition;
  bool there = false;
  std::thread giver([&] {
    const LockGuard lock(mutex);
    there = true;
    condition.notify_one();
  });
  UniqueLock lock(mutex);
  while (!there) lock.wait(condition);
  lock.unlock();
  giver.join();
  CHECK(there);
}

namespace {

/// One thread is in the library, as after MPI_Init; other tests have several.
struct OneThread {
  OneThread() { gpudt::ThreadsInLibrary::one.store(true); }
  ~OneThread() { gpudt::ThreadsInLibrary::one.store(false); }
};

bool other_thread_takes(Mutex& mutex) {
  bool taken = false;
  std::thread([&] {
    taken = mutex.try_lock();
    if (taken) mutex.unlock();
  }).join();
  return taken;
}

}  // namespace

TEST_CASE("a mutex that one thread takes is held when there are several", "[mutex]") {
  Mutex mutex;
  {
    const OneThread alone;
    mutex.lock();
    CHECK(!mutex.try_lock());
    mutex.unlock();
    CHECK(mutex.try_lock());
  }
  CHECK(!other_thread_takes(mutex));
  mutex.unlock();
  CHECK(other_thread_takes(mutex));
  mutex.lock();
  const OneThread alone;
  mutex.unlock();
  CHECK(mutex.try_lock());
  mutex.unlock();
}

TEST_CASE("numbers count with one thread and with several", "[mutex]") {
  std::atomic<int> number{5};
  const auto count = [&] {
    const int before = gpudt::add_to(number, 3);
    CHECK(gpudt::take_from(number, 1) == before + 3);
    CHECK(number.load() == before + 2);
  };
  count();
  const OneThread alone;
  count();
}

TEST_CASE("threads that are expected do not become one", "[mutex]") {
  gpudt::ThreadsInLibrary::expected.store(false);
  gpudt::threads_take_turns();
  CHECK(gpudt::one_thread());
  gpudt::expect_threads();
  CHECK(!gpudt::one_thread());
  gpudt::threads_take_turns();
  CHECK(!gpudt::one_thread());
  gpudt::ThreadsInLibrary::expected.store(false);
}
