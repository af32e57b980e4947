// The synchronisation calls on a served window: its epochs.
#include <algorithm>
#include <numeric>

#include "interpose/requests/operation.hpp"
#include "interpose/rma/served.hpp"
#include "interpose/support/log.hpp"

namespace gpudt::interpose {

std::vector<int> ServedWindow::all() const {
  std::vector<int> ranks(static_cast<std::size_t>(channel_.ranks()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::vector<int> ServedWindow::ranks_of(MPI_Group group) const {
  int size = 0;
  if (group == MPI_GROUP_NULL || PMPI_Group_size(group, &size) != MPI_SUCCESS)
    throw MpiError(MPI_ERR_GROUP, "argument group is not a group");
  MPI_Group mine = MPI_GROUP_NULL;
  PMPI_Comm_group(channel_.comm(), &mine);
  std::vector<int> theirs(static_cast<std::size_t>(size)), ranks(theirs.size());
  std::iota(theirs.begin(), theirs.end(), 0);
  PMPI_Group_translate_ranks(group, size, theirs.data(), mine, ranks.data());
  PMPI_Group_free(&mine);
  if (std::find(ranks.begin(), ranks.end(), MPI_UNDEFINED) != ranks.end())
    throw MpiError(MPI_ERR_GROUP, "argument group has members outside the window's group");
  return ranks;
}

OriginOperationRef ServedWindow::tell(MessageKind kind, int rank, int lock_type) {
  auto operation = std::make_shared<OriginOperation>();
  operation->rank = rank;
  operation->header.kind = kind;
  operation->header.lock_type = lock_type;
  channel_.submit(operation);
  return operation;
}

void ServedWindow::wait_for(const OriginOperation& operation) {
  wait_until([&] { return operation.complete.load(std::memory_order_acquire); });
}

void ServedWindow::wait_local(int rank) {
  wait_until([&] { return channel_.outstanding(rank) == 0; });
}

void ServedWindow::acquire(int rank, int type) {
  if (node_locks_)
    node_locks_->acquire(rank, type);
  else
    wait_for(*tell(MessageKind::lock, rank, type));
  const LockGuard lock(mutex_);
  locks_[static_cast<std::size_t>(rank)] = Lock::held;
}

/// Completes the accesses to `ranks`, whose locks this process holds, and releases the locks.
int ServedWindow::release(const std::vector<int>& ranks) {
  if (!node_locks_) return complete_at(MessageKind::unlock, ranks);
  struct Release {  // even if an access fails
    WindowLocks& locks;
    const std::vector<int>& ranks;
    ~Release() {
      for (const int rank : ranks) locks.release(rank);
    }
  };
  const Release release_all = {*node_locks_, ranks};
  return flush_at(ranks);
}

/// Waits for accesses by this process's GPU. Returns the first error.
int ServedWindow::finish_direct(const std::vector<int>& ranks) {
  int result = MPI_SUCCESS;
  for (const int rank : ranks) {
    const int error = direct_.finish(rank);
    if (result == MPI_SUCCESS) result = error;
  }
  return result;
}

/// Waits for accesses by this process's GPU. For those that the targets serve it sends a message, which a target
/// answers when it has applied all accesses before it, and waits for the answers. Returns the first error.
int ServedWindow::complete_at(MessageKind kind, const std::vector<int>& ranks) {
  int result = finish_direct(ranks);
  std::vector<OriginOperationRef> told;
  told.reserve(ranks.size());
  for (const int rank : ranks) told.push_back(tell(kind, rank));
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    wait_for(*told[i]);
    wait_local(ranks[i]);
    const int error = channel_.take_error(ranks[i]);
    if (result == MPI_SUCCESS) result = error;
  }
  return result;
}

/// Flushes those of `ranks` that this process has accessed since their last flush.
int ServedWindow::flush_at(std::vector<int> ranks) {
  const int direct = finish_direct(ranks);
  std::erase_if(ranks, [&](int rank) { return none_served(rank); });
  const int served = complete_at(MessageKind::flush, ranks);
  return direct == MPI_SUCCESS ? served : direct;
}

int ServedWindow::flush_later(const char* call, int rank, MPI_Request* request) {
  return guard(call, [&] {
    auto operation = std::make_shared<OriginOperation>();
    operation->rank = rank;
    operation->with_request = true;
    operation->header.kind = MessageKind::flush;
    return submit(operation, request);
  });
}

int ServedWindow::report(const char* call, int code) const {
  return code == MPI_SUCCESS ? code : fail(OfWindow{win_}, call, code, "an access of this epoch has failed");
}

/// mark_again() that returns an error code instead of throwing: the other processes wait for this one in the fence.
int ServedWindow::marked_again() {
  try {
    memory_.mark_again();
    return MPI_SUCCESS;
  } catch (const device::Error& failure) {
    log_error(std::string("MPI_Win_fence: ") + failure.what());
    return error_class(failure);
  }
}

int ServedWindow::fence(int assert) {
  return guard("MPI_Win_fence", [&] {
    const int marked = marked_again();
    {
      const LockGuard lock(mutex_);
      const bool locked = std::any_of(locks_.begin(), locks_.end(), [](Lock held) { return held != Lock::none; });
      if (lock_all_ || targets_ || locked) throw MpiError(MPI_ERR_RMA_SYNC, "an epoch of another kind is open");
      fence_open_ = (assert& MPI_MODE_NOSUCCEED) == 0;
    }
    const int code = flush_at(all());
    PMPI_Barrier(channel_.comm());
    return report("MPI_Win_fence", code == MPI_SUCCESS ? marked : code);
  });
}

int ServedWindow::post(MPI_Group group, int assert) {
  return guard("MPI_Win_post", [&] {
    memory_.mark_again();
    const std::vector<int> origins = ranks_of(group);
    {
      const LockGuard lock(mutex_);
      if (origins_) throw MpiError(MPI_ERR_RMA_SYNC, "an exposure epoch is open already");
      origins_ = origins;
    }
    if ((assert& MPI_MODE_NOCHECK) == 0)
      for (const int rank : origins) tell(MessageKind::post, rank);
    engine_progress();
    return MPI_SUCCESS;
  });
}

int ServedWindow::start(MPI_Group group, int assert) {
  return guard("MPI_Win_start", [&] {
    const std::vector<int> targets = ranks_of(group);
    {
      const LockGuard lock(mutex_);
      if (targets_ || lock_all_) throw MpiError(MPI_ERR_RMA_SYNC, "an access epoch is open already");
      targets_ = targets;
    }
    if ((assert& MPI_MODE_NOCHECK) != 0) return MPI_SUCCESS;
    for (const int rank : targets) {
      int& used = posts_used_[static_cast<std::size_t>(rank)];
      wait_until([&] { return channel_.posts(rank) > used; });
      ++used;
    }
    return MPI_SUCCESS;
  });
}

int ServedWindow::complete() {
  return guard("MPI_Win_complete", [&] {
    std::vector<int> targets;
    {
      const LockGuard lock(mutex_);
      if (!targets_) throw MpiError(MPI_ERR_RMA_SYNC, "MPI_Win_start has not been called");
      targets = *std::exchange(targets_, std::nullopt);
    }
    return report("MPI_Win_complete", complete_at(MessageKind::complete, targets));
  });
}

bool ServedWindow::exposure_over() const {
  const LockGuard lock(mutex_);
  if (!origins_) throw MpiError(MPI_ERR_RMA_SYNC, "MPI_Win_post has not been called");
  return std::all_of(origins_->begin(), origins_->end(), [&](int rank) REQUIRES(mutex_) {
    return channel_.completes(rank) > completes_used_[static_cast<std::size_t>(rank)];
  });
}

int ServedWindow::end_exposure() {
  const LockGuard lock(mutex_);
  for (const int rank : *origins_) ++completes_used_[static_cast<std::size_t>(rank)];
  origins_.reset();
  return MPI_SUCCESS;
}

int ServedWindow::wait() {
  return guard("MPI_Win_wait", [&] {
    wait_until([&] { return exposure_over(); });
    return end_exposure();
  });
}

int ServedWindow::test(int* flag) {
  return guard("MPI_Win_test", [&] {
    engine_progress();
    *flag = exposure_over() ? 1 : 0;
    return *flag != 0 ? end_exposure() : MPI_SUCCESS;
  });
}

int ServedWindow::lock(int type, int rank, int assert) {
  return guard("MPI_Win_lock", [&] {
    if (rank == MPI_PROC_NULL) return MPI_SUCCESS;
    check_rank(rank);
    if (type != MPI_LOCK_EXCLUSIVE && type != MPI_LOCK_SHARED)
      throw MpiError(MPI_ERR_LOCKTYPE, "argument lock_type is neither MPI_LOCK_EXCLUSIVE nor MPI_LOCK_SHARED");
    const bool checked = (assert& MPI_MODE_NOCHECK) == 0;
    {
      const LockGuard lock(mutex_);
      Lock& held = locks_[static_cast<std::size_t>(rank)];
      if (lock_all_ || held != Lock::none) throw MpiError(MPI_ERR_RMA_SYNC, "the rank is locked already");
      held = checked ? Lock::asked : Lock::unchecked;
    }
    if (checked) acquire(rank, type);
    return MPI_SUCCESS;
  });
}

int ServedWindow::unlock(int rank) {
  return guard("MPI_Win_unlock", [&]() -> int {
    if (rank == MPI_PROC_NULL) return MPI_SUCCESS;
    check_rank(rank);
    memory_.mark_again();
    Lock held;
    {
      const LockGuard lock(mutex_);
      held = locks_[static_cast<std::size_t>(rank)];
      if (lock_all_ || held == Lock::none) throw MpiError(MPI_ERR_RMA_SYNC, "the rank is not locked");
    }
    const int code = held == Lock::held ? release({rank}) : flush_at({rank});
    {
      const LockGuard lock(mutex_);
      locks_[static_cast<std::size_t>(rank)] = Lock::none;
    }
    return report("MPI_Win_unlock", code);
  });
}

/// If the processes share memory, all ranks are locked at once, so that no access waits for a lock. Otherwise other
/// ranks are locked at the first access, and this process's own rank at once, since its loads and stores are not seen.
int ServedWindow::lock_all(int assert) {
  return guard("MPI_Win_lock_all", [&] {
    const bool checked = (assert& MPI_MODE_NOCHECK) == 0;
    {
      const LockGuard lock(mutex_);
      const bool locked = std::any_of(locks_.begin(), locks_.end(), [](Lock held) { return held != Lock::none; });
      if (lock_all_ || locked) throw MpiError(MPI_ERR_RMA_SYNC, "a rank is locked already");
      lock_all_ = true;
      std::fill(locks_.begin(), locks_.end(), checked ? Lock::wanted : Lock::unchecked);
    }
    if (!checked) return MPI_SUCCESS;
    if (!node_locks_) {
      int rank = 0;
      PMPI_Comm_rank(channel_.comm(), &rank);
      may_access(rank, /*with_request=*/true);
      return MPI_SUCCESS;
    }
    node_locks_->acquire_all();
    const LockGuard lock(mutex_);
    std::fill(locks_.begin(), locks_.end(), Lock::held);
    return MPI_SUCCESS;
  });
}

int ServedWindow::unlock_all() {
  return guard("MPI_Win_unlock_all", [&] {
    memory_.mark_again();
    std::vector<int> held, unchecked;
    {
      const LockGuard lock(mutex_);
      if (!lock_all_) throw MpiError(MPI_ERR_RMA_SYNC, "MPI_Win_lock_all has not been called");
      for (const int rank : all()) {
        if (locks_[static_cast<std::size_t>(rank)] == Lock::held) held.push_back(rank);
        if (locks_[static_cast<std::size_t>(rank)] == Lock::unchecked) unchecked.push_back(rank);
      }
    }
    const int code = release(held);
    const int other = flush_at(unchecked);
    {
      const LockGuard lock(mutex_);
      lock_all_ = false;
      std::fill(locks_.begin(), locks_.end(), Lock::none);
    }
    return report("MPI_Win_unlock_all", code == MPI_SUCCESS ? other : code);
  });
}

/// `rank`, or all locked ranks. Throws MpiError if none is locked.
std::vector<int> ServedWindow::passive_targets(int rank) const {
  if (rank != all_ranks) check_rank(rank);
  const LockGuard lock(mutex_);
  std::vector<int> ranks = rank == all_ranks ? all() : std::vector<int>{rank};
  std::erase_if(ranks, [&](int each) REQUIRES(mutex_) { return locks_[static_cast<std::size_t>(each)] == Lock::none; });
  if (ranks.empty()) throw MpiError(MPI_ERR_RMA_SYNC, "there is no passive target epoch");
  return ranks;
}

int ServedWindow::flush(const char* call, int rank) {
  return guard(call, [&]() -> int {
    if (rank == MPI_PROC_NULL) return MPI_SUCCESS;
    return report(call, flush_at(passive_targets(rank)));
  });
}

int ServedWindow::flush_local(const char* call, int rank) {
  return guard(call, [&]() -> int {
    if (rank == MPI_PROC_NULL) return MPI_SUCCESS;
    int result = MPI_SUCCESS;
    for (const int target : passive_targets(rank)) {
      const int direct = direct_.finish(target);
      wait_local(target);
      const int error = channel_.take_error(target);
      if (result == MPI_SUCCESS) result = direct == MPI_SUCCESS ? error : direct;
    }
    return report(call, result);
  });
}

/// Accesses that have been applied to this process's memory are visible already, since nothing is cached. This makes
/// the program's own stores visible to other threads.
int ServedWindow::sync() {
  return guard("MPI_Win_sync", [&] {
    memory_.mark_again();
    std::atomic_thread_fence(std::memory_order_seq_cst);
    engine_progress();
    return MPI_SUCCESS;
  });
}

int ServedWindow::attach(void* base, MPI_Aint size) {
  return guard("MPI_Win_attach", [&] {
    if (size < 0) throw MpiError(MPI_ERR_SIZE, "argument size is negative");
    if (!memory_.attach(base, size))
      throw MpiError(MPI_ERR_RMA_ATTACH, "the memory overlaps a region that is attached");
    memory_.mark_again();
    return MPI_SUCCESS;
  });
}

int ServedWindow::detach(const void* base) {
  return guard("MPI_Win_detach", [&] {
    if (!memory_.detach(base)) throw MpiError(MPI_ERR_RMA_ATTACH, "no attached region begins at argument base");
    return MPI_SUCCESS;
  });
}

}  // namespace gpudt::interpose
