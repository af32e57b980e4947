// What tests with several threads share.
#pragma once

#include <mpi.h>

#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/mpi_harness.hpp"

namespace gpudt::test {

inline constexpr int thread_count = 4;

/// Catch2's assertions are for one thread: others leave their complaints here.
class Complaints {
 public:
  void expect(bool holds, const std::string& text) {
    if (holds) return;
    std::lock_guard lock(mutex_);
    if (first_.empty()) first_ = text;
  }
  std::string first() const { return first_; }

 private:
  std::mutex mutex_;
  std::string first_;
};

/// These tests are hidden: they need GPUDT_TEST_THREADS=1, and say so when asked for without it.
inline bool threads_allowed() {
  int level = MPI_THREAD_SINGLE;
  PMPI_Query_thread(&level);
  CHECK(level == MPI_THREAD_MULTIPLE);
  return level == MPI_THREAD_MULTIPLE && all_have_partners();
}

/// Runs `work(thread, its communicator, complaints)` in all threads at once.
inline void in_threads(const std::function<void(int, MPI_Comm, Complaints&)>& work) {
  std::vector<MPI_Comm> comms(thread_count, MPI_COMM_NULL);
  for (MPI_Comm& own : comms) MPI_Comm_dup(comm(), &own);
  Complaints complaints;
  const int gpu = current_gpu();
  std::vector<std::thread> threads;
  for (int t = 0; t < thread_count; ++t)
    threads.emplace_back([&, t] {
      try {
        use_gpu(gpu);
        work(t, comms[static_cast<std::size_t>(t)], complaints);
      } catch (const std::exception& error) {
        complaints.expect(false, error.what());
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(complaints.first() == "");
  for (MPI_Comm& own : comms) PMPI_Comm_free(&own);
}

}  // namespace gpudt::test
