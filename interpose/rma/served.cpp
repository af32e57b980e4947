// Turns the calls on a served window into operations of its channel, and keeps track of epochs.
#include "interpose/rma/served.hpp"

#include <algorithm>
#include <numeric>
#include <thread>

#include "datatype/basic.hpp"
#include "interpose/requests/operation.hpp"

namespace gpudt::interpose {
namespace {

/// Returns when `condition()` holds, driving the engine.
template <class Condition>
void drive_until(Condition condition) {
  while (!condition())
    if (engine_progress() == 0) std::this_thread::yield();
}

/// An access as the payload of the request that completes it.
class AccessRequest : public Payload {
 public:
  AccessRequest(OriginOperationRef access, Operation* operation) : access_(std::move(access)), operation_(operation) {}
  void start_pack() override {}
  void start_unpack(std::int64_t) override {}
  bool done() override {
    if (!access_->complete.load(std::memory_order_acquire)) return false;
    operation_->error = access_->error;
    return true;
  }
  void wait() override {
    drive_until([this] { return done(); });
  }

 private:
  OriginOperationRef access_;
  Operation* operation_;  ///< owns this
};

bool is_nothing(const Target& target) {
  return target.rank == MPI_PROC_NULL || target.count == 0 || datatype::size_of(target.type) == 0;
}

void check_size(const UserBuffer& buffer, const Target& target) {
  if (buffer.bytes() != target.count * datatype::size_of(target.type))
    throw MpiError(MPI_ERR_TYPE, "the data at the origin and at the target differ in size");
}

/// The data of the origin. What is short and in host memory is packed at once.
void give(OriginOperation& operation, const char* call, const Origin& origin, const Target& target) {
  UserBuffer& source = operation.source.emplace(call, origin);
  check_size(source, target);
  operation.header.bytes = source.bytes();
  source.start_pack();
  if (source.on_device() || source.bytes() > inline_max) return;
  operation.packed.resize(static_cast<std::size_t>(source.bytes()));
  source.copy_to(operation.packed.data());
  operation.source.reset();
}

/// One element behind what is packed already.
void give_element(OriginOperation& operation, const char* call, const Origin& origin) {
  UserBuffer source(call, origin);
  source.start_pack();
  while (!source.done()) std::this_thread::yield();
  const std::size_t before = operation.packed.size();
  operation.packed.resize(before + static_cast<std::size_t>(source.bytes()));
  source.copy_to(operation.packed.data() + before);
  operation.header.bytes = static_cast<std::int64_t>(operation.packed.size());
}

/// Where what is fetched goes.
void take(OriginOperation& operation, const char* call, const Origin& result, const Target& target) {
  check_size(operation.destination.emplace(call, result), target);
}

void combine_with(OriginOperation& operation, MPI_Op op, const Target& target) {
  operation.header.op = operation_index(op);
  operation.header.element = element_index(element_of(target.type));
  if (operation.header.op < 0) throw MpiError(MPI_ERR_OP, "accumulates take predefined operations only");
  if (operation.header.element < 0)
    throw MpiError(MPI_ERR_TYPE, "the target datatype is not made of one predefined datatype that accumulates take");
}

}  // namespace

template <class Body>
int ServedWindow::guard(const char* call, Body body) {
  return guarded(OfWindow{win_}, call, body);
}

ServedWindow::ServedWindow(MPI_Win win, MPI_Comm comm, void* base, MPI_Aint size, int disp_unit)
    : win_(win),
      size_(size),
      flavor_(MPI_WIN_FLAVOR_CREATE),
      memory_(base, size),
      channel_(comm, memory_),
      remote_(static_cast<std::size_t>(channel_.ranks())),
      locks_(remote_.size(), Lock::none),
      flushed_(remote_.size(), 0),
      posts_used_(remote_.size(), 0),
      completes_used_(remote_.size(), 0) {
  static_assert(sizeof(Remote) == 2 * sizeof(std::int64_t));
  memory_.mark_again();
  const Remote mine{size, disp_unit};
  PMPI_Allgather(&mine, 2, MPI_INT64_T, remote_.data(), 2, MPI_INT64_T, channel_.comm());
}

ServedWindow::ServedWindow(MPI_Win win, MPI_Comm comm)
    : win_(win),
      flavor_(MPI_WIN_FLAVOR_DYNAMIC),
      channel_(comm, memory_),
      locks_(static_cast<std::size_t>(channel_.ranks()), Lock::none),
      flushed_(locks_.size(), 0),
      posts_used_(locks_.size(), 0),
      completes_used_(locks_.size(), 0) {}

ServedWindow::~ServedWindow() = default;

bool ServedWindow::attribute(int keyval, void* value) const {
  if (keyval == MPI_WIN_BASE)
    *static_cast<void**>(value) = memory_.base();
  else if (keyval == MPI_WIN_SIZE)
    *static_cast<const MPI_Aint**>(value) = &size_;
  else if (keyval == MPI_WIN_CREATE_FLAVOR)
    *static_cast<const int**>(value) = &flavor_;
  else
    return false;
  return true;
}

int ServedWindow::group(MPI_Group* group) const {
  return PMPI_Comm_group(channel_.comm(), group);
}

int ServedWindow::progress() {
  const LockGuard lock(service_mutex_);
  return closed_ ? 0 : channel_.progress();
}

void ServedWindow::settle() {
  drive_until([this] { return channel_.quiet(); });
  PMPI_Barrier(channel_.comm());
  drive_until([this] { return channel_.quiet(); });
}

void ServedWindow::close() {
  const LockGuard lock(service_mutex_);
  closed_ = true;
}

// --- accesses --------------------------------------------------------------------------------------------------------

/// Everything that MPI can check itself has been checked.
OriginOperationRef ServedWindow::prepare(MessageKind kind, const Target& target, bool with_request) {
  check_rank(target.rank);
  auto operation = std::make_shared<OriginOperation>();
  operation->target_type = datatype::type_info(target.type);
  if (!operation->target_type) throw MpiError(MPI_ERR_TYPE, "the target datatype is not committed");
  operation->rank = target.rank;
  operation->with_request = with_request;
  operation->header.kind = kind;
  operation->header.count = target.count;
  operation->header.displacement = target.displacement;
  if (!memory_.dynamic())
    operation->header.displacement = displacement_in_bytes(target, operation->target_type->layout());
  may_access(target.rank, with_request);
  return operation;
}

void ServedWindow::check_rank(int rank) const {
  if (rank < 0 || rank >= channel_.ranks())
    throw MpiError(MPI_ERR_RANK, "there is no rank " + std::to_string(rank) + " in this window");
}

/// From the beginning of the target's window, in which the access is.
std::int64_t ServedWindow::displacement_in_bytes(const Target& target, const datatype::Layout& layout) const {
  const Remote& remote = remote_[static_cast<std::size_t>(target.rank)];
  const datatype::Span span = layout.span(target.count);
  std::int64_t place = 0, begin = 0, end = 0;
  const bool overflow = __builtin_mul_overflow(target.displacement, remote.disp_unit, &place) ||
                        __builtin_add_overflow(place, span.begin, &begin) ||
                        __builtin_add_overflow(place, span.end, &end);
  if (!overflow && begin >= 0 && end <= remote.size) return place;
  const std::string reached =
      overflow ? "beyond all memory" : "bytes " + std::to_string(begin) + " to " + std::to_string(end);
  throw MpiError(MPI_ERR_RMA_RANGE, "the access reaches " + reached + " of a window of " + std::to_string(remote.size) +
                                        " bytes on rank " + std::to_string(target.rank));
}

void ServedWindow::may_access(int rank, bool with_request) {
  const auto at = static_cast<std::size_t>(rank);
  UniqueLock guard(mutex_);
  if (locks_[at] == Lock::wanted) {
    locks_[at] = Lock::asked;
    guard.unlock();
    acquire(rank, MPI_LOCK_SHARED);
    return;
  }
  if (locks_[at] == Lock::asked) {
    guard.unlock();
    drive_until([&] {
      const LockGuard lock(mutex_);
      return locks_[at] != Lock::asked;
    });
    return;
  }
  if (locks_[at] != Lock::none) return;
  if (with_request) throw MpiError(MPI_ERR_RMA_SYNC, "accesses with requests need a lock");
  if (fence_open_ || (targets_ && std::find(targets_->begin(), targets_->end(), rank) != targets_->end())) return;
  throw MpiError(MPI_ERR_RMA_SYNC, "there is no access epoch towards rank " + std::to_string(rank));
}

int ServedWindow::submit(const OriginOperationRef& operation, MPI_Request* request) {
  if (request == nullptr) {
    channel_.submit(operation);
    engine_progress();
    return MPI_SUCCESS;
  }
  auto requested = std::make_unique<Operation>();
  requested->kind = Operation::Kind::fill;
  requested->owner.win = win_;
  requested->payload = std::make_shared<AccessRequest>(operation, requested.get());
  Reservation reserved(std::move(requested));
  if (reserved.error() != MPI_SUCCESS) return reserved.error();
  channel_.submit(operation);
  return reserved.submit(/*issued=*/true, request);
}

template <class Check, class Build>
int ServedWindow::access(const char* call, MessageKind kind, const Target& target, MPI_Request* request, Check check,
                         Build build) {
  return guard(call, [&] {
    if (const int code = check()) return code;
    if (is_nothing(target))
      return request == nullptr ? MPI_SUCCESS
                                : PMPI_Rput(nullptr, 0, MPI_BYTE, MPI_PROC_NULL, 0, 0, MPI_BYTE, win_, request);
    const OriginOperationRef operation = prepare(kind, target, request != nullptr);
    build(*operation);
    return submit(operation, request);
  });
}

int ServedWindow::put(const char* call, const Origin& origin, const Target& target, MPI_Request* request) {
  const auto check = [&] {
    return PMPI_Put(origin.buffer, origin.count, origin.type, MPI_PROC_NULL, target.displacement, target.count,
                    target.type, win_);
  };
  return access(call, MessageKind::put, target, request, check,
                [&](OriginOperation& operation) { give(operation, call, origin, target); });
}

int ServedWindow::get(const char* call, const Origin& result, const Target& target, MPI_Request* request) {
  const auto check = [&] {
    return PMPI_Get(const_cast<void*>(result.buffer), result.count, result.type, MPI_PROC_NULL, target.displacement,
                    target.count, target.type, win_);
  };
  return access(call, MessageKind::get, target, request, check,
                [&](OriginOperation& operation) { take(operation, call, result, target); });
}

int ServedWindow::accumulate(const char* call, const Origin& origin, const Target& target, MPI_Op op,
                             MPI_Request* request) {
  const auto check = [&] {
    return PMPI_Accumulate(origin.buffer, origin.count, origin.type, MPI_PROC_NULL, target.displacement, target.count,
                           target.type, op, win_);
  };
  return access(call, MessageKind::accumulate, target, request, check, [&](OriginOperation& operation) {
    combine_with(operation, op, target);
    give(operation, call, origin, target);
  });
}

int ServedWindow::get_accumulate(const char* call, const Origin& origin, const Origin& result, const Target& target,
                                 MPI_Op op, MPI_Request* request) {
  const auto check = [&] {
    return PMPI_Get_accumulate(origin.buffer, origin.count, origin.type, const_cast<void*>(result.buffer), result.count,
                               result.type, MPI_PROC_NULL, target.displacement, target.count, target.type, op, win_);
  };
  return access(call, MessageKind::get_accumulate, target, request, check, [&](OriginOperation& operation) {
    combine_with(operation, op, target);
    take(operation, call, result, target);
    if (op != MPI_NO_OP) give(operation, call, origin, target);
  });
}

int ServedWindow::fetch_and_op(const void* origin, void* result, const Target& target, MPI_Op op) {
  constexpr const char* call = "MPI_Fetch_and_op";
  const auto check = [&] {
    return PMPI_Fetch_and_op(origin, result, target.type, MPI_PROC_NULL, target.displacement, op, win_);
  };
  return access(call, MessageKind::get_accumulate, target, nullptr, check, [&](OriginOperation& operation) {
    combine_with(operation, op, target);
    take(operation, call, {result, 1, target.type}, target);
    if (op != MPI_NO_OP) give(operation, call, {origin, 1, target.type}, target);
  });
}

int ServedWindow::compare_and_swap(const void* origin, const void* compare, void* result, const Target& target) {
  constexpr const char* call = "MPI_Compare_and_swap";
  const auto check = [&] {
    return PMPI_Compare_and_swap(origin, compare, result, target.type, MPI_PROC_NULL, target.displacement, win_);
  };
  return access(call, MessageKind::compare_and_swap, target, nullptr, check, [&](OriginOperation& operation) {
    take(operation, call, {result, 1, target.type}, target);
    give_element(operation, call, {origin, 1, target.type});
    give_element(operation, call, {compare, 1, target.type});
  });
}

// --- synchronisation -------------------------------------------------------------------------------------------------

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
  drive_until([&] { return operation.complete.load(std::memory_order_acquire); });
}

void ServedWindow::wait_local(int rank) {
  drive_until([&] { return channel_.outstanding(rank) == 0; });
}

void ServedWindow::acquire(int rank, int type) {
  wait_for(*tell(MessageKind::lock, rank, type));
  const LockGuard lock(mutex_);
  locks_[static_cast<std::size_t>(rank)] = Lock::held;
}

/// Sends a message that is answered when all accesses before it have been applied, and waits for all answers. Returns
/// the first error of those accesses.
int ServedWindow::complete_at(MessageKind kind, const std::vector<int>& ranks) {
  std::vector<std::uint64_t> submitted;
  std::vector<OriginOperationRef> told;
  for (const int rank : ranks) {
    submitted.push_back(channel_.submitted(rank));
    told.push_back(tell(kind, rank));
  }
  int result = MPI_SUCCESS;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    wait_for(*told[i]);
    wait_local(ranks[i]);
    const int error = channel_.take_error(ranks[i]);
    if (result == MPI_SUCCESS) result = error;
    const LockGuard lock(mutex_);
    std::uint64_t& flushed = flushed_[static_cast<std::size_t>(ranks[i])];
    flushed = std::max(flushed, submitted[i]);
  }
  return result;
}

/// Those of `ranks` that have had accesses since they were flushed last.
int ServedWindow::flush_at(std::vector<int> ranks) {
  {
    const LockGuard lock(mutex_);
    std::erase_if(ranks, [&](int rank) REQUIRES(mutex_) {
      return flushed_[static_cast<std::size_t>(rank)] == channel_.submitted(rank);
    });
  }
  return complete_at(MessageKind::flush, ranks);
}

int ServedWindow::report(const char* call, int code) const {
  return code == MPI_SUCCESS ? code : fail(OfWindow{win_}, call, code, "an access of this epoch has failed");
}

int ServedWindow::fence(int assert) {
  return guard("MPI_Win_fence", [&] {
    memory_.mark_again();
    {
      const LockGuard lock(mutex_);
      const bool locked = std::any_of(locks_.begin(), locks_.end(), [](Lock held) { return held != Lock::none; });
      if (lock_all_ || targets_ || locked) throw MpiError(MPI_ERR_RMA_SYNC, "an epoch of another kind is open");
      fence_open_ = (assert& MPI_MODE_NOSUCCEED) == 0;
    }
    const int code = flush_at(all());
    PMPI_Barrier(channel_.comm());
    return report("MPI_Win_fence", code);
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
      drive_until([&] { return channel_.posts(rank) > used; });
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
    drive_until([&] { return exposure_over(); });
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
  return guard("MPI_Win_unlock", [&] {
    if (rank == MPI_PROC_NULL) return MPI_SUCCESS;
    check_rank(rank);
    memory_.mark_again();
    Lock held;
    {
      const LockGuard lock(mutex_);
      held = locks_[static_cast<std::size_t>(rank)];
      if (lock_all_ || held == Lock::none) throw MpiError(MPI_ERR_RMA_SYNC, "the rank is not locked");
    }
    const int code = held == Lock::held ? complete_at(MessageKind::unlock, {rank}) : flush_at({rank});
    {
      const LockGuard lock(mutex_);
      locks_[static_cast<std::size_t>(rank)] = Lock::none;
    }
    return report("MPI_Win_unlock", code);
  });
}

int ServedWindow::lock_all(int assert) {
  return guard("MPI_Win_lock_all", [&] {
    const LockGuard lock(mutex_);
    const bool locked = std::any_of(locks_.begin(), locks_.end(), [](Lock held) { return held != Lock::none; });
    if (lock_all_ || locked) throw MpiError(MPI_ERR_RMA_SYNC, "a rank is locked already");
    lock_all_ = true;
    std::fill(locks_.begin(), locks_.end(), (assert& MPI_MODE_NOCHECK) == 0 ? Lock::wanted : Lock::unchecked);
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
    const int code = complete_at(MessageKind::unlock, held);
    const int other = flush_at(unchecked);
    {
      const LockGuard lock(mutex_);
      lock_all_ = false;
      std::fill(locks_.begin(), locks_.end(), Lock::none);
    }
    return report("MPI_Win_unlock_all", code == MPI_SUCCESS ? other : code);
  });
}

/// `rank`, or all ranks, as far as they are locked.
std::vector<int> ServedWindow::passive_targets(int rank) const {
  if (rank != all_ranks) check_rank(rank);
  const LockGuard lock(mutex_);
  std::vector<int> ranks = rank == all_ranks ? all() : std::vector<int>{rank};
  std::erase_if(ranks, [&](int each) REQUIRES(mutex_) { return locks_[static_cast<std::size_t>(each)] == Lock::none; });
  if (ranks.empty()) throw MpiError(MPI_ERR_RMA_SYNC, "there is no passive target epoch");
  return ranks;
}

int ServedWindow::flush(const char* call, int rank) {
  return guard(call, [&] {
    if (rank == MPI_PROC_NULL) return MPI_SUCCESS;
    return report(call, flush_at(passive_targets(rank)));
  });
}

int ServedWindow::flush_local(const char* call, int rank) {
  return guard(call, [&] {
    if (rank == MPI_PROC_NULL) return MPI_SUCCESS;
    int result = MPI_SUCCESS;
    for (const int target : passive_targets(rank)) {
      wait_local(target);
      const int error = channel_.take_error(target);
      if (result == MPI_SUCCESS) result = error;
    }
    return report(call, result);
  });
}

/// What has been applied to this process's memory is there: nothing is cached. What the program has done itself since
/// is made visible to other threads.
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
    if (size != 0 && !memory_.attach(base, size))
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
