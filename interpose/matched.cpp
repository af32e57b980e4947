// MPI_Mprobe and MPI_Improbe, and what they have matched. A list: there are seldom more than a few such messages, and
// the last is mostly received first.
#include "interpose/matched.hpp"

#include <algorithm>
#include <mutex>
#include <new>
#include <vector>

#include "interpose/export.hpp"
#include "interpose/operand.hpp"

namespace gpudt::interpose {
namespace {

struct Matched {
  MPI_Message message;
  MPI_Comm comm;
};

std::mutex mutex;
std::vector<Matched> list;

bool is_message(MPI_Message message) {
  return message != MPI_MESSAGE_NULL && message != MPI_MESSAGE_NO_PROC;
}

}  // namespace

void matched_enter(MPI_Message message, MPI_Comm comm) noexcept {
  if (!is_message(message) || comm == MPI_COMM_NULL || !active.load(std::memory_order_relaxed)) return;
  const std::lock_guard<std::mutex> lock(mutex);
  try {
    list.push_back({message, comm});
  } catch (const std::bad_alloc&) {
    // The message is the program's all the same; MPI_COMM_WORLD's handler would hear of its errors.
  }
}

MPI_Comm matched_take(MPI_Message message) {
  if (!is_message(message)) return MPI_COMM_NULL;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto at =
      std::find_if(list.rbegin(), list.rend(), [=](const Matched& matched) { return matched.message == message; });
  if (at == list.rend()) return MPI_COMM_NULL;
  const MPI_Comm comm = at->comm;
  *at = list.back();
  list.pop_back();
  return comm;
}

void matched_forget_comm(MPI_Comm comm) {
  const std::lock_guard<std::mutex> lock(mutex);
  for (Matched& matched : list)
    if (matched.comm == comm) matched.comm = MPI_COMM_NULL;
}

}  // namespace gpudt::interpose

using namespace gpudt::interpose;

GPUDT_EXPORT int MPI_Mprobe(int source, int tag, MPI_Comm comm, MPI_Message* message, MPI_Status* status) {
  const int code = PMPI_Mprobe(source, tag, comm, message, status);
  if (code == MPI_SUCCESS) matched_enter(*message, comm);
  return code;
}

GPUDT_EXPORT int MPI_Improbe(int source, int tag, MPI_Comm comm, int* flag, MPI_Message* message, MPI_Status* status) {
  const int code = PMPI_Improbe(source, tag, comm, flag, message, status);
  if (code == MPI_SUCCESS && *flag != 0) matched_enter(*message, comm);
  return code;
}
