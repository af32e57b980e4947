#include "interpose/rma/window_locks.hpp"

#include <mpi.h>

#include <algorithm>
#include <bitset>

#include "base/mutex.hpp"
#include "interpose/engine/engine.hpp"

namespace gpudt::interpose {
namespace {

Mutex locks_mutex;
std::bitset<peer::window_lock_count> taken GUARDED_BY(locks_mutex);

}  // namespace

OwnWindowLock::OwnWindowLock(peer::Segment& segment) {
  const LockGuard lock(locks_mutex);
  for (int index = 0; index_ < 0 && index < peer::window_lock_count; ++index)
    if (!taken.test(static_cast<std::size_t>(index))) index_ = index;
  if (index_ < 0) return;
  taken.set(static_cast<std::size_t>(index_));
  segment->window_locks[index_].memory.clear();
  segment->window_locks[index_].accumulates.clear();
}

OwnWindowLock::~OwnWindowLock() {
  if (index_ < 0) return;
  const LockGuard lock(locks_mutex);
  taken.reset(static_cast<std::size_t>(index_));
}

void WindowLocks::acquire(int rank, int type) {
  const auto at = static_cast<std::size_t>(rank);
  const bool exclusive = type == MPI_LOCK_EXCLUSIVE;
  wait_until([&] { return locks_[at]->memory.try_enter(exclusive); });
  exclusive_[at] = exclusive ? 1 : 0;
}

void WindowLocks::acquire_all() {
  const auto try_all = [&] {
    std::size_t held = 0;
    while (held < locks_.size() && locks_[held]->memory.try_enter(/*exclusive=*/false)) ++held;
    if (held == locks_.size()) return true;
    while (held-- > 0) locks_[held]->memory.leave(/*exclusive=*/false);
    return false;
  };
  wait_until(try_all);
  std::fill(exclusive_.begin(), exclusive_.end(), 0);
}

void WindowLocks::release(int rank) {
  const auto at = static_cast<std::size_t>(rank);
  locks_[at]->memory.leave(exclusive_[at] != 0);
}

}  // namespace gpudt::interpose
