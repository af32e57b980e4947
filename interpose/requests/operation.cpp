// The functions for the wrappers: operations with their generalized requests, their order, and their end.
#include "interpose/requests/operation.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "base/never_destroyed.hpp"
#include "base/one_thread.hpp"
#include "interpose/mpi/progress.hpp"
#include "interpose/mpi/workarounds.hpp"
#include "interpose/requests/operations.hpp"
#include "interpose/support/errors.hpp"
#include "interpose/support/log.hpp"
#include "interpose/support/points.hpp"
#include "interpose/transport/peer/peer.hpp"

namespace gpudt::interpose {

Operations& operations = never_destroyed<Operations>();
std::atomic<int> detail::held{0};

namespace {

constexpr std::chrono::seconds stop_timeout{2};  ///< for receives into device memory at MPI_Finalize
constexpr std::chrono::seconds send_warning{8};  ///< after stop_timeout, until a warning says that sends are waited for

/// Sends that a program may post before MPI makes progress, in which Open MPI walks through all queued sends.
constexpr int given_between_progress = 64;

/// Whether the operation may never complete: a receive that the program has given up may never be matched.
bool may_never_end(const Operation& operation) {
  return operation.moved.is(Operation::Kind::receive) ||
         (operation.moved.is(Operation::Kind::read) && operation.owner.file == MPI_FILE_NULL);
}

int query(void* extra, MPI_Status* status) {
  auto* const operation = static_cast<Operation*>(extra);
  static_cast<void>(operation->decided.load(std::memory_order_acquire));  // MPI calls this when the request is complete
  status->MPI_SOURCE = operation->arrived.source;
  status->MPI_TAG = operation->arrived.tag;
  status->MPI_ERROR = MPI_SUCCESS;  // MPICH returns it, and does not set it before
  PMPI_Status_set_elements_x(status, MPI_BYTE, operation->arrived.bytes);
  PMPI_Status_set_cancelled(status, operation->cancelled ? 1 : 0);
  if (operation->error == MPI_SUCCESS) return MPI_SUCCESS;
  operation->retain();
  std::unique_ptr<Operation, OperationRelease> failed(operation);
  try {
    failed_here().push_back({operation->request, std::move(failed)});
    return MPI_SUCCESS;  // the wrapper of the completion call reports the error to the right handler
  } catch (const std::bad_alloc&) {
    return operation->error;  // MPI reports it, to a handler of its own choice
  }
}

int free_operation(void* extra) {
  auto* const operation = static_cast<Operation*>(extra);
  take_from(detail::held, 1);
  operations.remove(operation);
  operations.retire(operation);
  return MPI_SUCCESS;
}

}  // namespace

int Operations::reserve(Operation* operation) {
  operation->retain();  // the generalized request's reference, dropped in free_operation
  add_to(detail::held, 1);
  const int error = PMPI_Grequest_start(
      query, free_operation,
      [](void* extra, int complete) {
        if (complete == 0) {
          static_cast<Operation*>(extra)->cancel_wanted.store(true);
          operations.cancels_.fetch_add(1);
        }
        return int(MPI_SUCCESS);
      },
      operation, &operation->request);
  if (error != MPI_SUCCESS) free_operation(operation);
  return error;
}

/// Takes no memory for an issued operation, whose staging memory MPI uses by now.
void Operations::submit(Operation* operation, bool issued) {
  operation->issued = issued;
  const LockGuard lock(mutex_);
  if (!issued) {
    operation->number = ++last_number_;
    const auto entry = deferred_by_channel_.try_emplace(operation->channel, Deferred{0, operation->number - 1}).first;
    entry->second.submitted = operation->number;
    add_to(deferred_, 1);
  }
  add_to(live_, 1);
  enter_list(operation);
  incoming_.push(operation);
  progress_wake();
}

int Operations::give(Operation& operation) {
  SendPayload& payload = operation.moved.out();
  const Outgoing out = payload.message();
  mark(point::given);
  const NonblockingSend send =
      payload.goes_synchronously() && operation.send != hidden_send ? PMPI_Issend : operation.send;
  const int code = send(out.data, out.count, out.type, operation.channel.peer, operation.tag, operation.channel.comm,
                        &operation.inner);
  payload.given();
  add_to(operations.given_, 1, std::memory_order_relaxed);
  return code;
}

void Operations::make_progress_now_and_then() {
  if (given_.load(std::memory_order_relaxed) >= given_between_progress && !engine_within()) make_progress();
}

void Operations::list(Operation* operation) {
  const LockGuard lock(mutex_);
  enter_list(operation);
}

/// Enters the operation unless it is in the list.
void Operations::enter_list(Operation* operation) {
  if (operation->previous != nullptr || listed_ == operation) return;
  operation->next = std::exchange(listed_, operation);
  if (operation->next != nullptr) operation->next->previous = operation;
}

void Operations::remove(Operation* operation) {
  const LockGuard lock(mutex_);
  if (operation->next != nullptr) operation->next->previous = operation->previous;
  if (operation->previous != nullptr)
    operation->previous->next = operation->next;
  else if (listed_ == operation)
    listed_ = operation->next;
}

/// Drops the reference of an operation's generalized request, in the function that MPI calls to free it: MPICH holds
/// its lock there if the program has threads, and may not be called.
void Operations::retire(Operation* operation) {
  static_cast<void>(operation->decided.load(std::memory_order_acquire));  // sees what the engine has written
  if (!operation->needs_mpi_to_end()) return operation->release();
  operation->next_retired = retired_.load(std::memory_order_relaxed);
  while (!retired_.compare_exchange_weak(operation->next_retired, operation, std::memory_order_release)) {
  }
  progress_wake();
}

void Operations::release_all_retired() {
  Operation* operation = retired_.exchange(nullptr, std::memory_order_acquire);
  while (operation != nullptr) std::exchange(operation, operation->next_retired)->release();
}

bool Operations::is_issued(const SendChannel& channel, std::uint64_t number) {
  const LockGuard lock(mutex_);
  const auto entry = deferred_by_channel_.find(channel);
  return entry == deferred_by_channel_.end() || entry->second.issued >= number;
}

bool Operations::defers(const SendChannel& channel) {
  if (!defers()) return false;
  const LockGuard lock(mutex_);
  return deferred_by_channel_.contains(channel);
}

// Waits only for sends that are deferred now: other threads may add more for ever. Within the engine (an error handler
// that communicates) it does not wait, which would be for itself.
void Operations::order(const SendChannel& channel) {
  if (!defers() || engine_within()) return;
  std::uint64_t number = 0;
  {
    const LockGuard lock(mutex_);
    const auto entry = deferred_by_channel_.find(channel);
    if (entry == deferred_by_channel_.end()) return;
    number = entry->second.submitted;
  }
  wait_until([&] { return is_issued(channel, number); });
}

template <class Wanted>
void Operations::order_each(Wanted wanted) {
  if (!defers() || engine_within()) return;
  std::vector<std::pair<SendChannel, std::uint64_t>> numbers;
  {
    const LockGuard lock(mutex_);
    for (const auto& [channel, deferred] : deferred_by_channel_)
      if (wanted(channel)) numbers.emplace_back(channel, deferred.submitted);
  }
  for (const auto& each : numbers) wait_until([&] { return is_issued(each.first, each.second); });
}

void Operations::forget_comm(MPI_Comm comm) {
  order_each([&](const SendChannel& channel) { return channel.comm == comm; });
  watched_forget_comm(comm);
  if (detail::held.load() == 0 && live() == 0) return;
  const auto kept = std::make_shared<const KeptHandler>(comm);
  {
    const LockGuard lock(mutex_);
    for (Operation* operation = listed_; operation != nullptr; operation = operation->next)
      if (operation->owner.comm == comm) operation->owner.forget_comm(kept);
  }
  engine_let_poll_end();  // the poll may have read the handle before
}

void Operations::forget_win(MPI_Win win) {
  if (detail::held.load() == 0 && live() == 0) return;
  const LockGuard lock(mutex_);
  for (Operation* operation = listed_; operation != nullptr; operation = operation->next)
    if (operation->owner.win == win) operation->owner.win = MPI_WIN_NULL;
}

ErrorOwner Operations::owner(const Operation& operation) {
  const LockGuard lock(mutex_);
  return operation.owner;
}

bool Operations::only_receives() {
  bool only = packing_.empty() && arrived_.empty() && sending_.empty() && moving_.empty();
  inner_.each_owner([&](const Operation* operation) { only = only && may_never_end(*operation); });
  return only;
}

/// Cancels receives into device memory, or into host memory. The latter are operations only because they may get an
/// RTS; without this library MPI_Finalize would not wait for them.
void Operations::cancel_receives(bool on_device) {
  inner_.each_owner([&](Operation* operation) {
    if (may_never_end(*operation) && operation->on_device == on_device) operation->cancel_wanted = true;
  });
  cancels_.fetch_add(1);
}

bool Operations::stop() {
  order_each([](const SendChannel&) { return true; });
  engine_progress(Tests::all);  // receives what has arrived
  cancel_receives(/*on_device=*/false);
  const auto timeout = std::chrono::steady_clock::now() + stop_timeout;
  bool cancelled = false, warned = false;
  while (live() != 0) {
    engine_progress();
    const auto now = std::chrono::steady_clock::now();
    if (now >= timeout && only_receives() && !std::exchange(cancelled, true)) {
      log_warning("MPI_Finalize: " + std::to_string(live()) +
                  " operations on device buffers are still pending; the receives among them are cancelled");
      cancel_receives(/*on_device=*/true);
    }
    if (now >= timeout + send_warning && !only_receives() && !std::exchange(warned, true))
      log_warning("MPI_Finalize waits for " + std::to_string(live()) +
                  " operations on device buffers, in which other processes have not taken part yet");
    if (now >= timeout + stop_timeout && only_receives()) break;
  }
  engine_unhook();
  watched_stop();
  failed_here().clear();
  release_retired();
  return live() == 0;
}

std::vector<Failed>& failed_here() {
#ifdef __clang__
#pragma clang diagnostic ignored "-Wexit-time-destructors"  // it ends with its thread, and MPI_Finalize empties it
#endif
  thread_local std::vector<Failed> list;
  return list;
}

const char* engine_start() {
  if (const char* const obstacle = engine_hook()) return obstacle;
  engine_register(EnginePart::operations, &operations);
  return nullptr;
}
bool engine_stop() {
  return operations.stop();
}

Reservation::Reservation(std::unique_ptr<Operation> operation)
    : operation_(operation.get()), error_(operations.reserve(operation.get())) {
  static_cast<void>(operation.release());
}

Reservation::~Reservation() {
  if (operation_ == nullptr) return;
  operation_->inner = MPI_REQUEST_NULL;  // it has not been started
  if (error_ == MPI_SUCCESS) {
    PMPI_Grequest_complete(operation_->request);
    PMPI_Request_free(&operation_->request);
  }
  operation_->release();
}

void Reservation::list() {
  operations.list(operation_);
}

int Reservation::submit(bool issued, MPI_Request* request) {
  const MPI_Request made = operation_->request;
  operations.submit(operation_, issued);
  operation_ = nullptr;
  *request = made;
  return MPI_SUCCESS;
}

int Reservation::submit_send(bool packed, MPI_Request* request) {
  if (!packed || operations.defers(operation_->channel)) return submit(/*issued=*/false, request);
  const int code = Operations::give(*operation_);
  if (code != MPI_SUCCESS && operation_->send == hidden_send) return raise(operation_->owner.comm, code);
  const int submitted = submit_issued(code, request);
  operations.make_progress_now_and_then();
  return submitted;
}

int Reservation::submit_issued(int code, MPI_Request* request) {
  if (code != MPI_SUCCESS) return code;
  if (operation_->inner != MPI_REQUEST_NULL) return submit(/*issued=*/true, request);
  *request = MPI_REQUEST_NULL;
  return code;
}

void engine_order(MPI_Comm comm, int peer) {
  operations.order({comm, peer});
}
bool engine_defers() {
  return operations.defers();
}
void engine_forget_comm(MPI_Comm comm) {
  operations.forget_comm(comm);
}
void engine_order_all() {
  operations.order_each([](const SendChannel&) { return true; });
}
void engine_forget_win(MPI_Win win) {
  operations.forget_win(win);
}
int tell(Operation& operation) {
  if (std::exchange(operation.told, true) || handlers_are_silent()) return operation.error;
  const ErrorOwner owner = operations.owner(operation);
  // Open MPI finds no handler in a freed communicator, and for collectives calls that of MPI_COMM_WORLD.
  const bool collective = operation.moved.is(Operation::Kind::fill) && owner.comm != MPI_COMM_NULL;
  if (collective && operation.inner != MPI_REQUEST_NULL) PMPI_Request_free(&operation.inner);
  if (operation.inner == MPI_REQUEST_NULL || owner.kept || operation.forbidden) return raise(owner, operation.error);
  const int code = PMPI_Wait(&operation.inner, MPI_STATUS_IGNORE);  // it has ended: MPI calls the handler
  if (code != MPI_SUCCESS) operation.error = code;
  return operation.error;
}

}  // namespace gpudt::interpose
