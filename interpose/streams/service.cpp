#include "interpose/streams/service.hpp"

#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/never_destroyed.hpp"
#include "base/one_thread.hpp"
#include "base/signals.hpp"
#include "device/device.hpp"
#include "interpose/engine/engine.hpp"
#include "interpose/mpi/progress.hpp"
#include "interpose/streams/program_stream.hpp"
#include "interpose/streams/single_cpu.hpp"
#include "interpose/support/early_start.hpp"
#include "interpose/support/errors.hpp"

namespace gpudt::interpose {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr std::chrono::microseconds awake{50};       ///< when nothing is enqueued any more, until it sleeps
constexpr std::chrono::microseconds spins{500};      ///< after something has happened, without giving up the core
constexpr std::chrono::milliseconds yields{20};      ///< then it yields the core in each turn, and then it naps
constexpr std::chrono::microseconds nap{20};         ///< a launch of a graph may wait that long
constexpr int polls_between_tests = 4;               ///< of the requests of what has begun
constexpr unsigned long timer_slack = 1000;          ///< nanoseconds by which the kernel may prolong a nap
constexpr std::chrono::seconds without_messages{2};  ///< at MPI_Finalize: for operations that have begun
constexpr std::chrono::seconds without_streams{30};  ///< for streams that are busy with other work
constexpr std::chrono::milliseconds without_launches{100};  ///< for graphs, of which nobody knows what is launched yet

/// A call that has begun, and its request.
struct Begun {
  EnqueuedCall* call;
  MPI_Request request = MPI_REQUEST_NULL;
  bool is_second = false;  ///< of its second step
  bool is_told = false;    ///< MPI has called the program's error handler for its failure
  bool is_over = false;    ///< it has no request any more; one that began early waits for its stream
  int code = MPI_SUCCESS;
  MPI_Status status{};

  void end(int its_code) {
    is_over = true;
    code = its_code;
    request = MPI_REQUEST_NULL;
  }
};

struct FreedHandle {
  std::uint64_t number;  ///< the latest call that may use it
  std::function<void()> free;
};

class Service {
 public:
  void add(std::shared_ptr<ProgramStream> stream, const RequestCalls& calls);
  void count(EnqueuedCall& call) {
    live_.fetch_add(1, std::memory_order_acq_rel);
    if (!call.in_graph) call.comm->calls.fetch_add(1, std::memory_order_acq_rel);
    call.number = last_number_.fetch_add(1, std::memory_order_relaxed) + 1;
  }
  void wake() {
    wakes_.fetch_add(1);
    wakes_.notify_one();
  }
  std::string stop();
  bool lives() const { return live_.load(std::memory_order_acquire) != 0; }
  void free_later(std::function<void()> free);

 private:
  void start(const RequestCalls& calls);
  void run();
  void take_streams() REQUIRES(mutex_);
  bool turn_safely();
  bool turn();
  bool begin_told();
  void make_room();
  void begin(EnqueuedCall* call);
  bool begin_early();
  static int step(Begun& begun, const StartEnqueued& start);
  static int second_step(Begun& begun);
  bool test_begun();
  bool finish_over();
  void finish(const Begun& begun);
  bool free_unused();
  void rest(SteadyClock::time_point active) const;
  bool awaits_messages() const;
  bool may_stop(SteadyClock::time_point active) const;
  void abandon();

  std::thread thread_;
  std::atomic<unsigned> wakes_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<int> live_{0};
  std::atomic<std::uint64_t> last_number_{0};
  std::atomic<bool> any_freed_{false};
  Mutex mutex_;
  std::vector<std::shared_ptr<ProgramStream>> added_ GUARDED_BY(mutex_);
  std::vector<FreedHandle> freed_ GUARDED_BY(mutex_);
  // Only for the thread.
  RequestCalls calls_{};
  bool on_host_ = false;  ///< streams are threads of this machine
  std::vector<std::shared_ptr<ProgramStream>> streams_;
  std::vector<Begun> begun_;
  int untested_ = 0;  ///< polls of the engine since the requests were tested
  // The arguments of MPI_Testsome.
  std::vector<MPI_Request> requests_;
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
  std::string left_;  ///< what had not completed at the end
};

auto& service = never_destroyed<Service>();

void Service::add(std::shared_ptr<ProgramStream> stream, const RequestCalls& calls) {
  const LockGuard lock(mutex_);
  added_.push_back(std::move(stream));
  if (!thread_.joinable()) start(calls);
}

void Service::start(const RequestCalls& calls) {
  calls_ = calls;
  stopping_.store(false);
  on_host_ = std::strcmp(device::runtime_name(), "sim") == 0;
  const SignalsBlocked blocked;
  expect_threads();
  thread_ = std::thread([this] { run(); });
}

void Service::run() {
  pthread_setname_np(pthread_self(), "gpudt-streams");
  prctl(PR_SET_TIMERSLACK, timer_slack, 0, 0, 0);
  leave_single_cpu();
  const device::OrderedByStream ordered;
  const HandlersSilent silent;
  SteadyClock::time_point active = SteadyClock::now();
  bool stops = false;
  for (;;) {
    const unsigned seen = wakes_.load();
    // Before the turn, which takes what was enqueued before MPI_Finalize. The times in which that ends begin here.
    if (!stops && stopping_.load()) {
      stops = true;
      active = SteadyClock::now();
    }
    if (turn_safely()) {
      active = SteadyClock::now();
    } else if (stops && may_stop(active)) {
      break;
    } else if (!lives() && !stops && SteadyClock::now() - active >= awake) {
      device::no_more_enqueued();
      wakes_.wait(seen);
      active = SteadyClock::now();
    } else {
      rest(active);
    }
  }
  abandon();
}

void Service::take_streams() {
  for (std::shared_ptr<ProgramStream>& stream : added_) streams_.push_back(std::move(stream));
  added_.clear();
}

/// turn() that logs failures for lack of memory; the next one goes on.
bool Service::turn_safely() {
  try {
    return turn();
  } catch (const std::exception& failure) {
    log_own("operations in streams", failure);
    return false;
  }
}

/// Whether anything has happened.
bool Service::turn() {
  {
    const LockGuard lock(mutex_);
    take_streams();
  }
  for (const auto& stream : streams_) stream->take_incoming();
  // The program has freed the stream and its communicators, and all is done.
  std::erase_if(streams_, [](const auto& each) { return each.use_count() == 1 && each->empty(); });
  bool any = begin_told();
  any = test_begun() || any;
  any = finish_over() || any;
  if (any && lives()) device::about_to_wait(device::WaitKind::enqueued);
  for (const auto& stream : streams_) {
    const int gone = stream->forget_graphs();
    live_.fetch_sub(gone, std::memory_order_acq_rel);
    any = any || gone != 0;
  }
  any = free_unused() || any;
  return any || begin_early();
}

bool Service::begin_told() {
  bool any = false;
  const device::Gathering gathering(device::Gathering::short_bytes);  // operations of several streams move together
  for (const auto& stream : streams_) {
    any = stream->pass_early() || any;
    for (make_room(); EnqueuedCall* const call = stream->next_begun(); make_room()) {
      const WithoutProgressThread alone;
      begin(call);
      any = true;
    }
  }
  return any;
}

/// Starts one message to whose gate its stream has not come, so that it is matched by then. Only where nothing else was
/// to be done: what streams have come to goes first.
bool Service::begin_early() {
  for (const auto& stream : streams_) {
    EnqueuedCall* const call = stream->next_early();
    if (call == nullptr) continue;
    make_room();
    const WithoutProgressThread alone;
    const EarlyStart early({*call->gate, call->passage});
    call->is_early = true;
    begin(call);
    if (!early.refused()) return true;
    begun_.pop_back();
    call->under_way = call->is_early = false;
    call->waits_for_stream = true;
  }
  return false;
}

/// Makes room for one more call, before it is taken from its stream: nothing may fail afterwards.
void Service::make_room() {
  if (begun_.size() == begun_.capacity()) begun_.reserve(std::max<std::size_t>(16, 2 * begun_.size()));
}

void Service::begin(EnqueuedCall* call) {
  call->under_way = true;
  begun_.push_back({call});
  Begun& begun = begun_.back();
  begun.status = empty_status();
  int code = step(begun, call->steps.start);
  if (code == MPI_SUCCESS && begun.request == MPI_REQUEST_NULL) code = second_step(begun);
  if (code != MPI_SUCCESS || begun.request == MPI_REQUEST_NULL) begun.end(code);
}

/// Returns an MPI error code. What raise() has not silenced, MPI has reported.
int Service::step(Begun& begun, const StartEnqueued& start) {
  const unsigned before = errors_silenced();
  const int code = raising(MPI_COMM_NULL, begun.call->name, [&] { return start(&begun.request); });
  begun.is_told = code != MPI_SUCCESS && errors_silenced() == before;
  return code;
}

/// Starts the second step of a call, unless it has none or this was it: then there is no request afterwards.
int Service::second_step(Begun& begun) {
  begun.request = MPI_REQUEST_NULL;
  if (!begun.call->steps.then || std::exchange(begun.is_second, true)) return MPI_SUCCESS;
  return step(begun, begun.call->steps.then);
}

bool Service::test_begun() {
  if (begun_.empty()) return false;
  const WithoutProgressThread alone;
  // Mostly the engine completes requests. A test takes several times as long as its poll.
  if (engine_progress() == 0 && ++untested_ < polls_between_tests) return false;
  untested_ = 0;
  const std::size_t count = begun_.size();
  requests_.resize(count);
  indices_.resize(count);
  statuses_.resize(count);
  for (std::size_t i = 0; i < count; ++i) requests_[i] = begun_[i].request;
  int done = 0;
  const int code = calls_.testsome(static_cast<int>(count), requests_.data(), &done, indices_.data(), statuses_.data());
  if (done == MPI_UNDEFINED || done <= 0) return false;
  for (int i = 0; i < done; ++i) {
    const auto at = static_cast<std::size_t>(indices_[static_cast<std::size_t>(i)]);
    Begun& begun = begun_[at];
    begun.status = statuses_[static_cast<std::size_t>(i)];
    int failure = code == MPI_ERR_IN_STATUS ? begun.status.MPI_ERROR : MPI_SUCCESS;
    if (failure == MPI_SUCCESS) failure = second_step(begun);
    if (failure == MPI_SUCCESS && begun.request != MPI_REQUEST_NULL) continue;
    if (failure != MPI_SUCCESS && requests_[at] != MPI_REQUEST_NULL && !begun.call->steps.persistent)
      PMPI_Request_free(&requests_[at]);
    begun.end(failure < 0 ? MPI_ERR_OTHER : failure);  // Open MPI's own numbers are negative
  }
  return true;
}

/// Finishes calls that are over, and to which their streams have come. Whether there were any.
bool Service::finish_over() {
  const auto waits = [](const Begun& each) { return !each.is_over || each.call->is_early; };
  const auto over = std::stable_partition(begun_.begin(), begun_.end(), waits);
  if (over == begun_.end()) return false;
  const WithoutProgressThread alone;
  std::uint64_t gpus = 0;  // a bit for each on which a gate is opened
  std::for_each(over, begun_.end(), [&](const Begun& each) {
    gpus |= std::uint64_t{1} << each.call->gate->ordinal();
    finish(each);
  });
  begun_.erase(over, begun_.end());
  for (; gpus != 0; gpus &= gpus - 1) device::gates_opened(std::countr_zero(gpus));
  return true;
}

/// The call is complete: its outcome first, and then the gate.
void Service::finish(const Begun& begun) {
  EnqueuedCall* const call = begun.call;
  MPI_Request completed = MPI_REQUEST_NULL;
  {
    const LockGuard lock(outcome_mutex());
    call->outcome = begun.status;
    call->complete = true;
    if (call->status != MPI_STATUS_IGNORE) *call->status = begun.status;
    if (call->request != MPI_REQUEST_NULL && !std::exchange(call->request_completed, true)) completed = call->request;
  }
  if (begun.code != MPI_SUCCESS && !begun.is_told) {
    int none = MPI_SUCCESS;
    call->comm->failure.compare_exchange_strong(none, begun.code);
  }
  call->gate->open(call->passage);
  call->under_way = false;
  if (completed != MPI_REQUEST_NULL) PMPI_Grequest_complete(completed);
  if (call->in_graph) return;
  call->comm->calls.fetch_sub(1, std::memory_order_acq_rel);
  live_.fetch_sub(1, std::memory_order_acq_rel);
  call->release();
}

/// Frees the program's handles that no call uses any more. Whether it has freed any.
bool Service::free_unused() {
  if (!any_freed_.load(std::memory_order_acquire)) return false;
  std::vector<FreedHandle> unused;
  {
    const LockGuard lock(mutex_);
    std::uint64_t first = last_number_.load() + 1;
    take_streams();  // what had been enqueued when the program freed the handle
    for (const auto& stream : streams_) {
      stream->take_incoming();
      first = stream->first_number(first);
    }
    for (const Begun& each : begun_) first = std::min(first, each.call->number);
    const auto end =
        std::find_if(freed_.begin(), freed_.end(), [=](const FreedHandle& each) { return each.number >= first; });
    unused.assign(std::make_move_iterator(freed_.begin()), std::make_move_iterator(end));
    freed_.erase(freed_.begin(), end);
    any_freed_.store(!freed_.empty(), std::memory_order_release);
  }
  const WithoutProgressThread alone;
  for (const FreedHandle& each : unused) each.free();
  if (!unused.empty()) live_.fetch_sub(static_cast<int>(unused.size()), std::memory_order_acq_rel);
  return !unused.empty();
}

/// A handle counts as a call, so that the thread does not sleep before it is freed. It may sleep already.
void Service::free_later(std::function<void()> free) {
  {
    const LockGuard lock(mutex_);
    freed_.push_back({last_number_.load(), std::move(free)});
    live_.fetch_add(1, std::memory_order_acq_rel);
    any_freed_.store(true, std::memory_order_release);
  }
  wake();
}

void Service::rest(SteadyClock::time_point active) const {
  const auto idle = SteadyClock::now() - active;
  if (idle < spins && !on_host_) return;
  if (awaits_messages() || idle < yields)
    sched_yield();
  else
    std::this_thread::sleep_for(nap);
}

/// Whether calls have begun to which their streams have come.
bool Service::awaits_messages() const {
  return std::any_of(begun_.begin(), begun_.end(), [](const Begun& each) { return !each.call->is_early; });
}

/// Whether nothing more can be expected: nothing is enqueued, or what has begun waits in vain.
bool Service::may_stop(SteadyClock::time_point active) const {
  const bool told = std::any_of(streams_.begin(), streams_.end(), [](const auto& each) { return each->has_plain(); });
  const auto idle = SteadyClock::now() - active;
  const bool graphs =
      std::any_of(streams_.begin(), streams_.end(), [](const auto& each) { return each->has_graphs(); });
  const bool messages = awaits_messages();
  if (!messages && !told) return !graphs || idle > without_launches;
  return idle > (messages ? without_messages : without_streams);
}

/// Lets all streams pass. Receives are cancelled: the program's buffers may be freed.
void Service::abandon() {
  const WithoutProgressThread alone;
  int waiting = 0, begun = 0;
  left_.clear();
  for (const auto& stream : streams_) waiting += stream->abandon();
  for (Begun& each : begun_) {
    EnqueuedCall* const call = each.call;
    if (!call->is_early && begun++ == 0) left_ = call->name;
    if (each.request != MPI_REQUEST_NULL) calls_.cancel(&each.request);
    if (each.request != MPI_REQUEST_NULL && !call->steps.persistent) calls_.free(&each.request);
    call->gate->open(call->passage);
    if (!call->in_graph) call->release();
  }
  begun_.clear();
  streams_.clear();
  if (begun != 0)
    left_ = std::to_string(begun) + " enqueued operations have not completed (the first is " + left_ + "), and " +
            std::to_string(waiting) + " are behind them";
  else if (waiting != 0)
    left_ = std::to_string(waiting) + " enqueued operations have not begun, because their streams are busy";
  std::vector<FreedHandle> unused;
  {
    const LockGuard lock(mutex_);
    unused.swap(freed_);
    any_freed_.store(false);
    live_.store(0);
  }
  for (const FreedHandle& each : unused) each.free();
}

std::string Service::stop() {
  if (!thread_.joinable()) return {};
  stopping_.store(true);
  wake();
  thread_.join();
  thread_ = {};
  return std::exchange(left_, {});
}

}  // namespace

MPI_Status empty_status() {
  MPI_Status status;
  std::memset(&status, 0, sizeof status);
  status.MPI_SOURCE = MPI_ANY_SOURCE;
  status.MPI_TAG = MPI_ANY_TAG;
  status.MPI_ERROR = MPI_SUCCESS;
  PMPI_Status_set_elements_x(&status, MPI_BYTE, 0);
  PMPI_Status_set_cancelled(&status, 0);
  return status;
}

void service_add(std::shared_ptr<ProgramStream> stream, const RequestCalls& calls) {
  service.add(std::move(stream), calls);
}
void service_counts(EnqueuedCall& call) {
  service.count(call);
}
void service_wake() {
  service.wake();
}
std::string service_stop() {
  return service.stop();
}
bool enqueued_calls_live() {
  return service.lives();
}
void free_after_enqueued(std::function<void()> free) {
  service.free_later(std::move(free));
}

}  // namespace gpudt::interpose
