// Moves operations from packing to issued to unpacking to done.
#include "interpose/requests/progress_engine.hpp"

#include <sched.h>

#include <algorithm>
#include <array>
#include <new>
#include <span>

#include "base/cancellation.hpp"
#include "interpose/mpi/progress.hpp"
#include "interpose/mpi/workarounds.hpp"
#include "interpose/support/errors.hpp"
#include "interpose/support/log.hpp"
#include "interpose/support/points.hpp"
#include "interpose/support/report.hpp"
#include "interpose/transport/peer/peer.hpp"

namespace gpudt::interpose {
namespace {

// Requests looked at in one pass: bounds the cost of a pass when very many are pending; the next pass goes on
// where this one stopped.
constexpr int test_window = 64;
// Peers whose first deferred send is still packing, after which a pass stops looking for sends to issue.
constexpr std::size_t blocked_peers_max = 16;

/// The operation fails with what has been caught, unless the program has thrown it. Whatever memory is left.
void fail_operation(Operation& operation, const char* doing, const std::exception& failure) {
  operation.error = log_own(doing, failure);
}

/// Makes room for `size` elements, seldom.
template <class Element>
void reserve_amply(std::vector<Element>& list, std::size_t size) {
  if (list.capacity() < size) list.reserve(std::max(size, 2 * list.capacity()));
}

/// The engine belongs to this thread while it lives, however progress() ends: an error handler may throw. The thread,
/// which has operations of others in its hands, is not cancelled meanwhile.
class Hold {
 public:
  explicit Hold(std::atomic<bool>& busy) : busy_(busy) { ProgressEngine::inside = true; }
  ~Hold() {
    ProgressEngine::inside = false;
    busy_.store(false, std::memory_order_release);
  }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

 private:
  const CancellationPutOff undisturbed_{};
  std::atomic<bool>& busy_;
};

/// A walk through a list, of which it keeps some entries; those that it has not come to stay, however it ends.
class Sieve {
 public:
  explicit Sieve(std::vector<Operation*>& list) : list_(list) {}
  ~Sieve() { list_.erase(list_.begin() + kept_, list_.begin() + at_); }
  Sieve(const Sieve&) = delete;
  Sieve& operator=(const Sieve&) = delete;

  /// The entry that it has come to; null at the end.
  Operation* entry() const { return at_ < std::ssize(list_) ? list_[static_cast<std::size_t>(at_)] : nullptr; }
  void keep() { list_[static_cast<std::size_t>(kept_++)] = list_[static_cast<std::size_t>(at_++)]; }
  void drop() { ++at_; }

 private:
  std::vector<Operation*>& list_;
  std::ptrdiff_t kept_ = 0, at_ = 0;
};

}  // namespace

int ProgressEngine::progress(Tests tests) {
  if (inside) return 0;
  const EngineBackground* const background = background_.load(std::memory_order_acquire);
  const bool due = background != nullptr && background->due();
  const bool busy = pending();
  if (!due && !busy) return 0;
  if (busy_.exchange(true, std::memory_order_acquire)) return 0;
  const Hold hold(busy_);
  const int completions = due && background_.load() != nullptr ? background->run() : 0;
  return busy ? completions + pass(tests) : completions;
}

void ProgressEngine::settle() {
  if (inside || (!pending() && !has_background())) return;
  while (busy_.exchange(true, std::memory_order_acquire)) sched_yield();
  const Hold hold(busy_);
  const EngineBackground* const background = background_.load();
  while (background != nullptr && background->run() != 0) {
  }
  do {
    if (watched_wanted()) watched_look(Tests::all, /*waits=*/true);
    pass(Tests::all);
  } while (reading_ != 0);  // until every message that may be an RTS has been recognised
}

int ProgressEngine::pass(Tests tests) {
  int completions = 0;
  // What has arrived together is unpacked together.
  const device::Gathering gathering(device::Gathering::short_bytes);
  // Before the incoming operations are taken, so that what is wanted of one of these is not taken back here.
  const bool cancels = cancels_.load() != 0 && cancels_.exchange(0) != 0;
  release_retired();
  completions += look_at_watched(tests);
  take_incoming();
  if (cancels) cancel_wanted();
  completions += issue_packed();
  completions += test_inner(tests);
  completions += finish_unpacked();
  if (const EngineService service = service_.load()) completions += service();
  return completions;
}

/// Those that there is no memory for stay.
void ProgressEngine::take_incoming() {
  const LockGuard lock(mutex_);
  if (incoming_.empty()) return;
  make_room();
  std::size_t taken = 0;
  try {
    for (const auto& [operation, issued] : incoming_) {
      if (!issued)
        packing_.push_back(operation);
      else if (operation->inner == MPI_REQUEST_NULL)
        follow_up(operation);
      else
        watch(operation);
      ++taken;
    }
  } catch (const std::bad_alloc&) {
    incoming_.erase(incoming_.begin(), incoming_.begin() + static_cast<std::ptrdiff_t>(taken));
    throw;
  }
  incoming_.clear();
}

/// What has come, or what there is no request for.
void ProgressEngine::follow_up(Operation* operation) {
  unpacking_.push_back(operation);
  if (operation->reading) ++reading_;
  if (operation->truncated) ++truncated_;
}

void ProgressEngine::make_room() {
  const std::size_t all = packing_.size() + inner_.size() + unpacking_.size() + incoming_.size();
  reserve_amply(inner_, all);
  reserve_amply(inner_operations_, all);
  reserve_amply(unpacking_, all);
}

/// Hands packed sends to MPI, in program order for each peer.
int ProgressEngine::issue_packed() {
  int completions = 0;
  std::array<SendChannel, blocked_peers_max> blocked;
  auto blocked_end = blocked.begin();
  for (auto entry = packing_.begin(); entry != packing_.end() && blocked_end != blocked.end();) {
    Operation* operation = *entry;
    const SendChannel& channel = operation->channel;
    if (std::find(blocked.begin(), blocked_end, channel) != blocked_end) {
      ++entry;
      continue;
    }
    bool packed = true;
    try {
      packed = operation->payload->done();
    } catch (const std::exception& error) {
      fail_operation(*operation, "packing a message", error);
    }
    if (!packed) {
      *blocked_end++ = channel;
      ++entry;
      continue;
    }
    issue(operation);
    entry = packing_.erase(entry);
    if (operation->inner == MPI_REQUEST_NULL) {
      complete(operation);
      ++completions;
    }
  }
  return completions;
}

int ProgressEngine::give(Operation& operation) {
  const Outgoing out = operation.payload->message();
  mark(point::given);
  const int code = operation.send(out.data, out.count, out.type, operation.channel.peer, operation.tag,
                                  operation.channel.comm, &operation.inner);
  operation.payload->given();
  return code;
}

void ProgressEngine::issue(Operation* operation) {
  const MPI_Comm comm = owner(*operation).comm;
  if (operation->error == MPI_SUCCESS && operation->cancel_wanted.load()) {
    operation->cancelled = true;  // MPI has not seen the message yet: nothing to undo
  } else if (operation->error == MPI_SUCCESS && comm == MPI_COMM_NULL) {
    operation->error = MPI_ERR_COMM;  // an error handler within the engine has freed it
  } else if (operation->error == MPI_SUCCESS) {
    operation->error = MPI_ERR_OTHER;  // stays if an error handler throws: the next pass ends the operation
    operation->told = true;
    try {
      operation->error = give(*operation);
      operation->told = operation->error != MPI_SUCCESS && operation->send != hidden_send;
    } catch (const std::exception& failure) {
      fail_operation(*operation, "sending a message", failure);
      operation->told = false;
    }
  }
  issued(*operation);
  if (operation->error != MPI_SUCCESS || operation->cancelled) operation->inner = MPI_REQUEST_NULL;
  if (operation->inner != MPI_REQUEST_NULL)
    watch(operation);  // none: a failure that MPICH 5 has told the handler alone
}

void ProgressEngine::issued(const Operation& operation) {
  const LockGuard lock(mutex_);
  const auto entry = deferred_by_channel_.find(operation.channel);
  entry->second.issued = operation.number;
  if (operation.number == entry->second.submitted) deferred_by_channel_.erase(entry);
  deferred_.fetch_sub(1);
}

void ProgressEngine::watch(Operation* operation) {
  inner_.push_back(operation->inner);
  inner_operations_.push_back(operation);
}

int ProgressEngine::test_inner(Tests tests) {
  if (tests == Tests::some) return test_while_some_end();
  int completions = 0;
  window_ = 0;
  do {
    completions += test_next_window();
  } while (window_ < inner_.size());
  return completions;
}

/// Looks again once some have ended, until nothing more has: MPI may bring messages one at a time, as UCX does after
/// idle polls, and their data are better moved together. A look at which nothing has ended lets MPI bring more, which
/// the next one sees.
int ProgressEngine::test_while_some_end() {
  constexpr int looks_in_vain = 2;
  int completions = 0;
  int left = 1;
  do {
    const std::size_t before = inner_.size();
    completions += test_next_window();
    left = inner_.size() < before ? looks_in_vain : left - 1;
  } while (left > 0);
  return completions;
}

/// Looks at a window of the real requests. Testsome, not one Test each: it enters MPI's progress once.
int ProgressEngine::test_next_window() {
  if (inner_.empty()) return 0;
  if (window_ >= inner_.size()) window_ = 0;
  const int count = static_cast<int>(std::min<std::size_t>(test_window, inner_.size() - window_));
  int indices[test_window];
  MPI_Status statuses[test_window];
  int done = 0;
  const int code = test_some(count, inner_.data() + window_, &done, indices, statuses);
  if (done == MPI_UNDEFINED) done = 0;
  std::array<Operation*, test_window> list;
  const std::span<Operation*> completed(list.data(), static_cast<std::size_t>(done));
  for (int i = 0; i < done; ++i) {
    const std::size_t at = window_ + static_cast<std::size_t>(indices[i]);
    Operation* const operation = inner_operations_[at];
    completed[static_cast<std::size_t>(i)] = operation;
    inner_operations_[at] = nullptr;
    operation->inner = operation->lasting ? MPI_REQUEST_NULL : inner_[at];
    inner_completed(operation, statuses[i], code == MPI_ERR_IN_STATUS ? statuses[i].MPI_ERROR : MPI_SUCCESS);
  }
  if (done == 0) {  // nor is the list gone through, which may be long
    window_ += static_cast<std::size_t>(count);
    return 0;
  }
  std::size_t kept = window_;
  for (std::size_t at = window_; at < inner_.size(); ++at) {
    if (inner_operations_[at] == nullptr) continue;
    inner_[kept] = inner_[at];
    inner_operations_[kept++] = inner_operations_[at];
  }
  inner_.resize(kept);
  inner_operations_.resize(kept);
  window_ += static_cast<std::size_t>(count - done);
  int completions = 0;
  for (Operation* operation : completed) {
    if (operation->unpacks || operation->truncated || operation->reading) {
      unpacking_.push_back(operation);
    } else {
      complete(operation);
      ++completions;
    }
  }
  return completions;
}

void ProgressEngine::inner_completed(Operation* operation, const MPI_Status& status, int error) noexcept {
  operation->error = error < 0 ? MPI_ERR_OTHER : error;  // Open MPI's inner numbers, which it translates for handlers
  try {
    read_outcome(operation, status);
  } catch (const std::exception& failure) {
    if (operation->error == MPI_SUCCESS) fail_operation(*operation, "receiving a message", failure);
  }
}

void ProgressEngine::read_outcome(Operation* operation, const MPI_Status& status) {
  if (operation->kind == Operation::Kind::fill) return start_unpack(operation, 0);
  if (operation->owner.file == MPI_FILE_NULL) {  // Open MPI leaves this undefined in the status of a file access
    int cancelled = 0;
    PMPI_Test_cancelled(&status, &cancelled);
    operation->cancelled = cancelled != 0;
  }
  if (operation->kind == Operation::Kind::send) {
    mark(point::sent);
    if (operation->payload->always_unpacks() && !operation->cancelled) start_unpack(operation, 0);
    return;
  }
  operation->from = status.MPI_SOURCE;
  operation->received_tag = status.MPI_TAG;
  if (operation->cancelled) return;
  MPI_Count bytes = 0;
  PMPI_Get_elements_x(&status, MPI_BYTE, &bytes);
  operation->bytes = bytes;
  if (operation->kind != Operation::Kind::receive) return;
  if (operation->error != MPI_SUCCESS) {
    operation->truncated = is_truncation(operation->error) && (!truncated_statuses_tell || peer_may_be_rts(bytes));
    if (operation->truncated) ++truncated_;
    return;
  }
  take_arrived(operation);
}

/// Of a truncated message, if it was an RTS. RTS messages before it must have been recognised, or it would be taken for
/// one of these.
void ProgressEngine::release_sender(const Operation& operation) noexcept try {
  operation.payload->truncated(operation.bytes);
  MPI_Status status{};
  status.MPI_SOURCE = operation.from;
  status.MPI_TAG = operation.received_tag;
  PMPI_Status_set_elements_x(&status, MPI_BYTE, operation.bytes);
  const MPI_Comm comm = owner(operation).comm;
  if (comm != MPI_COMM_NULL)
    peer_truncated(comm, status);
  else  // the communicator's handle has been freed
    peer_truncated_in(operation.inner == MPI_REQUEST_NULL ? operation.context : request_context(operation.inner),
                      status);
} catch (const std::exception& failure) {
  log_failure("receiving a message", failure.what());
}

/// What has come may stand for a message that is to be fetched.
void ProgressEngine::take_arrived(Operation* operation) {
  try {
    operation->reading = !operation->payload->is_readable(operation->bytes);
  } catch (const std::exception& failure) {
    fail_operation(*operation, "receiving a message", failure);
    operation->truncated = true;  // if it is an RTS, its sender goes on
    return;
  }
  if (operation->reading) {
    ++reading_;
    return;
  }
  const bool any = operation->bytes != 0 || operation->payload->always_unpacks();
  const Announced announced = operation->payload->announced(operation->bytes);
  if (!announced.fetched && peer::rts_index(operation->bytes) >= 0)
    peer_received_plain(operation->bytes, operation->from, owner(*operation).comm);
  operation->bytes = announced.bytes;
  if (any) start_unpack(operation, announced.bytes);
  if (operation->error == MPI_SUCCESS) operation->error = announced.error;
}

void ProgressEngine::start_unpack(Operation* operation, std::int64_t bytes) {
  if (operation->error != MPI_SUCCESS) return;
  try {
    operation->payload->start_unpack(bytes);
    operation->unpacks = true;
  } catch (const std::exception& failure) {
    fail_operation(*operation, "unpacking a message", failure);
  }
}

/// Advances what follows the arrival of a message; true when nothing is left to do.
bool ProgressEngine::advance_unpacking(Operation* operation) {
  const bool was_reading = std::exchange(operation->reading, false);
  if (was_reading) {
    --reading_;
    take_arrived(operation);  // sets it again if the copy is not done
    if (operation->reading) return false;
  }
  if (operation->truncated) {
    if (reading_ != 0) return false;  // RTS messages that arrived before this one are recognised first
    release_sender(*operation);
    return true;
  }
  return (was_reading && !operation->unpacks) || operation->payload->done();
}

/// Of nothing that has been offered an RTS can have come.
int ProgressEngine::look_at_watched(Tests tests) {
  return watched_wanted() ? watched_look(tests) : 0;
}

int ProgressEngine::finish_unpacked() {
  int completions = 0;
  while (std::exchange(truncated_, 0) != 0) {
    completions += look_at_watched(Tests::all);
    take_incoming();
    completions += test_inner(Tests::all);
  }
  for (Sieve sieve(unpacking_); Operation* const operation = sieve.entry();) {
    bool done = true;
    try {
      done = advance_unpacking(operation);
    } catch (const std::exception& error) {
      fail_operation(*operation, "moving the data of a message", error);
    }
    if (!done) {
      sieve.keep();
      continue;
    }
    sieve.drop();
    complete(operation);
    ++completions;
  }
  return completions;
}

void ProgressEngine::complete(Operation* operation) {
  if (operation->error != MPI_SUCCESS && operation->payload) operation->payload->abandon();
  operation->checked.reset();
  if (report_wanted && operation->payload) operation->payload->ended();
  operation->payload.reset();  // the user may reuse or free everything from here on
  mark(point::completed);
  operation->decided.store(true, std::memory_order_release);
  PMPI_Grequest_complete(operation->request);
  live_.fetch_sub(1);
  operation->release();
}

void ProgressEngine::cancel_wanted() {
  for (Operation* operation : inner_operations_)
    if (operation->cancel_wanted.exchange(false)) PMPI_Cancel(&operation->inner);
}

}  // namespace gpudt::interpose
