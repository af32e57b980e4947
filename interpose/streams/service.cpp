#include "interpose/streams/service.hpp"

#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
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
#include "interpose/support/errors.hpp"

namespace gpudt::interpose {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr std::chrono::microseconds spins{500};      ///< after something has happened, without giving up the core
constexpr std::chrono::milliseconds yields{20};      ///< then it yields the core in each turn, and then it naps
constexpr std::chrono::microseconds nap{20};         ///< a launch of a graph may wait that long
constexpr unsigned long timer_slack = 1000;          ///< nanoseconds by which the kernel may prolong a nap
constexpr std::chrono::seconds without_messages{2};  ///< at MPI_Finalize: for operations that have begun
constexpr std::chrono::seconds without_streams{30};  ///< for streams that are busy with other work
constexpr std::chrono::milliseconds without_launches{100};  ///< for graphs, of which nobody knows what is launched yet

/// A call that has begun, and its request.
struct Begun {
  EnqueuedCall* call;
  MPI_Request request;
  bool is_second = false;  ///< of its second step
  bool is_told = false;    ///< MPI has called the program's error handler for its failure
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
  void begin(EnqueuedCall* call);
  static int step(Begun& begun, const StartEnqueued& start);
  static int second_step(Begun& begun);
  bool test_begun();
  void finish(const Begun& begun, int code, const MPI_Status& status);
  void ended(const Begun& begun, MPI_Request& request, int code, const MPI_Status& status);
  bool free_unused();
  void rest(SteadyClock::time_point active) const;
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
    } else if (!lives() && !stops) {
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
  for (const auto& stream : streams_) {
    const int gone = stream->forget_graphs();
    live_.fetch_sub(gone, std::memory_order_acq_rel);
    any = any || gone != 0;
  }
  return free_unused() || any;
}

bool Service::begin_told() {
  bool any = false;
  {
    const device::Gathering gathering(device::Gathering::short_bytes);  // operations of several streams move together
    for (const auto& stream : streams_)
      while (EnqueuedCall* const call = stream->next_begun()) {
        const WithoutProgressThread alone;
        begin(call);
        any = true;
      }
  }
  if (any && !begun_.empty()) device::about_to_wait(device::WaitKind::several);
  return any;
}

void Service::begin(EnqueuedCall* call) {
  call->under_way = true;
  Begun begun{call, MPI_REQUEST_NULL};
  int code = step(begun, [&](MPI_Request* request) {
    begun_.reserve(begun_.size() + 1);
    return call->steps.start(request);
  });
  if (code == MPI_SUCCESS && begun.request == MPI_REQUEST_NULL) code = second_step(begun);
  if (code != MPI_SUCCESS || begun.request == MPI_REQUEST_NULL)
    finish(begun, code, empty_status());
  else
    begun_.push_back(begun);
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
  const std::size_t count = begun_.size();
  requests_.resize(count);
  indices_.resize(count);
  statuses_.resize(count);
  for (std::size_t i = 0; i < count; ++i) requests_[i] = begun_[i].request;
  int done = 0;
  const int code = calls_.testsome(static_cast<int>(count), requests_.data(), &done, indices_.data(), statuses_.data());
  engine_progress();  // where MPI's progress does not
  if (done == MPI_UNDEFINED || done <= 0) return false;
  for (int i = 0; i < done; ++i) {
    const auto at = static_cast<std::size_t>(indices_[static_cast<std::size_t>(i)]);
    const MPI_Status& status = statuses_[static_cast<std::size_t>(i)];
    int failure = code == MPI_ERR_IN_STATUS ? status.MPI_ERROR : MPI_SUCCESS;
    if (failure == MPI_SUCCESS) failure = second_step(begun_[at]);
    if (failure == MPI_SUCCESS && begun_[at].request != MPI_REQUEST_NULL) continue;
    ended(begun_[at], requests_[at], failure, status);
    begun_[at].call = nullptr;
  }
  std::erase_if(begun_, [](const Begun& each) { return each.call == nullptr; });
  return true;
}

void Service::ended(const Begun& begun, MPI_Request& request, int code, const MPI_Status& status) {
  if (code != MPI_SUCCESS && request != MPI_REQUEST_NULL && !begun.call->steps.persistent) PMPI_Request_free(&request);
  finish(begun, code < 0 ? MPI_ERR_OTHER : code, status);  // Open MPI's own numbers are negative
}

/// The call is complete: its outcome first, and then the gate.
void Service::finish(const Begun& begun, int code, const MPI_Status& status) {
  EnqueuedCall* const call = begun.call;
  MPI_Request completed = MPI_REQUEST_NULL;
  {
    const LockGuard lock(outcome_mutex());
    call->outcome = status;
    call->complete = true;
    if (call->status != MPI_STATUS_IGNORE) *call->status = status;
    if (call->request != MPI_REQUEST_NULL && !std::exchange(call->request_completed, true)) completed = call->request;
  }
  if (code != MPI_SUCCESS && !begun.is_told) {
    int none = MPI_SUCCESS;
    call->comm->failure.compare_exchange_strong(none, code);
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
  if (!begun_.empty() || idle < yields)
    sched_yield();
  else
    std::this_thread::sleep_for(nap);
}

/// Whether nothing more can be expected: nothing is enqueued, or what has begun waits in vain.
bool Service::may_stop(SteadyClock::time_point active) const {
  const bool told = std::any_of(streams_.begin(), streams_.end(), [](const auto& each) { return each->has_plain(); });
  const auto idle = SteadyClock::now() - active;
  const bool graphs =
      std::any_of(streams_.begin(), streams_.end(), [](const auto& each) { return each->has_graphs(); });
  if (begun_.empty() && !told) return !graphs || idle > without_launches;
  return idle > (begun_.empty() ? std::chrono::seconds(without_streams) : without_messages);
}

/// Lets all streams pass. Receives are cancelled: the program's buffers may be freed.
void Service::abandon() {
  const WithoutProgressThread alone;
  int waiting = 0;
  left_.clear();
  for (Begun& each : begun_) {
    if (left_.empty()) left_ = each.call->name;
    calls_.cancel(&each.request);
    if (!each.call->steps.persistent) calls_.free(&each.request);
    each.call->gate->open(each.call->passage);
    if (!each.call->in_graph) each.call->release();
  }
  for (const auto& stream : streams_) waiting += stream->abandon();
  const std::size_t begun = begun_.size();
  begun_.clear();
  streams_.clear();
  if (begun != 0)
    left_ = std::to_string(begun) + " enqueued operations have not completed (the first is " + left_ + "), and " +
            std::to_string(waiting) + " behind them have not begun";
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
