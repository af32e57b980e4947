// The probes, and what MPI_Mprobe and MPI_Improbe have matched. A list: there are seldom more than a few such messages,
// and the last is mostly received first.
#include "interpose/requests/matched.hpp"

#include <algorithm>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "interpose/mpi/workarounds.hpp"
#include "interpose/support/export.hpp"
#include "interpose/transport/device_buffer.hpp"
#include "interpose/transport/peer/peer.hpp"

namespace gpudt::interpose {
namespace {

struct Matched {
  MPI_Message message;
  ErrorOwner owner;
};

std::mutex mutex;
std::vector<Matched> list;

int probed(const char* call, MPI_Comm comm, MPI_Status* status, bool matched) {
  return guarded(comm, call, [&] {
    peer_probed(comm, status, matched);
    return MPI_SUCCESS;
  });
}

bool is_message(MPI_Message message) {
  return message != MPI_MESSAGE_NULL && message != MPI_MESSAGE_NO_PROC;
}

}  // namespace

void matched_enter(MPI_Message message, const ErrorOwner& owner) noexcept {
  if (!is_message(message) || !active.load(std::memory_order_relaxed)) return;
  const std::lock_guard<std::mutex> lock(mutex);
  try {
    list.push_back({message, owner});
  } catch (const std::bad_alloc&) {
    // The message is the program's all the same; MPI_COMM_WORLD's handler would hear of its errors.
  }
}

ErrorOwner matched_take(MPI_Message message) {
  if (!is_message(message)) return {};
  const std::lock_guard<std::mutex> lock(mutex);
  const auto at =
      std::find_if(list.rbegin(), list.rend(), [=](const Matched& matched) { return matched.message == message; });
  if (at == list.rend()) return {};
  std::swap(*at, list.back());
  ErrorOwner owner = std::move(list.back().owner);
  list.pop_back();
  return owner;
}

void matched_forget_comm(MPI_Comm comm) {
  const std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<const KeptHandler> kept;
  for (Matched& matched : list) {
    if (matched.owner.comm != comm) continue;
    if (!kept) kept = std::make_shared<const KeptHandler>(comm);
    matched.owner.forget_comm(kept);
  }
}

void matched_stop() {
  const std::lock_guard<std::mutex> lock(mutex);
  list.clear();
}

}  // namespace gpudt::interpose

using namespace gpudt::interpose;

GPUDT_EXPORT int MPI_Mprobe(int source, int tag, MPI_Comm comm, MPI_Message* message, MPI_Status* status) {
  const int code = mprobe(source, tag, comm, message, status);
  if (code != MPI_SUCCESS) return code;
  matched_enter(*message, {.comm = comm});
  return probed("MPI_Mprobe", comm, status, /*matched=*/true);
}

GPUDT_EXPORT int MPI_Improbe(int source, int tag, MPI_Comm comm, int* flag, MPI_Message* message, MPI_Status* status) {
  const int code = improbe(source, tag, comm, flag, message, status);
  if (code != MPI_SUCCESS || *flag == 0) return code;
  matched_enter(*message, {.comm = comm});
  return probed("MPI_Improbe", comm, status, /*matched=*/true);
}

GPUDT_EXPORT int MPI_Probe(int source, int tag, MPI_Comm comm, MPI_Status* status) {
  const int code = probe(source, tag, comm, status);
  return code == MPI_SUCCESS ? probed("MPI_Probe", comm, status, /*matched=*/false) : code;
}

GPUDT_EXPORT int MPI_Iprobe(int source, int tag, MPI_Comm comm, int* flag, MPI_Status* status) {
  const int code = iprobe(source, tag, comm, flag, status);
  return code == MPI_SUCCESS && *flag != 0 ? probed("MPI_Iprobe", comm, status, /*matched=*/false) : code;
}
