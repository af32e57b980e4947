#include "interpose/transport/peer/window_lock.hpp"

#include <thread>
#include <vector>

#include "tests/support/catch.hpp"

using gpudt::interpose::peer::WindowLock;

TEST_CASE("window lock: threads exclude each other, and share", "[datatype][window-lock]") {
  constexpr int threads = 4, turns = 2000;
  WindowLock lock;
  lock.clear();
  long plain = 0;
  std::atomic<int> inside{0}, wrong{0};
  const auto work = [&](int self) {
    for (int turn = 0; turn < turns; ++turn) {
      const bool exclusive = (turn + self) % 3 == 0;
      const std::uint32_t ticket = lock.take_ticket();
      while (!lock.enter(ticket, exclusive)) std::this_thread::yield();
      if (exclusive) {
        if (inside.exchange(1000) != 0) ++wrong;
        ++plain;
        if (inside.exchange(0) != 1000) ++wrong;
      } else {
        if (inside.fetch_add(1) >= 1000) ++wrong;
        if (inside.fetch_sub(1) > 1000) ++wrong;
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

TEST_CASE("window lock: in the order of tickets, whatever comes later", "[datatype][window-lock]") {
  WindowLock lock;
  lock.clear();
  const std::uint32_t first = lock.take_ticket(), writer = lock.take_ticket(), last = lock.take_ticket();
  CHECK_FALSE(lock.enter(writer, true));
  CHECK(lock.enter(first, false));
  CHECK_FALSE(lock.enter(last, false));  // a shared one does not pass an exclusive one that waits
  CHECK_FALSE(lock.enter(writer, true));
  lock.leave(false);
  CHECK(lock.enter(writer, true));
  CHECK_FALSE(lock.enter(last, false));
  lock.leave(true);
  CHECK(lock.enter(last, false));
  lock.leave(false);
  CHECK(lock.left == lock.tickets);
}

TEST_CASE("window lock: numbers wrap around", "[datatype][window-lock]") {
  WindowLock lock;
  for (std::atomic<std::uint32_t>* const each : {&lock.tickets, &lock.entered, &lock.left}) *each = 0xfffffffe;
  for (int i = 0; i < 4; ++i)
    for (const bool exclusive : {false, true}) {
      CHECK(lock.enter(lock.take_ticket(), exclusive));
      lock.leave(exclusive);
    }
}
