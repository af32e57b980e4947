// Moves operations from packing to issued to unpacking to done.
#include "interpose/requests/operations.hpp"

#include <algorithm>
#include <new>

#include "base/one_thread.hpp"
#include "interpose/mpi/workarounds.hpp"
#include "interpose/support/errors.hpp"
#include "interpose/support/log.hpp"
#include "interpose/support/points.hpp"
#include "interpose/support/report.hpp"
#include "interpose/transport/peer/peer.hpp"

namespace gpudt::interpose {

using Kind = Operation::Kind;
using Step = Operation::Step;

namespace {

/// A pass stops looking for sends to issue after this number of peers whose first deferred send is still packing.
constexpr int blocked_peers_max = 16;
/// Of the operations whose data are under way, those that a step checks beside the oldest: each takes several cache
/// lines, which are not in the caches.
constexpr std::size_t others_checked = 16;

/// Fails the operation with a caught exception, which is rethrown if it is the program's. Takes no memory.
void fail_operation(Operation& operation, const char* doing, const std::exception& failure) {
  operation.error = log_own(doing, failure);
}

/// Filters a list in one pass. Entries that the pass has not reached stay, even if an exception ends it.
class Sieve {
 public:
  explicit Sieve(std::vector<Operation*>& list) : list_(list) {}
  ~Sieve() { list_.erase(list_.begin() + kept_, list_.begin() + at_); }
  Sieve(const Sieve&) = delete;
  Sieve& operator=(const Sieve&) = delete;

  /// Null at the end.
  Operation* entry() const { return at_ < std::ssize(list_) ? list_[static_cast<std::size_t>(at_)] : nullptr; }
  void keep() { list_[static_cast<std::size_t>(kept_++)] = list_[static_cast<std::size_t>(at_++)]; }
  void drop() { ++at_; }

 private:
  std::vector<Operation*>& list_;
  std::ptrdiff_t kept_ = 0, at_ = 0;
};

}  // namespace

void Operations::settle() {
  do {
    if (watched_wanted()) watched_look(Tests::all, /*waits=*/true);
    poll(Tests::all);
  } while (reading_ != 0);
}

int Operations::poll(Tests tests) {
  // Read before incoming operations are taken: a cancellation of one of these must not be cleared without effect.
  const bool cancels = cancels_.load() != 0 && cancels_.exchange(0) != 0;
  given_.store(0, std::memory_order_relaxed);
  release_retired();
  inner_.tidy();
  sending_.tidy();
  moving_.tidy();
  int completions = look_at_watched(tests);
  take_incoming();
  if (cancels) cancel_wanted();
  completions += issue_packed();
  completions += test_inner(tests);
  completions += look_for_lost();
  start_arrived();
  completions += finish(moving_, tests);
  return completions + finish(sending_, tests);
}

/// If memory is short, throws and leaves the operations where they are.
void Operations::take_incoming() {
  const LockGuard lock(mutex_);
  if (incoming_.size() == 0) return;
  make_room();
  for (; Operation* const operation = incoming_.first(); incoming_.pop()) {
    if (!operation->issued) {
      packing_[operation->channel].push_back(operation);
      ++in_packing_;
    } else if (operation->inner == MPI_REQUEST_NULL) {
      follow_up(operation);
    } else {
      watch(operation);
    }
  }
}

void Operations::enter(Operation* operation) {
  const bool arrived = operation->step == Step::reading || operation->step == Step::starting;
  if (arrived)
    arrived_.push_back(operation);
  else
    (operation->moved.is(Kind::send) ? sending_ : moving_).add(operation);
}

/// Takes an operation whose message has arrived, or that has no real request.
void Operations::follow_up(Operation* operation) {
  if (operation->step == Step::none) operation->step = Step::moving;
  if (operation->step == Step::reading) ++reading_;
  if (operation->step == Step::lost) ++lost_;
  enter(operation);
}

void Operations::make_room() {
  const std::size_t all =
      in_packing_ + inner_.size() + arrived_.size() + sending_.size() + moving_.size() + incoming_.size();
  inner_.reserve(all);
  sending_.reserve(all);
  moving_.reserve(all);
  if (arrived_.capacity() < all) arrived_.reserve(std::max(all, 2 * arrived_.capacity()));
}

/// Hands packed sends to MPI, in program order for each peer.
int Operations::issue_packed() {
  int completions = 0;
  int blocked = 0;
  for (auto entry = packing_.begin(); entry != packing_.end() && blocked < blocked_peers_max;) {
    completions += issue_packed(entry->second);
    if (entry->second.empty()) {
      entry = packing_.erase(entry);
    } else {
      ++blocked;
      ++entry;
    }
  }
  return completions;
}

/// Hands over the sends of one peer, up to the first that is not packed yet.
int Operations::issue_packed(std::deque<Operation*>& queue) {
  int completions = 0;
  for (; !queue.empty(); queue.pop_front(), --in_packing_) {
    Operation* const operation = queue.front();
    try {
      if (!operation->moved->done()) break;
    } catch (const std::exception& error) {
      fail_operation(*operation, "packing a message", error);
    }
    issue(operation);
    if (operation->inner == MPI_REQUEST_NULL) {
      complete(operation);
      ++completions;
    }
  }
  return completions;
}

void Operations::issue(Operation* operation) {
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
    watch(operation);  // null if MPICH 5 has called a handler and returned MPI_SUCCESS
}

void Operations::issued(const Operation& operation) {
  const LockGuard lock(mutex_);
  const auto entry = deferred_by_channel_.find(operation.channel);
  entry->second.issued = operation.number;
  if (operation.number == entry->second.submitted) deferred_by_channel_.erase(entry);
  take_from(deferred_, 1);
}

void Operations::watch(Operation* operation) {
  inner_.add(operation->inner, operation);
}

int Operations::test_inner(Tests tests) {
  int completions = 0;
  inner_.test(tests, [&](const RequestSet<Operation*>::Ended& ended) { completions += inner_ended(ended); });
  return completions;
}

int Operations::inner_ended(const RequestSet<Operation*>::Ended& ended) noexcept {
  Operation* const operation = ended.owner;
  operation->inner = operation->lasting ? MPI_REQUEST_NULL : ended.request;
  operation->error = ended.error;
  try {
    read_outcome(operation, ended.status);
  } catch (const std::exception& failure) {
    if (operation->error == MPI_SUCCESS) fail_operation(*operation, "receiving a message", failure);
  }
  if (operation->step != Step::none) {
    enter(operation);
    return 0;
  }
  complete(operation);
  return 1;
}

void Operations::read_outcome(Operation* operation, const MPI_Status& status) {
  const bool failed = operation->error != MPI_SUCCESS;
  const Moved& moved = operation->moved;
  if (moved.is(Kind::fill)) {
    if (!failed) operation->step = Step::starting;
    return;
  }
  if (operation->owner.file == MPI_FILE_NULL) {  // Open MPI leaves this undefined in the status of a file access
    int cancelled = 0;
    PMPI_Test_cancelled(&status, &cancelled);
    operation->cancelled = cancelled != 0;
  }
  if (moved.is(Kind::send)) {
    mark(point::sent);
    if (!failed && operation->cancelled)
      moved.out().recalled();
    else if (!failed && moved.out().sent())
      operation->step = Step::moving;
    return;
  }
  operation->arrived.note(status);
  if (operation->cancelled)
    operation->arrived.bytes = 0;
  else if (moved.is(Kind::receive))
    failed ? note_lost(operation) : recognise(operation);
  else if (moved.is(Kind::read) && !failed)
    operation->step = Step::starting;
}

/// RTS messages that arrived before a lost one must be recognised before its sender is released, or the lost one would
/// be taken for one of them.
void Operations::note_lost(Operation* operation) {
  if (!operation->arrived.may_be_lost_rts(operation->error)) return;
  operation->step = Step::lost;
  ++lost_;
}

void Operations::release_sender(const Operation& operation) noexcept try {
  const MPI_Comm comm = owner(operation).comm;
  const bool asks_request = comm == MPI_COMM_NULL && operation.inner != MPI_REQUEST_NULL;
  operation.arrived.release(operation.moved.in(), comm,
                            asks_request ? request_context(operation.inner) : operation.context);
} catch (const std::exception& failure) {
  log_failure("receiving a message", failure.what());
}

/// Finds out whether the message is an RTS, as soon as its first bytes can be read.
void Operations::recognise(Operation* operation) {
  ReceivePayload& payload = operation->moved.in();
  operation->step = Step::none;
  try {
    if (!payload.is_readable(operation->arrived.bytes)) operation->step = Step::reading;
  } catch (const std::exception& failure) {
    fail_operation(*operation, "receiving a message", failure);
    operation->step = Step::lost;  // if it is an RTS, its sender goes on
  }
  if (operation->step == Step::reading) ++reading_;
  if (operation->step != Step::none) return;
  operation->arrived.recognise(payload, [&] { return owner(*operation).comm; });
  operation->step = Step::starting;
}

void Operations::start(Operation* operation) {
  operation->step = Step::none;
  const std::int64_t bytes = operation->arrived.bytes;
  operation->moved.is(Kind::receive) ? operation->moved.in().start_unpack(bytes)
                                     : operation->moved.call().start_unpack(bytes);
  operation->step = Step::moving;
  operation->error = operation->arrived.error;
}

/// Starts to move all messages that have arrived. All have been recognised before, so that the transfers go to the GPU
/// together (engine.cpp).
void Operations::start_arrived() {
  for (Sieve sieve(arrived_); Operation* const operation = sieve.entry();) {
    start_or_read_on(operation);
    if (operation->step == Step::reading) {
      sieve.keep();
      continue;
    }
    sieve.drop();
    enter(operation);
  }
}

void Operations::start_or_read_on(Operation* operation) {
  try {
    if (operation->step == Step::reading) {
      --reading_;
      recognise(operation);
    }
    if (operation->step == Step::starting) start(operation);
  } catch (const std::exception& failure) {
    fail_operation(*operation, "unpacking a message", failure);
  }
}

/// Does nothing until a process has offered this one a message: no RTS can have arrived before.
int Operations::look_at_watched(Tests tests) {
  return watched_wanted() ? watched_look(tests) : 0;
}

/// Tests again while receives are found that may have lost an RTS: messages before these must be recognised first.
int Operations::look_for_lost() {
  int completions = 0;
  while (std::exchange(lost_, 0) != 0) {
    completions += look_at_watched(Tests::all);
    take_incoming();
    completions += test_inner(Tests::all);
  }
  return completions;
}

/// Whether nothing is left to do for the operation. Releases the sender of a lost RTS.
bool Operations::is_over(Operation* operation) {
  switch (operation->step) {
    case Step::moving:
      return operation->moved->done();
    case Step::lost:
      if (reading_ == 0) release_sender(*operation);
      return reading_ == 0;
    case Step::none:  // it has failed
      return true;
    default:
      return false;
  }
}

/// Completes operations whose data have moved. Checks all or, for Tests::some, the oldest, as long as it finds some,
/// and some of the others if it finds none.
int Operations::finish(PolledList<Operation*>& list, Tests tests) {
  if (tests == Tests::all) return finish(list, list.all());
  int completions = 0;
  while (const int found = finish(list, list.oldest())) completions += found;
  if (completions != 0) return completions;
  const PolledList<Operation*>::Window beyond = list.beyond(others_checked);
  list.pass(beyond);
  return finish(list, beyond);
}

int Operations::finish(PolledList<Operation*>& list, const PolledList<Operation*>::Window& window) {
  int completions = 0;
  for (std::size_t at = window.begin; at < std::min(window.end, list.all().end);) {
    Operation* const operation = list.keys()[at];
    if (!is_over_or_failed(operation)) {
      ++at;
      continue;
    }
    at = list.remove(at);
    complete(operation);
    ++completions;
  }
  return completions;
}

bool Operations::is_over_or_failed(Operation* operation) {
  try {
    return is_over(operation);
  } catch (const std::exception& error) {
    fail_operation(*operation, "moving the data of a message", error);
    return true;
  }
}

namespace {

/// That of a buffer that goes through the host, if one does. Empty if none is followed.
Went way_so_far(const Operation& operation) {
  Went way{};
  operation.moved->each_reported([&](const Reported& buffer) {
    if (way.way == nullptr || buffer.went().why_through_host != nullptr) way = buffer.went();
  });
  return way;
}

/// Ends the operation's buffers, for the report and for GPUDT_REQUIRE.
void end_buffers(Operation& operation) {
  const Shortfalls found;
  const bool receives = operation.moved.is(Kind::receive), sends = operation.moved.is(Kind::send);
  if (receives || sends) require_names(receives ? operation.arrived.source : operation.channel.peer);
  operation.went = way_so_far(operation);
  operation.moved->ended();
  if (operation.error != MPI_SUCCESS || operation.cancelled) return;
  operation.error = found.judge();
  operation.forbidden = operation.error != MPI_SUCCESS;
}

}  // namespace

void Operations::complete(Operation* operation) {
  if (operation->error != MPI_SUCCESS && operation->moved) operation->moved->abandon();
  operation->checked.reset();
  if (buffers_followed && operation->moved) end_buffers(*operation);
  operation->moved.reset();  // the user may reuse or free everything from here on
  mark(point::completed);
  operation->decided.store(true, std::memory_order_release);
  PMPI_Grequest_complete(operation->request);
  take_from(live_, 1);
  operation->release();
}

RequestWay Operations::way_of(MPI_Request request) {
  const auto way = [](const Operation& operation) -> RequestWay {
    if (!buffers_followed) return {RequestWay::State::not_followed};
    if (operation.decided.load(std::memory_order_acquire)) return {RequestWay::State::known, operation.went};
    const bool is_open = operation.moved.is(Kind::receive) && operation.step < Step::moving;
    return {is_open ? RequestWay::State::open : RequestWay::State::known, way_so_far(operation)};
  };
  RequestWay found;
  engine_without_polls([&] {  // a poll might complete it meanwhile
    const LockGuard lock(mutex_);
    for (const Operation* each = listed_; each != nullptr; each = each->next)
      if (each->request == request) found = way(*each);
    return int(MPI_SUCCESS);
  });
  if (found.state == RequestWay::State::known && found.went.way == nullptr) found.state = RequestWay::State::open;
  return found;
}

RequestWay engine_way_of(MPI_Request request) {
  return operations.way_of(request);
}

void Operations::cancel_wanted() {
  inner_.each_owner([](Operation* operation) {
    if (operation->cancel_wanted.exchange(false)) PMPI_Cancel(&operation->inner);
  });
}

}  // namespace gpudt::interpose
