#include "interpose/collectives/call_order.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "base/never_destroyed.hpp"
#include "interpose/mpi/workarounds.hpp"
#include "interpose/requests/arithmetic.hpp"
#include "interpose/support/log.hpp"
#include "interpose/support/require.hpp"

namespace gpudt::interpose {
std::atomic<std::size_t> detail::collectives_waiting{0};

namespace {

struct Waiting {
  const void* call;
  MPI_Comm comm;
  std::uint64_t number;
};

/// A handle that the program has freed. It is kept for the waiting calls up to number `last`.
template <class Handle>
struct Freed {
  Handle handle;
  std::uint64_t last;
};

struct Order {
  Mutex mutex;
  std::vector<Waiting> waiting GUARDED_BY(mutex);  ///< on all communicators, in the order of the calls
  std::vector<Waiting> starts GUARDED_BY(mutex);   ///< of persistent ones, in no order
  std::uint64_t last_number GUARDED_BY(mutex) = 0;
  std::vector<Freed<MPI_Datatype>> types GUARDED_BY(mutex);
  std::vector<Freed<MPI_Op>> ops GUARDED_BY(mutex);
};
auto& order = never_destroyed<Order>();

/// Whether a call has to keep its place among those on its communicator.
enum class Place { in_order, anywhere };

void enter(const void* call, MPI_Comm comm, Place place) {
  const LockGuard lock(order.mutex);
  if (place == Place::anywhere) {
    order.starts.push_back({call, comm, 0});
    return;
  }
  order.waiting.push_back({call, comm, ++order.last_number});
  detail::collectives_waiting.store(order.waiting.size());
}

/// Whether no earlier call on the same communicator waits.
bool is_first(const void* call, MPI_Comm comm) {
  const LockGuard lock(order.mutex);
  const auto first = std::find_if(order.waiting.begin(), order.waiting.end(),
                                  [comm](const Waiting& each) { return each.comm == comm; });
  return first != order.waiting.end() && first->call == call;
}

/// Takes out the handles freed before call `first_waiting` was made.
template <class Handle>
std::vector<Freed<Handle>> no_longer_used(std::vector<Freed<Handle>>& freed, std::uint64_t first_waiting) {
  const auto end =
      std::find_if(freed.begin(), freed.end(), [=](const Freed<Handle>& each) { return each.last >= first_waiting; });
  std::vector<Freed<Handle>> unused(freed.begin(), end);
  freed.erase(freed.begin(), end);
  return unused;
}

void leave(const void* call) {
  const auto is_it = [call](const Waiting& each) { return each.call == call; };
  std::vector<Freed<MPI_Datatype>> types;
  std::vector<Freed<MPI_Op>> ops;
  {
    const LockGuard lock(order.mutex);
    if (std::erase_if(order.starts, is_it) != 0) return;
    std::erase_if(order.waiting, is_it);
    detail::collectives_waiting.store(order.waiting.size());
    if (order.types.empty() && order.ops.empty()) return;
    const std::uint64_t first = order.waiting.empty() ? order.last_number + 1 : order.waiting.front().number;
    types = no_longer_used(order.types, first);
    ops = no_longer_used(order.ops, first);
  }
  for (Freed<MPI_Datatype>& type : types) PMPI_Type_free(&type.handle);
  for (Freed<MPI_Op>& op : ops) PMPI_Op_free(&op.handle);
}

/// A nonblocking call, or a start, from when it is made until it is complete.
class WaitingCall : public CallPayload {
 public:
  WaitingCall(const char* name, MPI_Comm comm, Place place, std::unique_ptr<BoardCall> offered, StartInMpi start,
              Operation& operation)
      : name_(name),
        comm_(comm),
        place_(place),
        offered_(std::move(offered)),
        start_(std::move(start)),
        operation_(operation) {
    enter(this, comm, place);
  }
  ~WaitingCall() override {
    if (waits_) leave(this);
    if (late_.inner != MPI_REQUEST_NULL && !is_persistent()) PMPI_Request_free(&late_.inner);
  }

  /// Advances as far as it can without waiting.
  bool done() override {
    if (waits_ && !advance()) return false;
    if (offered_) return offered_complete();
    if (late_.inner != MPI_REQUEST_NULL && !ended_in_mpi()) return false;
    return operation_.error != MPI_SUCCESS || !late_.staged || late_.staged->done();
  }
  void each_reported(VisitReported visit) const override {
    if (late_.staged) late_.staged->each_reported(visit);
  }

 private:
  bool is_persistent() const { return place_ == Place::anywhere; }

  /// Whether the call has had its turn, and GPUs or MPI have it.
  bool advance() {
    if (place_ == Place::in_order && !is_first(this, comm_)) return false;
    if (!decided_) {
      const BoardCall::Decision decision = offered_ ? offered_->decide() : BoardCall::Decision::otherwise;
      if (decision == BoardCall::Decision::open) return false;
      decided_ = true;
      if (decision == BoardCall::Decision::otherwise) give_to_mpi();
    }
    waits_ = false;
    leave(this);
    return true;
  }

  void give_to_mpi() {
    offered_.reset();
    MPI_Request unused = MPI_REQUEST_NULL;
    operation_.error = MPI_ERR_OTHER;  // stays if an error handler throws
    operation_.told = true;
    // Whatever thread it is that starts the call now.
    const device::OrderedByStream ordered(ordered_by_stream_);
    const HandlersSilent silent(handlers_silent_);
    const Shortfalls own;  // not those of the call in which the engine runs
    require_explains(not_all_for_gpus);
    try {
      operation_.error = start_({.name = name_, .request = &unused, .late = &late_});
      operation_.told = operation_.error != MPI_SUCCESS;
    } catch (const std::exception& error) {
      operation_.error = log_own(name_, error);
      operation_.told = false;
    }
  }

  bool offered_complete() {
    if (!offered_->complete()) return false;
    offered_->report();
    return true;
  }

  /// Whether MPI has done the call; then outputs are being unpacked. A request that has failed is left to tell().
  bool ended_in_mpi() {
    int ended = 0, index = 0;
    MPI_Status status{};
    const int code = test_some(1, &late_.inner, &ended, &index, &status);
    if (ended == 0) return false;
    const int error = code == MPI_ERR_IN_STATUS ? status.MPI_ERROR : code;
    const MPI_Request inner = std::exchange(late_.inner, MPI_REQUEST_NULL);
    if (!is_persistent()) operation_.inner = inner;
    operation_.error = error < 0 ? MPI_ERR_OTHER : error;
    if (error == MPI_SUCCESS && late_.staged) late_.staged->start_unpack(0);
    return true;
  }

  const char* const name_;
  const MPI_Comm comm_;  ///< lasts as long as the call waits
  const Place place_;
  std::unique_ptr<BoardCall> offered_;
  const StartInMpi start_;
  Operation& operation_;
  // Of the thread that made the call.
  const bool ordered_by_stream_ = device::is_ordered_by_stream(), handlers_silent_ = handlers_are_silent();
  bool waits_ = true;
  bool decided_ = false;  ///< whether GPUs do the call; if not, MPI has been given it
  LateCall late_;
};

}  // namespace

bool detail::collectives_wait_on(MPI_Comm comm) {
  const LockGuard lock(order.mutex);
  return std::any_of(order.waiting.begin(), order.waiting.end(),
                     [comm](const Waiting& each) { return each.comm == comm; });
}

void detail::settle_waiting(MPI_Comm comm) {
  if (engine_within()) return;
  wait_until([comm] { return !collectives_wait(comm); }, for_others);
}

void settle_starts(MPI_Comm comm) {
  if (engine_within()) return;
  wait_until(
      [comm] {
        const LockGuard lock(order.mutex);
        return std::none_of(order.starts.begin(), order.starts.end(),
                            [comm](const Waiting& each) { return each.comm == comm; });
      },
      for_others);
}

namespace {

int submit(const Call& call, const ErrorOwner& owner, Place place, std::unique_ptr<BoardCall> offered, StartInMpi start,
           std::shared_ptr<void> keep) {
  BoardCall* const told = offered.get();
  auto operation = std::make_unique<Operation>();
  operation->owner = owner;
  operation->keep = std::move(keep);
  operation->moved = {
      Operation::Kind::fill,
      std::make_shared<WaitingCall>(call.name, owner.comm, place, std::move(offered), std::move(start), *operation)};
  Reservation reserved(std::move(operation));
  if (reserved.error() != MPI_SUCCESS) return reserved.error();
  if (told != nullptr) told->tell();
  const int code = reserved.submit(/*issued=*/true, call.request);
  engine_progress();  // if all others have published the call, it may begin
  return code;
}

}  // namespace

int start_waiting(const Call& call, MPI_Comm comm, std::unique_ptr<BoardCall> offered, StartInMpi start) {
  return submit(call, {.comm = comm}, Place::in_order, std::move(offered), std::move(start), nullptr);
}

int start_offered(const Call& call, const ErrorOwner& owner, std::unique_ptr<BoardCall> offered, StartInMpi start,
                  std::shared_ptr<void> keep) {
  return submit(call, owner, Place::anywhere, std::move(offered), std::move(start), std::move(keep));
}

namespace {

template <class Handle>
bool keep(Handle* handle, Handle null, std::vector<Freed<Handle>>& freed) REQUIRES(order.mutex) {
  if (order.waiting.empty()) return false;
  freed.push_back({std::exchange(*handle, null), order.last_number});
  return true;
}

}  // namespace

bool free_type_later(MPI_Datatype* type) {
  if (detail::collectives_waiting.load(std::memory_order_acquire) == 0 || datatype::is_predefined(*type)) return false;
  const LockGuard lock(order.mutex);
  return keep(type, MPI_DATATYPE_NULL, order.types);
}

bool free_op_later(MPI_Op* op) {
  if (detail::collectives_waiting.load(std::memory_order_acquire) == 0 || is_predefined_operator(*op)) return false;
  const LockGuard lock(order.mutex);
  return keep(op, MPI_OP_NULL, order.ops);
}

}  // namespace gpudt::interpose
