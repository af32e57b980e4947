#include "device/memory/in_time.hpp"

#include <pthread.h>

#include <condition_variable>
#include <exception>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "base/mutex.hpp"
#include "base/never_destroyed.hpp"
#include "base/one_thread.hpp"
#include "base/signals.hpp"
#include "device/memory/gates.hpp"

namespace gpudt::device {
namespace {

using SteadyClock = std::chrono::steady_clock;

/// What the calling thread is doing.
enum class Doing {
  other,
  work_alone,         ///< work of in_time() while no gate can be taken
  work_beside_gates,  ///< work of the helper thread
};
thread_local Doing doing = Doing::other;

/// Held while work of in_time() is done.
constinit Mutex working;

void do_work(const std::function<void()>& work, Doing kind) {
  struct Restored {
    ~Restored() { doing = Doing::other; }
  } const restored;
  doing = kind;
  work();
}

/// A thread that does one job at a time.
class Helper {
 public:
  bool run(std::function<void()> work, std::chrono::milliseconds time);
  void end() noexcept;

 private:
  struct Job {
    std::function<void()> work;
    std::exception_ptr failure{};
    bool done = false;
    bool timed_out = false;  ///< somebody has waited for it in vain
  };
  void serve();

  Mutex mutex_;
  std::condition_variable_any changed_;
  std::shared_ptr<Job> job_ GUARDED_BY(mutex_);  ///< null: the thread has nothing to do
  bool ends_ GUARDED_BY(mutex_) = false;
  std::thread thread_ GUARDED_BY(mutex_);
};

Helper& helper() {
  static Helper& only = never_destroyed<Helper>();
  return only;
}

/// Who has little time does not wait for what has timed out: probably the program is waiting in a launch.
bool Helper::run(std::function<void()> work, std::chrono::milliseconds time) try {
  const auto deadline = SteadyClock::now() + time;
  const auto job = std::make_shared<Job>(Job{std::move(work)});
  UniqueLock lock(mutex_);
  if (!thread_.joinable()) {
    const SignalsBlocked blocked;
    expect_threads();
    thread_ = std::thread([this] { serve(); });
  }
  while (job_ != nullptr)
    if ((job_->timed_out && time < long_time) || lock.wait_until(changed_, deadline) == std::cv_status::timeout)
      return false;
  job_ = job;
  changed_.notify_all();
  while (!job->done)
    if (lock.wait_until(changed_, deadline) == std::cv_status::timeout && !job->done) {
      job->timed_out = true;
      changed_.notify_all();
      return false;
    }
  if (job->failure) std::rethrow_exception(job->failure);
  return true;
} catch (const std::system_error&) {
  return false;  // there can be no thread
}

void Helper::serve() {
  pthread_setname_np(pthread_self(), "gpudt-memory");
  UniqueLock lock(mutex_);
  for (;;) {
    while (job_ == nullptr && !ends_) lock.wait(changed_);
    if (job_ == nullptr) return;
    const std::shared_ptr<Job> job = job_;
    lock.unlock();
    try {
      const LockGuard one_at_a_time(working);
      do_work(job->work, Doing::work_beside_gates);
    } catch (...) {
      job->failure = std::current_exception();
    }
    job->work = nullptr;  // with it goes what nobody has waited for
    lock.lock();
    job->done = true;
    job_ = nullptr;
    changed_.notify_all();
  }
}

void Helper::end() noexcept {
  std::thread ended;
  {
    const LockGuard lock(mutex_);
    ends_ = true;
    ended = std::move(thread_);
    changed_.notify_all();
  }
  if (ended.joinable()) ended.join();
  const LockGuard lock(mutex_);
  ends_ = false;
}

}  // namespace

bool in_time(std::function<void()> work, std::chrono::milliseconds time) {
  const bool at_once = time == std::chrono::milliseconds(0);
  if (doing != Doing::other) {
    if (at_once && doing != Doing::work_alone) return false;
    work();
    return true;
  }
  {
    const LockGuard lock(Gates::taking);
    if (!Gates::any_taken() && working.try_lock()) {
      const LockGuard one_at_a_time(working, std::adopt_lock);
      do_work(work, Doing::work_alone);
      return true;
    }
  }
  return !at_once && helper().run(std::move(work), time);
}

bool no_gate_is_taken() noexcept {
  return doing == Doing::work_alone;
}

void end_helper() noexcept {
  helper().end();
}

}  // namespace gpudt::device
