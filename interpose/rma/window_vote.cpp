// A process without gpudt never takes part: it is in MPI's own call, whose first step is a collective on the same
// communicator. Where there are hidden messages, the votes use these, so that they do not match that collective.
#include "interpose/rma/window_vote.hpp"

#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "interpose/job/presence.hpp"
#include "interpose/mpi/workarounds.hpp"
#include "interpose/support/log.hpp"

namespace gpudt::interpose {
namespace {

constexpr int numbers = sizeof(WindowVote) / sizeof(int);

/// Tests set a shorter time.
std::chrono::seconds long_wait() {
  const char* const seconds = std::getenv("GPUDT_TEST_LONG_WAIT");
  return std::chrono::seconds(seconds == nullptr ? 30 : std::atoi(seconds));
}

class PatientWait {
 public:
  PatientWait(const char* call, bool all_answer) : call_(call), all_answer_(all_answer) {}
  /// Waits for all requests, of which null ones are complete. If a request fails, returns the error code at once.
  template <std::size_t count>
  int operator()(std::array<MPI_Request, count>& requests) {
    for (int done = 0;;) {
      const int code = PMPI_Testall(static_cast<int>(count), requests.data(), &done, MPI_STATUSES_IGNORE);
      if (code != MPI_SUCCESS || done != 0) return code;
      sched_yield();
      if (!all_answer_ && std::chrono::steady_clock::now() > deadline_) tell();
    }
  }

 private:
  void tell() {
    static std::atomic<bool> told{false};
    if (told.exchange(true)) return;
    log_warning(std::string(call_) + " still waits for other ranks: any that run without gpudt will never answer. " +
                presence_remedy());
  }

  const char* call_;
  bool all_answer_;
  std::chrono::steady_clock::time_point deadline_ = std::chrono::steady_clock::now() + long_wait();
};

int vote_by_collective(MPI_Comm comm, WindowVote& votes, PatientWait& wait) {
  WindowVote mine = votes;
  std::array<MPI_Request, 1> request = {MPI_REQUEST_NULL};
  const int code = PMPI_Iallreduce(&mine, &votes, numbers, MPI_INT, MPI_MAX, comm, request.data());
  return code == MPI_SUCCESS ? wait(request) : code;
}

/// In each round a process sends the votes that it knows to another process, twice as far away as in the round before.
int vote_by_messages(MPI_Comm comm, WindowVote& votes, PatientWait& wait) {
  int rank = 0, size = 0;
  PMPI_Comm_rank(comm, &rank);
  PMPI_Comm_size(comm, &size);
  for (std::int64_t distance = 1; distance < size; distance *= 2) {
    const auto to = static_cast<int>((rank + distance) % size),
               from = static_cast<int>((rank - distance + size) % size);
    WindowVote others{};
    std::array<MPI_Request, 2> requests = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    int code = hidden_receive(&others, numbers, MPI_INT, from, vote_tag, comm, &requests[0]);
    if (code == MPI_SUCCESS) code = hidden_send(&votes, numbers, MPI_INT, to, vote_tag, comm, &requests[1]);
    if (code != MPI_SUCCESS && requests[0] != MPI_REQUEST_NULL) PMPI_Cancel(&requests[0]);
    const int waited = wait(requests);
    if (code != MPI_SUCCESS || waited != MPI_SUCCESS) return code != MPI_SUCCESS ? code : waited;
    votes = {std::max(votes.wants, others.wants), std::max(votes.cannot, others.cannot),
             std::max(votes.is_mpis, others.is_mpis)};
  }
  return MPI_SUCCESS;
}

}  // namespace

WindowVote vote_on_window(const char* call, MPI_Comm comm, WindowVote mine, bool all_answer) {
  PatientWait wait(call, all_answer);
  const bool by_messages = !hidden_messages_share_comm && has_hidden_messages();
  const int code = by_messages ? vote_by_messages(comm, mine, wait) : vote_by_collective(comm, mine, wait);
  return code == MPI_SUCCESS ? mine : WindowVote{};
}

}  // namespace gpudt::interpose
