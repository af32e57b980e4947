#include "interpose/shared/window_lock.hpp"

#include <thread>
#include <vector>

#include "tests/support/catch.hpp"

using gpudt::interpose::peer::WindowLock;

TEST_CASE("window lock: threads exclude each other, and share", "[datatype][window-lock]") {
  constexpr int threads = 4, turns = 2000, alone = 1000;
  WindowLock lock;
  lock.clear();
  long plain = 0;
  std::atomic<int> inside{0}, wrong{0};
  const auto work = [&](int self) {
    for (int turn = 0; turn < turns; ++turn) {
      const bool exclusive = (turn + self) % 3 == 0;
      while (!lock.try_enter(exclusive)) std::this_thread::yield();
      if (exclusive) {
        if (inside.exchange(alone) != 0) ++wrong;
        ++plain;
        if (inside.exchange(0) != alone) ++wrong;
      } else {
        if (inside.fetch_add(1) >= alone) ++wrong;
        if (inside.fetch_sub(1) > alone) ++wrong;
      }
      lock.leave(exclusive);
    }
  };
  std::vector<std::thread> running;
  for (int self = 0; self < threads; ++self) running.emplace_back(work, self);
  for (std::thread& thread : running) thread.join();
  CHECK(wrong == 0);
  long expected = 0;
  for (int self = 0; self < threads; ++self)
    for (int turn = 0; turn < turns; ++turn) expected += (turn + self) % 3 == 0 ? 1 : 0;
  CHECK(plain == expected);
}

TEST_CASE("window lock: who shares it does not wait for one that wants it alone", "[datatype][window-lock]") {
  WindowLock lock;
  lock.clear();
  CHECK(lock.try_enter(/*exclusive=*/false));
  CHECK_FALSE(lock.try_enter(/*exclusive=*/true));
  CHECK(lock.try_enter(/*exclusive=*/false));
  lock.leave(/*exclusive=*/false);
  CHECK_FALSE(lock.try_enter(/*exclusive=*/true));
  lock.leave(/*exclusive=*/false);
  CHECK(lock.try_enter(/*exclusive=*/true));
  CHECK_FALSE(lock.try_enter(/*exclusive=*/false));
  CHECK_FALSE(lock.try_enter(/*exclusive=*/true));
  lock.leave(/*exclusive=*/true);
  CHECK(lock.try_enter(/*exclusive=*/true));
}
