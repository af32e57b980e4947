// One operation that the program has enqueued in a stream: from the call that enqueues it until it is complete or, in a
// graph, until the graph is gone.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "base/recycled.hpp"
#include "device/device.hpp"

namespace gpudt::interpose {

class ProgramStream;

/// Starts the operation, with copies of the program's arguments. Makes a request, or MPI_REQUEST_NULL if the operation
/// is complete. Returns an MPI error code. It is called each time that the stream comes to the operation.
using StartEnqueued = std::function<int(MPI_Request*)>;

/// What the operation is.
struct Steps {
  StartEnqueued start;
  StartEnqueued then{};     ///< started when the former is complete; may be empty
  bool is_message = false;  ///< a send or a receive, which may be started early (EarlyStart)
  bool persistent = false;  ///< the request of `start` is the program's, which outlives the operation
};

/// A communicator on which this process enqueues, or a window made on one: the other handle is null.
struct StreamComm {
  StreamComm(MPI_Comm its_comm, MPI_Win its_window, std::shared_ptr<ProgramStream> its_stream)
      : comm(its_comm), win(its_window), stream(std::move(its_stream)) {}
  const MPI_Comm comm;
  const MPI_Win win;
  const std::shared_ptr<ProgramStream> stream;
  /// A failure that no call has returned yet; MPI_SUCCESS: none. The first one stays.
  std::atomic<int> failure{MPI_SUCCESS};
  /// Those that are enqueued and not complete, outside of graphs.
  std::atomic<int> calls{0};
};

/// Shared by the thread that carries it out, by the request that the program may hold, and by graphs.
struct EnqueuedCall : Recycled<EnqueuedCall> {
  EnqueuedCall(const char* its_name, std::shared_ptr<StreamComm> its_comm, Steps its_steps)
      : name(its_name), comm(std::move(its_comm)), steps(std::move(its_steps)) {}
  ~EnqueuedCall() {
    if (gate != nullptr) device::give_gate(gate, in_graph);
  }
  EnqueuedCall(const EnqueuedCall&) = delete;
  EnqueuedCall& operator=(const EnqueuedCall&) = delete;

  const char* const name;
  const std::shared_ptr<StreamComm> comm;
  const Steps steps;
  device::Gate* gate = nullptr;
  std::uint32_t passage = 0;  ///< the number by which the stream tells of it, and passes
  bool in_graph = false;
  std::uint64_t number = 0;               ///< in the order of calls that enqueue
  std::atomic<int> graphs{0};             ///< that may still come to the gate
  std::atomic<bool> forgotten{false};     ///< by the thread, since its graphs are gone
  bool under_way = false;                 ///< only for the thread
  bool is_early = false;                  ///< under way, but the stream has not come to it; only for the thread
  bool waits_for_stream = false;          ///< it cannot be started early; only for the thread
  EnqueuedCall* next_incoming = nullptr;  ///< of those that the thread has not taken yet

  // The program's request (calls that complete later), and where the outcome goes: guarded by outcome_mutex().
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Status* status = MPI_STATUS_IGNORE;
  MPI_Status outcome{};
  bool complete = false;  ///< for the first time
  bool request_completed = false;

  void retain() { references_.fetch_add(1, std::memory_order_relaxed); }
  void release() {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

 private:
  std::atomic<int> references_{1};
};

}  // namespace gpudt::interpose
