// Progress in MPICH 4, which offers no hook: the functions by which its own parts register one are not exported, and
// the poll function of a generalized request (MPIX_Grequest_start) runs only in calls that complete this request.
//
// If MPICH communicates by UCX (device ch4:ucx, as in Debian and Ubuntu), each step of its progress, in any call, calls
// ucp_worker_progress, a function of another library. This library defines that function too, and advances pending
// operations in it. MPICH holds no locks there unless the program requested MPI_THREAD_MULTIPLE, so that MPI may be
// called.
//
// With MPI_THREAD_MULTIPLE, MPICH holds its locks there. Then a thread of this library advances pending operations,
// and also in an MPICH without UCX, for which this library requests MPI_THREAD_MULTIPLE.
#include "interpose/mpi/progress.hpp"

#include <mpi.h>
#include <sys/prctl.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <thread>

#include "base/mutex.hpp"
#include "base/never_destroyed.hpp"
#include "base/one_thread.hpp"
#include "base/signals.hpp"
#include "interpose/support/export.hpp"
#include "interpose/support/loaded.hpp"

namespace gpudt::interpose {
namespace {

constexpr std::chrono::microseconds pause{10};  ///< between the steps of the thread
constexpr unsigned long timer_slack = 1000;     ///< nanoseconds by which the kernel may prolong a pause

std::atomic<int (*)()> on_the_way{nullptr};  ///< what ucp_worker_progress calls

/// An MPICH with several networks ("ch4:ucx ofi", or "ch4:ofi ucx") uses the first, or the one that the user chooses.
bool communicates_by_ucx() {
  char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  PMPI_Get_library_version(version, &length);
  const char* const device = std::strstr(version, "ch4:");
  if (device == nullptr) return false;
  const std::string_view networks(device, std::strcspn(device, "\n"));
  const char* chosen = std::getenv("MPIR_CVAR_CH4_NETMOD");
  if (chosen == nullptr) chosen = std::getenv("MPICH_CH4_NETMOD");
  if (chosen == nullptr || *chosen == '\0' || networks.find(' ') == std::string_view::npos)
    return networks.substr(0, 7) == "ch4:ucx";
  return std::string_view(chosen) == "ucx";
}

/// Whether MPICH has a progress thread of its own: with it MPICH takes locks at any level of thread support.
bool has_own_thread() {
  for (const char* name : {"MPIR_CVAR_ASYNC_PROGRESS", "MPICH_ASYNC_PROGRESS"}) {
    const char* const value = std::getenv(name);
    if (value != nullptr && *value != '\0' && std::string_view(value) != "0") return true;
  }
  return false;
}

Mutex& driving = never_destroyed<Mutex>();  ///< held by the thread of the library that calls MPI

/// The thread that advances pending operations, and sleeps while there are none.
class Driver {
 public:
  void start(const Progressing& driven) {
    driven_ = driven;
    stopping_ = false;
    const SignalsBlocked blocked;
    expect_threads();
    thread_ = std::thread([this] { drive(); });
  }

  void stop() {
    if (!thread_.joinable()) return;
    stopping_ = true;
    wake();
    thread_.join();
  }

  void wake() {
    wakes_.fetch_add(1);
    wakes_.notify_one();
  }

 private:
  void drive() {
    prctl(PR_SET_TIMERSLACK, timer_slack, 0, 0, 0);
    while (!stopping_) {
      const unsigned seen = wakes_;
      if (!driven_.pending() && !stopping_)
        wakes_.wait(seen);
      else if (advance() == 0)
        std::this_thread::sleep_for(pause);
    }
  }

  int advance() const {
    const LockGuard lock(driving);
    return driven_.advance();
  }

  Progressing driven_{};
  std::thread thread_;
  std::atomic<bool> stopping_{false};
  std::atomic<unsigned> wakes_{0};
};

auto& driver = never_destroyed<Driver>();  // its thread may outlive static objects

}  // namespace

int progress_thread_level(int required) {
  return communicates_by_ucx() && !has_own_thread() ? required : MPI_THREAD_MULTIPLE;
}

const char* progress_start(const Progressing& driven) {
  int level = MPI_THREAD_SINGLE;
  PMPI_Query_thread(&level);
  if (level == MPI_THREAD_MULTIPLE) {
    detail::wake_progress.store([] { driver.wake(); }, std::memory_order_release);
    driver.start(driven);
  } else if (progress_thread_level(level) == level) {
    expect_threads();  // another library may progress workers of its own in a thread
    on_the_way = driven.advance;
  } else {
    return "this MPICH neither communicates by UCX nor supports MPI_THREAD_MULTIPLE";
  }
  return nullptr;
}

void progress_stop() {
  on_the_way = nullptr;
  detail::wake_progress.store(nullptr, std::memory_order_release);
  driver.stop();
}

WithoutProgressThread::WithoutProgressThread() NO_THREAD_SAFETY_ANALYSIS {  // until it is destroyed
  driving.lock();
}
WithoutProgressThread::~WithoutProgressThread() NO_THREAD_SAFETY_ANALYSIS {
  driving.unlock();
}

}  // namespace gpudt::interpose

/// Replaces UCX's function of this name, in programs over any MPI library; a ucp_worker_h is a pointer.
GPUDT_EXPORT unsigned ucp_worker_progress(void* worker) {
  using Progress = unsigned (*)(void*);
  static const auto behind = reinterpret_cast<Progress>(gpudt::interpose::loaded_function("ucp_worker_progress"));
  const unsigned events = behind(worker);
  if (auto* const advance = gpudt::interpose::on_the_way.load(std::memory_order_acquire)) advance();
  return events;
}
