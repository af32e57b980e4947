#include "device/sim/executor.hpp"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>

#include "base/nap.hpp"
#include "base/numbers.hpp"
#include "base/signals.hpp"
#include "device/sim/capture.hpp"
#include "device/sim/context_lock.hpp"
#include "device/sim/memory.hpp"

namespace gpudt::sim {
namespace {

/// The longest delay in which a thread spins: a sleep takes some 20 us of a processor.
constexpr int longest_spin_us = 20;

// A fault in device work becomes a sticky error: the worker jumps out of the work. Other faults go to the handler that
// was installed before.
thread_local sigjmp_buf* recovery __attribute__((tls_model("initial-exec"))) = nullptr;
struct sigaction previous_action = {};
Mutex handler_mutex;
const char* (*gpudt_why_not)() = nullptr;  ///< of libgpudt-pmpi.so; null: it is not loaded
std::atomic_flag explained;

/// Why the host could not access the device memory at `address`, and the remedy; null if that is not the cause.
const char* reason_of_fault(const void* address) {
  const Memory* const memory = Memory::existing();
  if (!memory || !memory->in_device_zone(address)) return nullptr;
  const Lookup found = memory->find(address);  // no fault happens while this thread holds the lock
  if (!found.begin) return "it is not allocated, or has been freed";
  if (found.kind != Kind::device) return nullptr;
  if (!gpudt_why_not) return "libgpudt-pmpi.so is not loaded, so that MPI cannot use it. Start with gpudt-run --sim";
  return gpudt_why_not();
}

void explain_fault(const void* address) {
  const char* const reason = reason_of_fault(address);
  if (!reason || explained.test_and_set()) return;
  std::array<char, 512> text;
  const int length = std::snprintf(text.data(), text.size(), "gpudt-sim: the host accessed device memory at %p: %s\n",
                                   address, reason);
  if (write(STDERR_FILENO, text.data(), static_cast<std::size_t>(length)) < 0) explained.clear();
}

void on_fault(int number, siginfo_t* info, void* context) {
  if (recovery) siglongjmp(*recovery, 1);
  explain_fault(info->si_addr);
  if (previous_action.sa_flags & SA_SIGINFO) {
    previous_action.sa_sigaction(number, info, context);
  } else if (previous_action.sa_handler == SIG_DFL || previous_action.sa_handler == SIG_IGN) {
    std::signal(number, SIG_DFL);  // the instruction faults again, and ends the process
  } else {
    previous_action.sa_handler(number);
  }
}

/// MPI and test frameworks install handlers of their own at any time, so this is checked before each piece of work.
void ensure_fault_handler() {
  const LockGuard lock(handler_mutex);
  struct sigaction current = {};
  sigaction(SIGSEGV, nullptr, &current);
  if ((current.sa_flags & SA_SIGINFO) && current.sa_sigaction == on_fault) return;
  previous_action = current;
  gpudt_why_not = reinterpret_cast<const char* (*)()>(dlsym(RTLD_DEFAULT, "gpudt_why_not"));
  struct sigaction ours = {};
  ours.sa_sigaction = on_fault;
  ours.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  sigaction(SIGSEGV, &ours, nullptr);
}

/// Runs `work`; false if it touched memory that it may not touch.
bool run_guarded(const std::function<void()>& work) {
  ensure_fault_handler();
  sigjmp_buf here;
  if (sigsetjmp(here, 0) != 0) {
    recovery = nullptr;
    return false;
  }
  recovery = &here;
  work();
  recovery = nullptr;
  return true;
}

/// The program's signals are not for workers; a fault is always the thread's own.
void block_signals() {
  sigset_t all;
  sigfillset(&all);
  sigdelset(&all, SIGSEGV);
  sigdelset(&all, SIGBUS);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
}

}  // namespace

// --- streams -------------------------------------------------------------------------------------------------------

Stream::Stream(int device_number, unsigned stream_flags, int stream_priority, bool is_legacy)
    : device(device_number), flags(stream_flags), priority(stream_priority), legacy(is_legacy) {}

Point Stream::submit(Effort effort, std::function<void()> work) {
  if (captured(*this, effort, work)) return {shared_from_this(), 0};
  if (queue_length() == 0) return put(effort, std::move(work));
  const SharedLock of_launch(context_lock());
  {
    Executor& executor = Executor::instance();
    UniqueLock lock(executor.mutex_);
    while (submitted_ - completed_ >= queue_length()) lock.wait(executor.completed_);
  }
  return put(effort, std::move(work));
}

Point Stream::put(Effort effort, std::function<void()> work) {
  Executor& executor = Executor::instance();
  const LockGuard lock(executor.mutex_);
  queue_.push_back({{effort, std::move(work)}, executor.before(*this)});
  ++submitted_;
  if (!started_) {
    started_ = true;
    const SignalsBlocked blocked;  // the new thread must not take a signal before it blocks most of them
    std::thread([self = shared_from_this()] { self->work(); }).detach();
  }
  wake_.notify_one();
  return {shared_from_this(), submitted_};
}

Point Stream::last() {
  const LockGuard lock(Executor::instance().mutex_);
  return {shared_from_this(), submitted_};
}

bool Stream::idle() {
  const LockGuard lock(Executor::instance().mutex_);
  return completed_ == submitted_;
}

void Stream::work() {
  block_signals();
  pthread_setname_np(pthread_self(), "gpudt-sim");
  prctl(PR_SET_TIMERSLACK, 1UL);
  Executor& executor = Executor::instance();
  UniqueLock lock(executor.mutex_);
  for (;;) {
    while (queue_.empty() && !closing_) lock.wait(wake_);
    if (queue_.empty()) break;
    Item item = std::move(queue_.front());
    queue_.pop_front();
    for (const Point& point : item.after) executor.wait(point, lock);
    lock.unlock();
    perform(device, item.operation);
    item = {};  // releases what the work holds before its end is visible
    lock.lock();
    ++completed_;
    executor.completed_.notify_all();
  }
  std::erase(executor.streams_, shared_from_this());
}

void Stream::perform(int device, const Operation& operation) {
  Executor& executor = Executor::instance();
  if (operation.effort == Effort::bookkeeping) {
    operation.work();
  } else if (executor.sticky(device) == cudaSuccess) {
    executor.delay();
    if (!run_guarded(operation.work)) executor.set_sticky(device, cudaErrorIllegalAddress);
  }
}

Executor& Executor::instance() {
  static Executor* executor = new Executor;
  return *executor;
}

Executor::Executor() {
  const char* const text = std::getenv("GPUDT_SIM_DELAY_US");
  if (const auto range = parse_range(text == nullptr ? "" : text)) {
    least_delay_us_ = range->first;
    most_delay_us_ = range->second;
  }
}

void Executor::delay() const {
  if (most_delay_us_ == 0) return;
  thread_local std::minstd_rand random{std::random_device{}()};
  const int us = std::uniform_int_distribution<int>(least_delay_us_, most_delay_us_)(random);
  if (us > longest_spin_us) return std::this_thread::sleep_for(std::chrono::microseconds(us));
  const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(us);
  while (std::chrono::steady_clock::now() < end) {
  }
}

/// What must end before the work that is about to be queued on `stream`, by the rules of the legacy default stream.
std::vector<Point> Executor::before(const Stream& stream) {
  std::vector<Point> points;
  auto add = [&points](const StreamRef& other) {
    if (other && other->completed_ < other->submitted_) points.push_back({other, other->submitted_});
  };
  if (stream.legacy) {
    for (const StreamRef& other : streams_)
      if (other->device == stream.device && !(other->flags & cudaStreamNonBlocking)) add(other);
  } else if (!(stream.flags & cudaStreamNonBlocking)) {
    add(legacy_[stream.device]);
  }
  return points;
}

bool Executor::default_idle(int device) {
  const LockGuard lock(mutex_);
  return before(*legacy_[device]).empty();
}

StreamRef Executor::create(int device, unsigned flags, int priority) {
  const ContextChange alone;
  auto stream = std::make_shared<Stream>(device, flags, priority, false);
  const LockGuard lock(mutex_);
  streams_.push_back(stream);
  return stream;
}

void Executor::destroy(const StreamRef& stream) {
  const LockGuard lock(mutex_);
  stream->closing_ = true;
  stream->wake_.notify_one();
  if (!stream->started_) std::erase(streams_, stream);
}

StreamRef Executor::legacy(int device) {
  const LockGuard lock(mutex_);
  StreamRef& stream = legacy_[device];
  if (!stream) stream = std::make_shared<Stream>(device, 0u, 0, true);
  return stream;
}

void Executor::wait(const Point& point) {
  UniqueLock lock(mutex_);
  wait(point, lock);
}

void Executor::wait(const Point& point, UniqueLock& lock) {
  while (point.stream->completed_ < point.ticket) lock.wait(completed_);
}

void Executor::wait_device(int device) {
  UniqueLock lock(mutex_);
  std::vector<Point> points;
  for (const StreamRef& stream : streams_)
    if (stream->device == device) points.push_back({stream, stream->submitted_});
  if (legacy_[device]) points.push_back({legacy_[device], legacy_[device]->submitted_});
  for (const Point& point : points) wait(point, lock);
}

void Executor::destroy_device_streams(int device) {
  std::vector<StreamRef> doomed;
  {
    const LockGuard lock(mutex_);
    for (const StreamRef& stream : streams_)
      if (stream->device == device) doomed.push_back(stream);
  }
  for (const StreamRef& stream : doomed) destroy(stream);
}

// --- events --------------------------------------------------------------------------------------------------------

Event::Event(int device_number, unsigned event_flags, std::shared_ptr<EventWords> words, bool shared)
    : device(device_number), flags(event_flags), words_(std::move(words)), shared_(shared) {}

void Event::record(const StreamRef& stream) {
  const std::uint64_t count = ++words_->recorded;
  // The words outlive the event for as long as work refers to them.
  stream->submit(Effort::bookkeeping, [words = words_, timed = timed_, count] {
    {
      const LockGuard lock(timed->mutex);
      timed->at = std::chrono::steady_clock::now();
    }
    std::uint64_t before = words->completed.load();
    while (before < count && !words->completed.compare_exchange_weak(before, count)) {
    }
    // Under the lock, so that a waiter cannot miss it between its check and its sleep.
    Executor& executor = Executor::instance();
    const LockGuard lock(executor.mutex_);
    executor.completed_.notify_all();
  });
}

void Event::wait_for(const EventWords& words, std::uint64_t count, bool shared) {
  if (shared) {
    nap_until([&] { return words.completed.load() >= count; });
    return;
  }
  Executor& executor = Executor::instance();
  UniqueLock lock(executor.mutex_);
  while (words.completed.load() < count) lock.wait(executor.completed_);
}

void Event::hold(const StreamRef& stream) {
  const std::uint64_t count = words_->recorded.load();
  if (words_->completed.load() >= count) return;
  stream->submit(Effort::bookkeeping, [words = words_, shared = shared_, count] { wait_for(*words, count, shared); });
}

std::chrono::steady_clock::time_point Event::time() const {
  const LockGuard lock(timed_->mutex);
  return timed_->at;
}

}  // namespace gpudt::sim
