#include "interpose/requests/watched.hpp"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "base/never_destroyed.hpp"
#include "interpose/mpi/progress.hpp"
#include "interpose/mpi/workarounds.hpp"
#include "interpose/requests/operation.hpp"
#include "interpose/support/log.hpp"
#include "interpose/transport/peer/peer.hpp"

namespace gpudt::interpose {

std::atomic<int> watched_receives{0};

/// While it lives, no other thread checks the receive. A check takes little time, and waits for no lock of this file.
class WatchedReceive::Looking {
 public:
  explicit Looking(WatchedReceive& receive) : receive_(receive) {
    while (receive_.looking_.exchange(true, std::memory_order_acquire)) sched_yield();
  }
  Looking(WatchedReceive& receive, std::adopt_lock_t) : receive_(receive) {}
  ~Looking() { receive_.looking_.store(false, std::memory_order_release); }
  Looking(const Looking&) = delete;
  Looking& operator=(const Looking&) = delete;

 private:
  WatchedReceive& receive_;
};

namespace {

/// Receives that the engine checks in one pass. The slow checks let MPI make progress (sees_completion is false).
constexpr std::size_t quick_looks = 64, slow_looks = 8;

std::uint64_t key_of(MPI_Request request) {
  std::uint64_t key = 0;
  static_assert(sizeof(MPI_Request) <= sizeof key);
  std::memcpy(&key, &request, sizeof(MPI_Request));
  return key;
}

}  // namespace

/// All watched receives: a list, and a hash table by request (linear probing, at most half full).
class WatchedReceives {
 public:
  /// Room for one receive, taken before MPI is given it: afterwards nothing may fail.
  class Reserved {
   public:
    /// May throw std::bad_alloc.
    explicit Reserved(WatchedReceives& watched) : watched_(watched) { watched_.reserve(); }
    ~Reserved() {
      if (!entered_) watched_receives.fetch_sub(1, std::memory_order_relaxed);
    }
    Reserved(const Reserved&) = delete;
    Reserved& operator=(const Reserved&) = delete;
    /// To be called when MPI has made the request, at most once.
    void enter(MPI_Request request, WatchedBuffer&& buffer, const ErrorOwner& owner) {
      watched_.enter(request, std::move(buffer), owner);
      entered_ = true;
    }

   private:
    WatchedReceives& watched_;
    bool entered_ = false;
  };

  WatchedReceive* find(MPI_Request request) EXCLUDES(mutex_) {
    const LockGuard lock(mutex_);
    return table_.empty() ? nullptr : slot_of(request)->receive;
  }

  void remove(WatchedReceive* receive) EXCLUDES(mutex_) {
    const LockGuard lock(mutex_);
    erase(receive);
  }

  /// The next of `left` receives that may be complete, marked as being checked by the caller. Null if there is none.
  /// Waits for receives that another thread checks, or skips them.
  WatchedReceive* next(std::size_t& left, bool waits) EXCLUDES(mutex_) {
    const LockGuard lock(mutex_);
    while (left > 0 && used_ > 0) {
      --left;
      if (window_ >= used_) window_ = 0;
      WatchedReceive* const receive = list_[window_++];
      bool taken = receive->looking_.exchange(true, std::memory_order_acquire);
      for (; taken && waits; taken = receive->looking_.exchange(true, std::memory_order_acquire)) sched_yield();
      if (taken) continue;
      if (receive->may_be_complete()) return receive;
      receive->looking_.store(false, std::memory_order_release);
    }
    return nullptr;
  }

  /// Calls `act` for each receive, perhaps several times, while no thread checks it. It does not wait with the lock
  /// held, because a thread that checks a receive may need the lock first.
  template <class Act>
  void for_each(Act act) EXCLUDES(mutex_) {
    for (bool all = false; !all;) {
      all = true;
      {
        const LockGuard lock(mutex_);
        for (std::size_t i = 0; i < used_; ++i) {
          WatchedReceive* const receive = list_[i];
          if (receive->looking_.exchange(true, std::memory_order_acquire)) {
            all = false;
          } else {
            act(*receive);
            receive->looking_.store(false, std::memory_order_release);
          }
        }
      }
      if (!all) sched_yield();
    }
  }

  void clear() EXCLUDES(mutex_) {
    const LockGuard lock(mutex_);
    while (used_ > 0) erase(list_[used_ - 1]);
  }

 private:
  struct Slot {
    MPI_Request request;
    WatchedReceive* receive;
  };

  std::size_t begin_of(MPI_Request request) const REQUIRES(mutex_) {
    constexpr std::uint64_t golden = 0x9e3779b97f4a7c15;
    return (key_of(request) * golden >> 32) & (table_.size() - 1);
  }

  void reserve() EXCLUDES(mutex_) {
    while (watched_receives.fetch_add(1, std::memory_order_relaxed) >= room_.load(std::memory_order_relaxed)) {
      watched_receives.fetch_sub(1, std::memory_order_relaxed);
      grow();
    }
  }

  void enter(MPI_Request request, WatchedBuffer&& buffer, const ErrorOwner& owner) EXCLUDES(mutex_) {
    const LockGuard lock(mutex_);
    Slot* slot = slot_of(request);
    if (slot->receive != nullptr) [[unlikely]] {  // the program has completed it bypassing the library
      slot->receive->let_looks_end();
      erase(slot->receive);
      slot = slot_of(request);
    }
    WatchedReceive* const before = used_ > 0 ? list_[used_ - 1] : nullptr;  // mostly the one that was posted before
    const bool shares = before != nullptr && before->shares_buffer_with(buffer);
    *slot = {request, std::construct_at(list_[used_], request, std::move(buffer), owner, used_)};
    if (shares) {
      before->shares_buffer_.store(true, std::memory_order_relaxed);
      list_[used_]->shares_buffer_.store(true, std::memory_order_relaxed);
    }
    ++used_;
  }

  /// The slot of the request, or the free one where it belongs.
  Slot* slot_of(MPI_Request request) REQUIRES(mutex_) {
    std::size_t at = begin_of(request);
    while (table_[at].receive != nullptr && table_[at].request != request) at = (at + 1) & (table_.size() - 1);
    return &table_[at];
  }

  /// Makes room for more receives, unless another thread has done so.
  void grow() EXCLUDES(mutex_) {
    const LockGuard lock(mutex_);
    const std::size_t old = list_.size(), more = std::max<std::size_t>(32, old);
    if (watched_count() < static_cast<int>(old)) return;
    std::vector<Slot> larger(2 * (old + more));
    list_.reserve(old + more);
    WatchedReceive* const memory = std::allocator<WatchedReceive>().allocate(more);  // never freed
    for (std::size_t i = 0; i < more; ++i) list_.push_back(memory + i);
    table_.swap(larger);
    for (std::size_t i = 0; i < used_; ++i) *slot_of(list_[i]->request_) = {list_[i]->request_, list_[i]};
    room_.store(static_cast<int>(list_.size()), std::memory_order_relaxed);
  }

  void erase(WatchedReceive* receive) REQUIRES(mutex_) {
    WatchedReceive* const last = list_[--used_];
    list_[used_] = receive;
    list_[receive->place_] = last;
    last->place_ = receive->place_;
    const std::size_t mask = table_.size() - 1;
    std::size_t hole = static_cast<std::size_t>(slot_of(receive->request_) - table_.data());
    for (std::size_t at = (hole + 1) & mask; table_[at].receive != nullptr; at = (at + 1) & mask) {
      // An entry moves to the hole unless its search begins behind it.
      if (((at - begin_of(table_[at].request)) & mask) < ((at - hole) & mask)) continue;
      table_[hole] = table_[at];
      hole = at;
    }
    table_[hole] = {};
    std::destroy_at(receive);
    watched_receives.fetch_sub(1, std::memory_order_relaxed);
  }

  Mutex mutex_;
  std::vector<Slot> table_ GUARDED_BY(mutex_);
  /// Objects: the first `used_` exist, the others are memory for more.
  std::vector<WatchedReceive*> list_ GUARDED_BY(mutex_);
  std::size_t used_ GUARDED_BY(mutex_) = 0;
  std::size_t window_ GUARDED_BY(mutex_) = 0;
  std::atomic<int> room_{0};  ///< list_.size(), which never shrinks
};

namespace {

auto& all = never_destroyed<WatchedReceives>();
std::atomic<MPI_Request> never_made{MPI_REQUEST_NULL};

void end(MPI_Request generalized) {
  PMPI_Grequest_complete(generalized);
  PMPI_Request_free(&generalized);
}

}  // namespace

int watched_start(FunctionRef<int(const Outgoing& into, MPI_Request* request)> pmpi, const Outgoing& into,
                  WatchedBuffer&& buffer, const ErrorOwner& owner, const Selects& selects, MPI_Request* request) {
  const PendingReceive pending(selects, owner.comm);
  WatchedReceives::Reserved place(all);
  MPI_Request made = MPI_REQUEST_NULL;
  const int code = pmpi(into, &made);
  if (code != MPI_SUCCESS) return code;
  *request = made;
  if (made == MPI_REQUEST_NULL) return code;  // MPICH 5 has called an error handler and returned success
  place.enter(made, std::move(buffer), owner);
  progress_wake();
  return code;
}

WatchedReceive::State WatchedReceive::look(bool drives) {
  if (state_.load(std::memory_order_acquire) != State::pending) return state_.load(std::memory_order_relaxed);
  const Looking looking(*this);
  return look_alone(drives);
}

WatchedReceive::State WatchedReceive::look_alone(bool drives) {
  if (state_.load(std::memory_order_acquire) != State::pending) return state_.load(std::memory_order_relaxed);
  if (!drives && !may_be_complete()) return State::pending;
  MPI_Status status{};
  int complete = 0;
  const int code = get_status(request_, &complete, &status);
  if (complete != 0) resolve(code, status);
  return state_.load(std::memory_order_relaxed);
}

/// Waits for a check by another thread, which sets the state before it ends.
void WatchedReceive::let_looks_end() const {
  while (looking_.load(std::memory_order_acquire)) sched_yield();
}

/// False if the receive is not pending, or is certainly not complete. Makes no progress.
bool WatchedReceive::may_be_complete() const {
  return state_.load(std::memory_order_acquire) == State::pending && request_may_be_complete(request_);
}

WatchedReceive::State WatchedReceive::wait() {
  State state = look(/*drives=*/false);
  while (state == State::pending) state = look(/*drives=*/true);
  return state;
}

/// Sets the state of a complete receive. `code`: its error, if MPI returns it before completion; the call that
/// completes the program's request returns it, too.
void WatchedReceive::resolve(int code, const MPI_Status& status) {
  const bool failed = code != MPI_SUCCESS;
  const std::int64_t bytes = failed ? 0 : received_bytes(status);
  int cancelled = 0;
  if (!failed) PMPI_Test_cancelled(&status, &cancelled);
  const bool whole = !failed && cancelled == 0;
  const bool truncated = failed && !truncated_statuses_tell && is_truncation(code);
  if (truncated || (whole && !is_settled(bytes)) || !get_status_leaves_status())
    replace(code, status, bytes, cancelled != 0);
  else if (whole && buffer_.with_room)
    buffer_.with_room->deliver(bytes);
  state_.store(stand_in_ == MPI_REQUEST_NULL ? State::ended : State::replaced, std::memory_order_release);
}

/// Whether an ordinary message has arrived completely: neither an RTS nor a message that was too long.
bool WatchedReceive::is_settled(std::int64_t bytes) const {
  return !peer_may_be_rts(bytes) && bytes <= buffer_.bytes;
}

/// Replaces the receive by an operation whose message has arrived; the engine finds out whether it is an RTS.
void WatchedReceive::replace(int code, const MPI_Status& status, std::int64_t bytes, bool cancelled) {
  std::unique_ptr<Operation> operation = as_operation(&status);
  operation->arrived = {status.MPI_SOURCE, status.MPI_TAG, bytes};
  operation->cancelled = cancelled;
  operation->context = request_context(request_);
  const bool lost = is_truncation(code) || bytes > (buffer_.with_room ? ReceiveWithRoom::most_room : buffer_.bytes);
  operation->error = lost ? MPI_ERR_TRUNCATE : code;
  if (operation->error == MPI_SUCCESS && !cancelled) operation->step = Operation::Step::reading;
  if (lost) operation->step = Operation::Step::lost;
  Reservation reserved(std::move(operation));
  if (reserved.error() != MPI_SUCCESS) throw MpiError(reserved.error(), "a generalized request cannot be had");
  reserved.submit(/*issued=*/true, &stand_in_);
}

bool WatchedReceive::shares_buffer_with(const WatchedBuffer& other) const {
  const Outgoing &own = buffer_.program, &its = other.program;
  return own.data != MPI_BOTTOM && own.data == its.data && own.type == its.type && !buffer_.with_room;
}

/// `status`: of the message, if one has arrived.
std::unique_ptr<Operation> WatchedReceive::as_operation(const MPI_Status* status) const {
  std::shared_ptr<ReceivePayload> payload = buffer_.with_room;
  if (!payload) {
    const Outgoing& program = buffer_.program;
    auto in_place = std::make_shared<HostReceive>(program.room(), program.count, program.type,
                                                  buffer_.info ? buffer_.info : datatype::type_info(program.type));
    in_place->came_in_place();
    const std::int64_t context =
        owner_.comm != MPI_COMM_NULL ? std::int64_t{context_of(owner_.comm)} : request_context(request_);
    if (status != nullptr && context >= 0 && shares_buffer_.load(std::memory_order_relaxed))
      in_place->know_by({static_cast<std::uint32_t>(context), status->MPI_SOURCE, status->MPI_TAG});
    payload = std::move(in_place);
  }
  auto operation = std::make_unique<Operation>();
  operation->moved = std::move(payload);
  operation->owner = owner_;
  operation->on_device = false;
  return operation;
}

void WatchedReceive::remove() {
  MPI_Request replaced = state_.load() == State::replaced ? request_ : MPI_REQUEST_NULL;
  let_looks_end();
  all.remove(this);  // first: MPI may reuse the handle once it is freed
  if (replaced != MPI_REQUEST_NULL) PMPI_Request_free(&replaced);
}

/// A pending request becomes the engine's.
int WatchedReceive::free(MPI_Request* request) {
  std::optional<Reservation> reserved;
  {
    const Looking looking(*this);
    if (look_alone(/*drives=*/false) == State::pending) {
      std::unique_ptr<Operation> operation = as_operation();
      operation->inner = request_;
      reserved.emplace(std::move(operation));
      if (reserved->error() != MPI_SUCCESS) return reserved->error();
      reserved->list();
      state_.store(State::given_up, std::memory_order_release);
    }
  }
  MPI_Request given = state_.load() == State::ended ? *request : stand_in_;
  remove();  // before the engine can complete MPI's request, whose handle MPI may then reuse
  if (reserved) reserved->submit(/*issued=*/true, &given);
  const int code = PMPI_Request_free(&given);
  if (code == MPI_SUCCESS) *request = MPI_REQUEST_NULL;
  return code;
}

WatchedReceive* watched_find(MPI_Request request) {
  return watched_count() == 0 || request == MPI_REQUEST_NULL ? nullptr : all.find(request);
}

int watched_look(Tests tests, bool waits) {
  const auto most = static_cast<std::size_t>(watched_count());
  std::size_t left = tests == Tests::all ? most : std::min(most, sees_completion ? quick_looks : slow_looks);
  int replaced = 0;
  while (WatchedReceive* const receive = all.next(left, waits))
    if (receive->look_on_the_way() == WatchedReceive::State::replaced) ++replaced;
  return replaced;
}

/// A check by the engine, which only logs failures: the call that completes the receive reports them. The caller has
/// marked the receive as being checked.
WatchedReceive::State WatchedReceive::look_on_the_way() {
  const Looking looking(*this, std::adopt_lock);
  try {
    return look_alone(/*drives=*/false);
  } catch (const std::exception& failure) {
    log_own("receiving a message", failure);
  }
  return State::pending;
}

void watched_forget_comm(MPI_Comm comm) {
  if (watched_count() == 0) return;
  const auto kept = std::make_shared<const KeptHandler>(comm);
  all.for_each([&](WatchedReceive& receive) { receive.forget_comm(comm, kept); });
}

void WatchedReceive::forget_comm(MPI_Comm comm, const std::shared_ptr<const KeptHandler>& kept) {
  if (owner_.comm == comm) owner_.forget_comm(kept);
}

void watched_stop() {
  all.clear();
  MPI_Request never = never_made.exchange(MPI_REQUEST_NULL);
  if (never != MPI_REQUEST_NULL) end(never);
}

MPI_Request never_complete() {
  MPI_Request never = never_made.load();
  if (never != MPI_REQUEST_NULL) return never;
  MPI_Request made = MPI_REQUEST_NULL;
  const int code =
      PMPI_Grequest_start([](void*, MPI_Status*) { return int(MPI_SUCCESS); }, [](void*) { return int(MPI_SUCCESS); },
                          [](void*, int) { return int(MPI_SUCCESS); }, nullptr, &made);
  if (code != MPI_SUCCESS) throw MpiError(code, "a generalized request cannot be had");
  if (never_made.compare_exchange_strong(never, made)) return made;
  end(made);
  return never;
}

}  // namespace gpudt::interpose
