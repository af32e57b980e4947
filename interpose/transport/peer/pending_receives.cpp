// Receives, in programs with several threads, that have not been checked for an RTS yet. A probe recognises an RTS by
// its sender's open offer. After MPI has given an RTS to a receive, and before that receive's thread has marked the
// offer as matched, another thread may probe a plain message behind it that is as long as the RTS.
#include <algorithm>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "base/never_destroyed.hpp"
#include "interpose/mpi/workarounds.hpp"
#include "interpose/transport/peer/descriptors.hpp"
#include "interpose/transport/peer/state.hpp"

namespace gpudt::interpose {

using namespace peer;

namespace {

struct Wanted {
  Envelope envelope;  ///< with wildcards
  std::thread::id thread;
  std::uint64_t number;
  bool waited_for = false;  ///< in vain: it may be for a later message, or still be receiving an earlier one
};

Mutex wanted_mutex;
auto& wanted GUARDED_BY(wanted_mutex) = never_destroyed<std::vector<Wanted>>();  // seldom more than a few
std::uint64_t last_number GUARDED_BY(wanted_mutex) = 0;
std::recursive_mutex matching;  // taken only in programs with several threads, which Clang could not follow

}  // namespace

// A communicator of 0 is an error, which is MPI's to report.
bool PendingReceive::note(const Selects& selects, MPI_Comm comm) {
  if (!selects || !peer_checks() || comm == MPI_Comm{} || comm == MPI_COMM_NULL) return false;
  const LockGuard lock(wanted_mutex);
  wanted.push_back({{context_of(comm), selects->source, selects->tag}, std::this_thread::get_id(), ++last_number});
  return true;
}

/// A thread's receives end in the opposite order, if there is one within another.
void PendingReceive::forget() {
  const LockGuard lock(wanted_mutex);
  const auto last = std::find_if(wanted.rbegin(), wanted.rend(),
                                 [](const Wanted& each) { return each.thread == std::this_thread::get_id(); });
  wanted.erase(std::next(last).base());
}

namespace peer {

namespace {

bool may_have(const Wanted& receive, const Envelope& envelope, std::uint64_t number) {
  return receive.number <= number && !receive.waited_for && receive.envelope.context == envelope.context &&
         (receive.envelope.source == MPI_ANY_SOURCE || receive.envelope.source == envelope.source) &&
         (receive.envelope.tag == MPI_ANY_TAG || receive.envelope.tag == envelope.tag) &&
         receive.thread != std::this_thread::get_id();
}

}  // namespace

std::uint64_t receives_so_far() {
  if (!peer_has_threads()) return 0;
  const LockGuard lock(wanted_mutex);
  return last_number;
}

bool may_have_come(const Envelope& envelope, std::uint64_t number) {
  if (number == 0) return false;
  const LockGuard lock(wanted_mutex);
  return std::any_of(wanted.begin(), wanted.end(),
                     [&](const Wanted& each) { return may_have(each, envelope, number); });
}

void waited_in_vain(const Envelope& envelope, std::uint64_t number) {
  const LockGuard lock(wanted_mutex);
  for (Wanted& each : wanted)
    if (may_have(each, envelope, number)) each.waited_for = true;
}

}  // namespace peer

std::unique_lock<std::recursive_mutex> peer_matching() {
  const bool holds = peer_checks() && peer_has_threads();
  return holds ? std::unique_lock(matching) : std::unique_lock<std::recursive_mutex>();
}

}  // namespace gpudt::interpose
