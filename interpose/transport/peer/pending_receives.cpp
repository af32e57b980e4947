// Receives of programs with several threads that no RTS has been looked for in yet. A probe tells an RTS by its
// sender's offer being open. Between the moment when MPI gives the RTS to a receive and the one when the thread of that
// receive says so, another thread may probe a plain message behind it, as long as the RTS.
#include <algorithm>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "interpose/mpi/workarounds.hpp"
#include "interpose/transport/peer/state.hpp"

namespace gpudt::interpose {

using namespace peer;

namespace {

struct Wanted {
  Envelope envelope;  ///< with wildcards
  std::thread::id thread;
};

std::mutex mutex;
std::vector<Wanted> wanted;  // seldom more than a few
std::recursive_mutex matching;

bool several_threads() {
  return peer_checks() && peer_has_threads();
}

}  // namespace

// A communicator of 0 is an error, which is MPI's to report.
PendingReceive::PendingReceive(const Selects& selects, MPI_Comm comm)
    : noted_(selects && several_threads() && comm != MPI_Comm{} && comm != MPI_COMM_NULL) {
  if (!noted_) return;
  const std::lock_guard<std::mutex> lock(mutex);
  wanted.push_back({{context_of(comm), selects->source, selects->tag}, std::this_thread::get_id()});
}

/// A thread's receives end in the opposite order, if there is one within another.
void PendingReceive::over() {
  if (!std::exchange(noted_, false)) return;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto last = std::find_if(wanted.rbegin(), wanted.rend(),
                                 [](const Wanted& each) { return each.thread == std::this_thread::get_id(); });
  wanted.erase(std::next(last).base());
}

namespace peer {

bool may_have_come(const Envelope& envelope) {
  if (!world->threads) return false;
  const std::lock_guard<std::mutex> lock(mutex);
  return std::any_of(wanted.begin(), wanted.end(), [&](const Wanted& each) {
    return each.envelope.context == envelope.context &&
           (each.envelope.source == MPI_ANY_SOURCE || each.envelope.source == envelope.source) &&
           (each.envelope.tag == MPI_ANY_TAG || each.envelope.tag == envelope.tag) &&
           each.thread != std::this_thread::get_id();
  });
}

}  // namespace peer

std::unique_lock<std::recursive_mutex> peer_matching() {
  return several_threads() ? std::unique_lock(matching) : std::unique_lock<std::recursive_mutex>();
}

}  // namespace gpudt::interpose
