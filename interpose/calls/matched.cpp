// The probes, and a list of the messages that MPI_Mprobe and MPI_Improbe have matched: mostly there are few, and the
// last one is received first.
#include "interpose/requests/matched.hpp"

#include <algorithm>
#include <new>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "base/never_destroyed.hpp"
#include "interpose/engine/engine.hpp"
#include "interpose/mpi/workarounds.hpp"
#include "interpose/requests/operation.hpp"
#include "interpose/support/export.hpp"
#include "interpose/transport/device_buffer.hpp"
#include "interpose/transport/peer/peer.hpp"

namespace gpudt::interpose {
namespace {

struct Matched {
  MPI_Message message;
  MatchedFrom from;
};

Mutex mutex;
auto& list GUARDED_BY(mutex) = never_destroyed<std::vector<Matched>>();

bool is_message(MPI_Message message) {
  return message != MPI_MESSAGE_NULL && message != MPI_MESSAGE_NO_PROC;
}

}  // namespace

void matched_enter(MPI_Message message, const MatchedFrom& from) noexcept {
  if (!is_message(message) || !active.load(std::memory_order_relaxed)) return;
  const LockGuard lock(mutex);
  try {
    list.push_back({message, from});
  } catch (const std::bad_alloc&) {
    // The program gets the message all the same; MPI_COMM_WORLD's handler would get its errors.
  }
}

MatchedFrom matched_take(MPI_Message message) {
  if (!is_message(message)) return {};
  const LockGuard lock(mutex);
  const auto at =
      std::find_if(list.rbegin(), list.rend(), [=](const Matched& matched) { return matched.message == message; });
  if (at == list.rend()) return {};
  std::swap(*at, list.back());
  MatchedFrom from = std::move(list.back().from);
  list.pop_back();
  return from;
}

void matched_forget_comm(MPI_Comm comm) {
  const LockGuard lock(mutex);
  std::shared_ptr<const KeptHandler> kept;
  for (Matched& matched : list) {
    if (matched.from.owner.comm != comm) continue;
    if (!kept) kept = std::make_shared<const KeptHandler>(comm);
    matched.from.owner.forget_comm(kept);
  }
}

void matched_stop() {
  const LockGuard lock(mutex);
  list.clear();
}

namespace {

/// Calls `look(flag)`, a probe that does not wait, after a step of the engine if MPI would make no progress.
template <class Look>
int look_once(int* flag, Look look) {
  if constexpr (!probes_make_progress) engine_progress();
  return look(flag);
}

/// A probe that waits: `wait()`, or `look(&flag)` until it has found a message or failed. If it fails, calls an error
/// handler and returns MPI_SUCCESS, the flag stays -1.
template <class Wait, class Look>
int look_until_found(Wait wait, Look look) {
  if constexpr (probes_make_progress) return wait();
  int flag = -1, code = MPI_SUCCESS;
  wait_until([&] {
    flag = -1;
    code = look(&flag);
    return code != MPI_SUCCESS || flag != 0;
  });
  return code;
}

/// A message that MPI has matched. The destructor lists it, so that it can be received whatever fails before.
struct Found {
  MPI_Message message;
  MatchedFrom from;
  ~Found() { matched_enter(message, from); }
};

/// Calls `look(status)`, which matches a message if there is one, and then sets `*flag`. Returns what the call is to
/// return.
template <class Look>
int match_message(const char* call, MPI_Comm comm, int* flag, MPI_Message* message, MPI_Status* user, Look look) {
  return raising(comm, call, [&] {
    const SeenStatus status(user);
    const auto lock = peer_matching();
    const int code = look(status.get());
    if (code != MPI_SUCCESS || flag == nullptr || *flag == 0 || status.refused(code)) return code;
    Found found{*message, {{.comm = comm}, /*rts=*/false}};
    found.from.rts = peer_probed(comm, status.get(), /*matched=*/true) == Probed::rts;
    return code;
  });
}

/// Most looks of one probe while other threads receive messages. What is as long as an RTS but is none would be looked
/// at for as long as they go on.
constexpr int most_looks = 64;

/// A probe that does not match: `look(status)`, which sets `*flag`. It looks again if another thread may have received
/// what it has found: the length of the message for which an RTS stood is then not to be had any more.
template <class Look>
int probe(const char* call, MPI_Comm comm, const int* flag, MPI_Status* status, Look look) {
  for (int looks = 1;; ++looks) {
    const SeenStatus seen(status);
    const std::uint64_t received = peer_received_rts();
    const int code = look(seen.get());
    if (code != MPI_SUCCESS || flag == nullptr || *flag == 0) return code;
    if (status == MPI_STATUS_IGNORE || seen.refused(MPI_SUCCESS)) return MPI_SUCCESS;
    Probed found = Probed::plain;
    const int failure = guarded(comm, call, [&] {
      found = peer_probed(comm, seen.get(), /*matched=*/false);
      return MPI_SUCCESS;
    });
    const bool gone = found == Probed::received || (found != Probed::plain && received != peer_received_rts());
    if (failure != MPI_SUCCESS || !gone || looks == most_looks) return failure;
  }
}

}  // namespace
}  // namespace gpudt::interpose

using namespace gpudt::interpose;

GPUDT_EXPORT int MPI_Mprobe(int source, int tag, MPI_Comm comm, MPI_Message* message, MPI_Status* status) {
  int found = 1;
  if (!peer_matching())
    return match_message("MPI_Mprobe", comm, &found, message, status, [&](MPI_Status* seen) {
      return look_until_found([&] { return PMPI_Mprobe(source, tag, comm, message, seen); },
                              [&](int* flag) { return PMPI_Improbe(source, tag, comm, flag, message, seen); });
    });
  // The lock is released between the attempts.
  int code = MPI_SUCCESS;
  wait_until([&] {
    found = -1;  // stays if MPI refuses, calls an error handler and returns MPI_SUCCESS
    code = match_message("MPI_Mprobe", comm, &found, message, status,
                         [&](MPI_Status* seen) { return PMPI_Improbe(source, tag, comm, &found, message, seen); });
    return code != MPI_SUCCESS || found != 0;
  });
  return code;
}

GPUDT_EXPORT int MPI_Improbe(int source, int tag, MPI_Comm comm, int* flag, MPI_Message* message, MPI_Status* status) {
  return match_message("MPI_Improbe", comm, flag, message, status, [&](MPI_Status* seen) {
    return look_once(flag, [&](int* found) { return PMPI_Improbe(source, tag, comm, found, message, seen); });
  });
}

GPUDT_EXPORT int MPI_Probe(int source, int tag, MPI_Comm comm, MPI_Status* status) {
  constexpr int found = 1;
  return probe("MPI_Probe", comm, &found, status, [&](MPI_Status* seen) {
    return look_until_found([&] { return PMPI_Probe(source, tag, comm, seen); },
                            [&](int* flag) { return PMPI_Iprobe(source, tag, comm, flag, seen); });
  });
}

GPUDT_EXPORT int MPI_Iprobe(int source, int tag, MPI_Comm comm, int* flag, MPI_Status* status) {
  return probe("MPI_Iprobe", comm, flag, status, [&](MPI_Status* seen) {
    return look_once(flag, [&](int* found) { return PMPI_Iprobe(source, tag, comm, found, seen); });
  });
}
