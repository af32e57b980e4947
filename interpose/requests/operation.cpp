// The engine: one owner at a time moves operations from packing to issued to unpacking to done.
#include "interpose/requests/operation.hpp"

#include <sched.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <mutex>
#include <new>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "device/timeline.hpp"
#include "interpose/mpi/progress.hpp"
#include "interpose/mpi/workarounds.hpp"
#include "interpose/support/errors.hpp"
#include "interpose/support/log.hpp"
#include "interpose/support/report.hpp"
#include "interpose/transport/peer/peer.hpp"

namespace gpudt::interpose {

Staged::Staged(const DeviceBuffer& operand)
    : operand_(operand),
      staging_(device::acquire(
          operand.protocol == Protocol::device_staging ? device::StagingKind::device : device::StagingKind::mapped,
          operand.ordinal, static_cast<std::size_t>(operand.bytes()))) {
  device::mark(device::Point::staged);
}

Staged::~Staged() = default;

Outgoing Staged::message() const {
  return {staging_.data(), static_cast<int>(operand_.count), operand_.packed_type()};
}

Announced Staged::announced(std::int64_t bytes) {
  device::mark(device::Point::arrived);
  pull_.reset();
  pulls_ = false;
  if (peer_checks() && peer::rts_index(bytes) >= 0 && operand_.protocol == Protocol::mapped_staging)
    pull_ = RendezvousReceiver::recognise(*static_cast<const peer::RendezvousRequest*>(staging_.data()), bytes);
  if (!pull_) return {bytes};
  device::mark(device::Point::recognised);
  return pull_->announced(operand_.bytes());
}

bool Staged::done() {
  return is_fetched() && transfer_.done();
}

/// What an RTS stands for has come. Into a divided operand it comes by way of the staging memory.
bool Staged::is_fetched() {
  if (!pull_) return true;
  if (!start_pull() || !pull_->done()) return false;
  if (fetching_ != 0) start(device::Direction::unpack, std::exchange(fetching_, 0));
  return true;
}

void Staged::abandon() {
  pull_.reset();
  fetching_ = 0;
  transfer_ = {};
}

void Staged::start_pack() {
  start(device::Direction::pack, operand_.bytes());
}

void Staged::start_unpack(std::int64_t bytes) {
  if (!pull_) return start(device::Direction::unpack, bytes);
  if (operand_.division) fetching_ = bytes;
  start_pull();
}

/// Not before the program's own work is over: another process may be asked to write to the buffer.
bool Staged::start_pull() {
  if (pulls_ || !operand_.after.reached()) return pulls_;
  pulls_ = true;  // also if it fails: then it is not tried again
  if (operand_.division)
    pull_->start(datatype::decode(operand_.packed_type()), operand_.count, staging_.data());
  else
    pull_->start(operand_, staging_.data());
  return true;
}

void Staged::start(device::Direction direction, std::int64_t bytes) {
  device::mark(direction == device::Direction::pack ? device::Point::pack_started : device::Point::unpack_started);
  const bool on_device = operand_.protocol == Protocol::device_staging;
  transfer_ = OperandTransfer(direction, operand_, 0, bytes, staging_.data(),
                              on_device ? device::MemoryKind::device : device::MemoryKind::pinned);
}

void Staged::wait() {
  const Timed timed(Clock::transfer);
  if (pull_)
    wait_with_progress(*this);
  else
    transfer_.wait();
}

namespace {

// Requests looked at in one pass: bounds the cost of a pass when very many are pending; the next pass goes on
// where this one stopped.
constexpr int test_window = 64;
// Peers whose first deferred send is still packing, after which a pass stops looking for sends to issue.
constexpr std::size_t blocked_peers_max = 16;
constexpr std::chrono::seconds stop_timeout{2};  ///< for receives into device memory at MPI_Finalize

struct ChannelHash {
  std::size_t operator()(const Channel& channel) const {
    return std::hash<MPI_Comm>()(channel.comm) * 31 + std::hash<int>()(channel.peer);
  }
};

/// The deferred sends of a channel, by their numbers: up to `submitted` they have been made, up to `issued` MPI has
/// them.
struct Deferred {
  std::uint64_t submitted;
  std::uint64_t issued;
};

class Engine {
 public:
  int reserve(Operation* operation);
  void submit(Operation* operation, bool issued);
  void remove(Operation* operation);
  void retire(Operation* operation);
  int progress(Tests tests = Tests::some);
  void settle();
  void order(const Channel& channel);
  template <class Wanted>
  void order_each(Wanted wanted);
  void forget_comm(MPI_Comm comm);
  void forget_win(MPI_Win win);
  ErrorOwner owner(const Operation& operation);
  void serve(EngineService service);
  void serve(const EngineBackground* background);
  const char* hook();
  bool stop();
  bool pending() const {
    return live_.load(std::memory_order_acquire) != 0 || service_.load(std::memory_order_relaxed) != nullptr ||
           retired_.load(std::memory_order_relaxed) != nullptr;
  }
  bool defers() const { return deferred_.load(std::memory_order_acquire) != 0; }
  bool has_background() const { return background_.load(std::memory_order_relaxed) != nullptr; }
  int live() const { return live_.load(std::memory_order_relaxed); }

 private:
  int pass(Tests tests);
  void let_pass_end();
  void take_incoming();
  void make_room();
  int issue_packed();
  void issue(Operation* operation);
  void watch(Operation* operation);
  int test_inner(Tests tests);
  int test_next_window();
  void inner_completed(Operation* operation, const MPI_Status& status, int error) noexcept;
  void read_outcome(Operation* operation, const MPI_Status& status);
  void release_sender(const Operation& operation) noexcept;
  void take_arrived(Operation* operation);
  void start_unpack(Operation* operation, std::int64_t bytes);
  int finish_unpacked();
  void complete(Operation* operation);
  void cancel_wanted();
  bool only_receives() const;
  void cancel_receives(bool on_device);
  void issued(const Operation& operation);
  bool is_issued(const Channel& channel, std::uint64_t number);
  void release_retired();

  std::atomic<int> live_{0};
  std::atomic<int> deferred_{0};  ///< sends that MPI has not been given yet
  std::atomic<bool> busy_{false};
  std::atomic<int> cancels_{0};
  std::atomic<EngineService> service_{nullptr};
  std::atomic<const EngineBackground*> background_{nullptr};
  std::atomic<Operation*> retired_{nullptr};  ///< whose generalized requests are gone; a list

  std::mutex mutex_;                    // guards what follows, and the owners of all operations
  std::vector<Operation*> operations_;  // all that have a generalized request
  std::vector<std::pair<Operation*, bool>> incoming_;
  std::unordered_map<Channel, Deferred, ChannelHash> deferred_by_channel_;
  std::uint64_t last_number_ = 0;  // of deferred sends

  // Touched only by the thread that holds busy_. Of these vectors each has room for all operations that are taken
  // (make_room()), so that none gets lost on its way for want of memory.
  std::deque<Operation*> packing_;
  std::vector<MPI_Request> inner_;
  std::vector<Operation*> inner_operations_;
  std::size_t window_ = 0;
  std::vector<Operation*> unpacking_;
  int truncated_ = 0;  ///< of these, since they were looked at last
};

Engine engine;
std::atomic<int> held{0};  // generalized requests not yet freed
thread_local bool inside_engine = false;

/// The operation fails. Whatever memory is left.
void fail_operation(Operation& operation, const char* doing, const std::exception& failure) noexcept {
  operation.error = error_class(failure);
  log_failure(doing, failure.what());
}

/// Makes room for `size` elements, seldom.
template <class Element>
void reserve_amply(std::vector<Element>& list, std::size_t size) {
  if (list.capacity() < size) list.reserve(std::max(size, 2 * list.capacity()));
}

int query(void* extra, MPI_Status* status) {
  auto* const operation = static_cast<Operation*>(extra);
  static_cast<void>(operation->decided.load(std::memory_order_acquire));  // MPI asks when the request is complete
  status->MPI_SOURCE = operation->from;
  status->MPI_TAG = operation->received_tag;
  status->MPI_ERROR = MPI_SUCCESS;  // MPICH takes it for the result, and leaves it undefined before
  PMPI_Status_set_elements_x(status, MPI_BYTE, operation->bytes);
  PMPI_Status_set_cancelled(status, operation->cancelled ? 1 : 0);
  if (operation->error == MPI_SUCCESS) return MPI_SUCCESS;
  operation->retain();
  std::unique_ptr<Operation, OperationRelease> failed(operation);
  try {
    failed_here().push_back({operation->request, std::move(failed)});
    return MPI_SUCCESS;  // the wrapper of the completion call reports the error to the right handler
  } catch (const std::bad_alloc&) {
    return operation->error;  // MPI does, to whatever handler it takes for the right one
  }
}

int free_operation(void* extra) {
  auto* const operation = static_cast<Operation*>(extra);
  held.fetch_sub(1);
  engine.remove(operation);
  engine.retire(operation);
  return MPI_SUCCESS;
}

int Engine::reserve(Operation* operation) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    operation->place = operations_.size();
    operations_.push_back(operation);
    try {
      incoming_.reserve(operations_.capacity());  // submit() must not fail once the operation has been issued
    } catch (...) {
      operations_.pop_back();
      throw;
    }
  }
  operation->retain();  // the generalized request's reference, dropped in free_operation
  held.fetch_add(1);
  const int error = PMPI_Grequest_start(
      query, free_operation,
      [](void* extra, int complete) {
        if (complete == 0) {
          static_cast<Operation*>(extra)->cancel_wanted.store(true);
          engine.cancels_.fetch_add(1);
        }
        return int(MPI_SUCCESS);
      },
      operation, &operation->request);
  if (error != MPI_SUCCESS) free_operation(operation);
  return error;
}

void Engine::remove(Operation* operation) {
  const std::lock_guard<std::mutex> lock(mutex_);
  operations_.back()->place = operation->place;
  operations_[operation->place] = operations_.back();
  operations_.pop_back();
}

void Engine::submit(Operation* operation, bool issued) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!issued) {
    operation->number = ++last_number_;
    const auto entry = deferred_by_channel_.try_emplace(operation->channel, Deferred{0, operation->number - 1}).first;
    entry->second.submitted = operation->number;
    deferred_.fetch_add(1);
  }
  live_.fetch_add(1);
  incoming_.emplace_back(operation, issued);
  progress_wake();
}

/// The engine belongs to this thread while it lives, however progress() ends: an error handler may throw.
class Hold {
 public:
  explicit Hold(std::atomic<bool>& busy) : busy_(busy) { inside_engine = true; }
  ~Hold() {
    inside_engine = false;
    busy_.store(false, std::memory_order_release);
  }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

 private:
  std::atomic<bool>& busy_;
};

int Engine::progress(Tests tests) {
  if (inside_engine) return 0;
  const EngineBackground* const background = background_.load(std::memory_order_acquire);
  const bool due = background != nullptr && background->due();
  const bool busy = pending();
  if (!due && !busy) return 0;
  if (busy_.exchange(true, std::memory_order_acquire)) return 0;
  const Hold hold(busy_);
  const int completions = due && background_.load() != nullptr ? background->run() : 0;
  return busy ? completions + pass(tests) : completions;
}

void Engine::settle() {
  if (inside_engine || (!pending() && !has_background())) return;
  while (busy_.exchange(true, std::memory_order_acquire)) sched_yield();
  const Hold hold(busy_);
  const EngineBackground* const background = background_.load();
  while (background != nullptr && background->run() != 0) {
  }
  pass(Tests::all);
}

int Engine::pass(Tests tests) {
  int completions = 0;
  // What has arrived together is unpacked together.
  const device::Gathering gathering(device::Gathering::short_bytes);
  // Before the incoming operations are taken, so that what is wanted of one of these is not taken back here.
  const bool cancels = cancels_.load() != 0 && cancels_.exchange(0) != 0;
  release_retired();
  take_incoming();
  if (cancels) cancel_wanted();
  completions += issue_packed();
  completions += test_inner(tests);
  completions += finish_unpacked();
  if (const EngineService service = service_.load()) completions += service();
  return completions;
}

/// Drops the reference of an operation's generalized request, in the function that MPI calls to free it: MPICH holds
/// its lock there if the program has threads, and may not be called.
void Engine::retire(Operation* operation) {
  static_cast<void>(operation->decided.load(std::memory_order_acquire));  // what the engine wrote comes before
  if (!operation->needs_mpi_to_end()) return operation->release();
  operation->next_retired = retired_.load(std::memory_order_relaxed);
  while (!retired_.compare_exchange_weak(operation->next_retired, operation, std::memory_order_release)) {
  }
  progress_wake();
}

void Engine::release_retired() {
  Operation* operation = retired_.exchange(nullptr, std::memory_order_acquire);
  while (operation != nullptr) std::exchange(operation, operation->next_retired)->release();
}

/// Those that there is no memory for stay.
void Engine::take_incoming() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (incoming_.empty()) return;
  make_room();
  std::size_t taken = 0;
  try {
    for (const auto& [operation, issued] : incoming_) {
      if (!issued)
        packing_.push_back(operation);
      else if (operation->inner == MPI_REQUEST_NULL)
        unpacking_.push_back(operation);
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

/// The caller holds the mutex.
void Engine::make_room() {
  const std::size_t all = packing_.size() + inner_.size() + unpacking_.size() + incoming_.size();
  reserve_amply(inner_, all);
  reserve_amply(inner_operations_, all);
  reserve_amply(unpacking_, all);
}

/// Hands packed sends to MPI, in program order for each peer.
int Engine::issue_packed() {
  int completions = 0;
  std::array<Channel, blocked_peers_max> blocked;
  auto blocked_end = blocked.begin();
  for (auto entry = packing_.begin(); entry != packing_.end() && blocked_end != blocked.end();) {
    Operation* operation = *entry;
    const Channel& channel = operation->channel;
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
    entry = packing_.erase(entry);
    issue(operation);
    if (operation->inner == MPI_REQUEST_NULL) {
      complete(operation);
      ++completions;
    }
  }
  return completions;
}

void Engine::issue(Operation* operation) {
  const MPI_Comm comm = owner(*operation).comm;
  if (operation->error == MPI_SUCCESS && operation->cancel_wanted.load()) {
    operation->cancelled = true;  // MPI has not seen the message yet: nothing to undo
  } else if (operation->error == MPI_SUCCESS && comm == MPI_COMM_NULL) {
    operation->error = MPI_ERR_COMM;  // an error handler within the engine has freed it
  } else if (operation->error == MPI_SUCCESS) {
    const Outgoing out = operation->payload->message();
    device::mark(device::Point::given);
    operation->error = operation->send(out.data, out.count, out.type, operation->channel.peer, operation->tag, comm,
                                       &operation->inner);
    operation->payload->given();
    operation->told = operation->error != MPI_SUCCESS && operation->send != hidden_send;
  }
  issued(*operation);
  if (operation->error != MPI_SUCCESS || operation->cancelled)
    operation->inner = MPI_REQUEST_NULL;
  else
    watch(operation);
}

void Engine::issued(const Operation& operation) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = deferred_by_channel_.find(operation.channel);
  entry->second.issued = operation.number;
  if (operation.number == entry->second.submitted) deferred_by_channel_.erase(entry);
  deferred_.fetch_sub(1);
}

void Engine::watch(Operation* operation) {
  inner_.push_back(operation->inner);
  inner_operations_.push_back(operation);
}

int Engine::test_inner(Tests tests) {
  if (tests == Tests::some) return test_next_window();
  int completions = 0;
  window_ = 0;
  do {
    completions += test_next_window();
  } while (window_ < inner_.size());
  return completions;
}

/// Looks at a window of the real requests. Testsome, not one Test each: it enters MPI's progress once.
int Engine::test_next_window() {
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
    if (operation->unpacks || operation->truncated) {
      unpacking_.push_back(operation);
    } else {
      complete(operation);
      ++completions;
    }
  }
  return completions;
}

void Engine::inner_completed(Operation* operation, const MPI_Status& status, int error) noexcept {
  operation->error = error < 0 ? MPI_ERR_OTHER : error;  // Open MPI's inner numbers, which it translates for handlers
  try {
    read_outcome(operation, status);
  } catch (const std::exception& failure) {
    if (operation->error == MPI_SUCCESS) fail_operation(*operation, "receiving a message", failure);
  }
}

void Engine::read_outcome(Operation* operation, const MPI_Status& status) {
  if (operation->kind == Operation::Kind::fill) return start_unpack(operation, 0);
  if (operation->owner.file == MPI_FILE_NULL) {  // Open MPI leaves this undefined in the status of a file access
    int cancelled = 0;
    PMPI_Test_cancelled(&status, &cancelled);
    operation->cancelled = cancelled != 0;
  }
  if (operation->kind == Operation::Kind::send) {
    device::mark(device::Point::sent);
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
    operation->truncated = is_truncation(operation->error) && peer::rts_index(bytes) >= 0;
    if (operation->truncated) ++truncated_;
    return;
  }
  take_arrived(operation);
}

/// Of a truncated message, if it was an RTS. RTS messages before it must have been recognised, or it would be taken for
/// one of these.
void Engine::release_sender(const Operation& operation) noexcept try {
  MPI_Status status{};
  status.MPI_SOURCE = operation.from;
  status.MPI_TAG = operation.received_tag;
  PMPI_Status_set_elements_x(&status, MPI_BYTE, operation.bytes);
  const MPI_Comm comm = owner(operation).comm;
  if (comm != MPI_COMM_NULL)
    peer_truncated(comm, status);
  else if (operation.inner != MPI_REQUEST_NULL)  // the communicator's handle has been freed
    peer_truncated_in(request_context(operation.inner), status);
} catch (const std::exception& failure) {
  log_failure("receiving a message", failure.what());
}

/// What has come may stand for a message that is to be fetched.
void Engine::take_arrived(Operation* operation) {
  const bool any = operation->bytes != 0 || operation->payload->always_unpacks();
  const Announced announced = operation->payload->announced(operation->bytes);
  if (!announced.fetched && peer::rts_index(operation->bytes) >= 0)
    peer_received_plain(operation->bytes, operation->from, owner(*operation).comm);
  operation->bytes = announced.bytes;
  if (any) start_unpack(operation, announced.bytes);
  if (operation->error == MPI_SUCCESS) operation->error = announced.error;
}

void Engine::start_unpack(Operation* operation, std::int64_t bytes) {
  if (operation->error != MPI_SUCCESS) return;
  try {
    operation->payload->start_unpack(bytes);
    operation->unpacks = true;
  } catch (const std::exception& failure) {
    fail_operation(*operation, "unpacking a message", failure);
  }
}

int Engine::finish_unpacked() {
  int completions = std::exchange(truncated_, 0) != 0 ? test_inner(Tests::all) : 0;
  std::size_t kept = 0;
  for (Operation* operation : unpacking_) {
    bool done = true;
    if (operation->truncated) release_sender(*operation);
    try {
      done = operation->truncated || operation->payload->done();
    } catch (const std::exception& error) {
      fail_operation(*operation, "moving the data of a message", error);
    }
    if (!done) {
      unpacking_[kept++] = operation;
      continue;
    }
    complete(operation);
    ++completions;
  }
  unpacking_.resize(kept);
  return completions;
}

void Engine::complete(Operation* operation) {
  if (operation->error != MPI_SUCCESS && operation->payload) operation->payload->abandon();
  operation->checked.reset();
  operation->payload.reset();  // the user may reuse or free everything from here on
  device::mark(device::Point::completed);
  operation->decided.store(true, std::memory_order_release);
  PMPI_Grequest_complete(operation->request);
  live_.fetch_sub(1);
  operation->release();
}

void Engine::cancel_wanted() {
  for (Operation* operation : inner_operations_)
    if (operation->cancel_wanted.exchange(false)) PMPI_Cancel(&operation->inner);
}

bool Engine::is_issued(const Channel& channel, std::uint64_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = deferred_by_channel_.find(channel);
  return entry == deferred_by_channel_.end() || entry->second.issued >= number;
}

// Those that are deferred now and none that other threads add meanwhile, or these could keep this one waiting for ever.
// Within the engine (an error handler that communicates) waiting would be waiting for oneself.
void Engine::order(const Channel& channel) {
  if (!defers() || inside_engine) return;
  std::uint64_t number = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto entry = deferred_by_channel_.find(channel);
    if (entry == deferred_by_channel_.end()) return;
    number = entry->second.submitted;
  }
  while (!is_issued(channel, number)) progress();
}

template <class Wanted>
void Engine::order_each(Wanted wanted) {
  if (!defers() || inside_engine) return;
  std::vector<std::pair<Channel, std::uint64_t>> numbers;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [channel, deferred] : deferred_by_channel_)
      if (wanted(channel)) numbers.emplace_back(channel, deferred.submitted);
  }
  for (const auto& [channel, number] : numbers)
    while (!is_issued(channel, number)) progress();
}

void Engine::forget_comm(MPI_Comm comm) {
  order_each([&](const Channel& channel) { return channel.comm == comm; });
  if (held.load() == 0 && live() == 0) return;
  const auto kept = std::make_shared<const KeptHandler>(comm);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (Operation* operation : operations_)
      if (operation->owner.comm == comm) operation->owner.forget_comm(kept);
  }
  let_pass_end();  // which may have taken the handle before
}

void Engine::forget_win(MPI_Win win) {
  if (held.load() == 0 && live() == 0) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Operation* operation : operations_)
    if (operation->owner.win == win) operation->owner.win = MPI_WIN_NULL;
}

ErrorOwner Engine::owner(const Operation& operation) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return operation.owner;
}

void Engine::serve(EngineService service) {
  service_.store(service);
  progress_wake();
  let_pass_end();
}

void Engine::serve(const EngineBackground* background) {
  background_.store(background);
  let_pass_end();
}

/// What has been set holds when the engine runs from here on.
void Engine::let_pass_end() {
  if (inside_engine) return;  // called by an error handler: waiting would be waiting for oneself
  while (busy_.exchange(true, std::memory_order_acquire)) {
  }
  busy_.store(false, std::memory_order_release);
}

const char* Engine::hook() {
  return progress_start({[] {
                           if (!engine.pending() && !engine.has_background())
                             return 0;                       // here, for MPI asks in every turn of its loops
                           return engine_progress_logged();  // MPI's progress engine is C
                         },
                         [] { return engine.pending(); }});
}

/// A receive that the program has given up may never be matched; everything else comes to its end.
bool may_never_end(const Operation& operation) {
  return operation.kind == Operation::Kind::receive && operation.owner.file == MPI_FILE_NULL;
}

bool Engine::only_receives() const {
  return packing_.empty() && unpacking_.empty() &&
         std::all_of(inner_operations_.begin(), inner_operations_.end(),
                     [](const Operation* operation) { return may_never_end(*operation); });
}

/// On the device, or the others: these are generalized requests only because a message of another way may come to them,
/// and without this library MPI_Finalize would not wait for them.
void Engine::cancel_receives(bool on_device) {
  for (Operation* operation : inner_operations_)
    if (may_never_end(*operation) && operation->on_device == on_device) operation->cancel_wanted = true;
  cancels_.fetch_add(1);
}

bool Engine::stop() {
  order_each([](const Channel&) { return true; });
  progress();  // what has come is received
  cancel_receives(/*on_device=*/false);
  const auto timeout = std::chrono::steady_clock::now() + stop_timeout;
  bool cancelled = false;
  while (live() != 0) {
    progress();
    const auto now = std::chrono::steady_clock::now();
    if (now >= timeout && only_receives() && !std::exchange(cancelled, true)) {
      log_warning("MPI_Finalize: " + std::to_string(live()) +
                  " operations on device buffers are still pending; the receives among them are cancelled");
      cancel_receives(/*on_device=*/true);
    }
    if (now >= timeout + stop_timeout && only_receives()) break;
  }
  progress_stop();
  failed_here().clear();
  release_retired();
  return live() == 0;
}

}  // namespace

std::vector<Failed>& failed_here() {
  thread_local std::vector<Failed> list;
  return list;
}

const char* engine_start() {
  return engine.hook();
}
bool engine_stop() {
  return engine.stop();
}

Reservation::Reservation(std::unique_ptr<Operation> operation)
    : operation_(operation.get()), error_(engine.reserve(operation.get())) {
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

int Reservation::submit(bool issued, MPI_Request* request) {
  const MPI_Request made = operation_->request;
  engine.submit(operation_, issued);
  operation_ = nullptr;
  *request = made;
  return MPI_SUCCESS;
}

int engine_progress(Tests tests) {
  return engine.progress(tests);
}
void engine_settle() {
  engine.settle();
}
int engine_progress_logged(Tests tests) noexcept try {
  return engine.progress(tests);
} catch (const std::exception& error) {
  log_failure("progress", error.what());
  return 0;
}
void engine_order(MPI_Comm comm, int peer) {
  engine.order({comm, peer});
}
bool engine_defers() {
  return engine.defers();
}
void engine_forget_comm(MPI_Comm comm) {
  engine.forget_comm(comm);
}
void engine_order_all() {
  engine.order_each([](const Channel&) { return true; });
}
void engine_forget_win(MPI_Win win) {
  engine.forget_win(win);
}
void engine_service(EngineService service) {
  engine.serve(service);
}
void engine_background(const EngineBackground* background) {
  engine.serve(background);
}
bool engine_within() {
  return inside_engine;
}
int engine_held() {
  return held.load(std::memory_order_relaxed);
}

int tell(Operation& operation) {
  if (std::exchange(operation.told, true)) return operation.error;
  const ErrorOwner owner = engine.owner(operation);
  // Open MPI would find no handler in a communicator that has been freed, and takes that of MPI_COMM_WORLD for
  // collectives.
  const bool collective = operation.kind == Operation::Kind::fill && owner.comm != MPI_COMM_NULL;
  if (collective && operation.inner != MPI_REQUEST_NULL) PMPI_Request_free(&operation.inner);
  if (operation.inner == MPI_REQUEST_NULL || owner.kept) return raise(owner, operation.error);
  const int code = PMPI_Wait(&operation.inner, MPI_STATUS_IGNORE);  // it has ended: MPI calls the handler
  if (code != MPI_SUCCESS) operation.error = code;
  return operation.error;
}

}  // namespace gpudt::interpose
