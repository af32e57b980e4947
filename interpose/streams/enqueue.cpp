#include "interpose/streams/enqueue.hpp"

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/never_destroyed.hpp"
#include "interpose/streams/program_stream.hpp"
#include "interpose/streams/service.hpp"
#include "interpose/support/errors.hpp"

namespace gpudt::interpose {
namespace {

struct CallRelease {
  void operator()(EnqueuedCall* call) const { call->release(); }
};
using CallOwner = std::unique_ptr<EnqueuedCall, CallRelease>;

/// The calls of the requests that the program holds, each of which is a generalized request that shares its call.
struct Requests {
  Mutex mutex;
  std::unordered_map<MPI_Request, EnqueuedCall*> calls GUARDED_BY(mutex);
};
auto& requests_held = never_destroyed<Requests>();

EnqueuedCall* find_call(MPI_Request request) {
  const LockGuard lock(requests_held.mutex);
  const auto at = requests_held.calls.find(request);
  return at == requests_held.calls.end() ? nullptr : at->second;
}

int query(void* extra, MPI_Status* status) {
  const LockGuard lock(outcome_mutex());
  const MPI_Status& outcome = static_cast<EnqueuedCall*>(extra)->outcome;
  *status = outcome;
  return MPI_SUCCESS;  // a failure goes to the communicator's error handler
}

/// MPICH holds its locks here.
int free_request(void* extra) {
  auto* const call = static_cast<EnqueuedCall*>(extra);
  {
    const LockGuard lock(requests_held.mutex);
    requests_held.calls.erase(call->request);
  }
  call->release();
  return MPI_SUCCESS;
}

int cancel_request(void*, int) {
  return MPI_SUCCESS;
}

/// Makes the program's request. Throws std::bad_alloc and MpiError.
void make_request(EnqueuedCall* call) {
  call->retain();
  if (PMPI_Grequest_start(query, free_request, cancel_request, call, &call->request) != MPI_SUCCESS) {
    call->release();
    throw MpiError(MPI_ERR_OTHER, "MPI makes no request");
  }
  const LockGuard lock(requests_held.mutex);
  requests_held.calls.emplace(call->request, call);
}

/// Takes the request from the program, which shares the call no more.
void drop_request(EnqueuedCall* call) {
  bool completes = false;
  {
    const LockGuard lock(outcome_mutex());
    completes = !std::exchange(call->request_completed, true);
  }
  MPI_Request request = call->request;
  if (completes) PMPI_Grequest_complete(request);
  PMPI_Request_free(&request);
}

std::shared_ptr<StreamComm> stream_comm(MPI_Comm comm) {
  std::shared_ptr<StreamComm> found = find_stream_comm(comm);
  if (!found || !found->stream)
    throw MpiError(MPI_ERR_COMM, "the communicator has no stream: make one that has by MPIX_Stream_comm_create");
  return found;
}

int take_failure(StreamComm& comm) {
  if (comm.failure.load(std::memory_order_relaxed) == MPI_SUCCESS) return MPI_SUCCESS;
  return comm.failure.exchange(MPI_SUCCESS);
}

/// Runs `body(comm)`, unless an earlier operation on the communicator has failed.
template <class Body>
int enqueueing(const char* call, MPI_Comm comm, Body body) {
  return guarded(comm, call, [&] {
    const std::shared_ptr<StreamComm> of = stream_comm(comm);
    if (const int failure = take_failure(*of); failure != MPI_SUCCESS) return raise(comm, failure);
    body(of);
    service_wake();
    return int(MPI_SUCCESS);
  });
}

}  // namespace

int enqueue(const char* call, MPI_Comm comm, MPI_Status* status, StartEnqueued start) {
  return enqueueing(call, comm, [&](const std::shared_ptr<StreamComm>& of) {
    const CallOwner made(new EnqueuedCall(call, of, std::move(start)));
    made->status = status;
    of->stream->enqueue(made.get(), /*waits=*/true);
  });
}

int enqueue_nonblocking(const char* call, MPI_Comm comm, MPI_Request* request, StartEnqueued start) {
  return enqueueing(call, comm, [&](const std::shared_ptr<StreamComm>& of) {
    const CallOwner made(new EnqueuedCall(call, of, std::move(start)));
    make_request(made.get());
    try {
      of->stream->enqueue(made.get(), /*waits=*/false);
    } catch (const std::exception&) {
      drop_request(made.get());
      throw;
    }
    *request = made->request;
  });
}

namespace {

/// The calls of the requests, without those that are null. Throws MpiError unless all belong to one stream.
std::vector<EnqueuedCall*> calls_of(int count, const MPI_Request* requests) {
  std::vector<EnqueuedCall*> calls;
  calls.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    if (requests[i] == MPI_REQUEST_NULL) continue;
    EnqueuedCall* const call = find_call(requests[i]);
    if (call == nullptr)
      throw MpiError(MPI_ERR_REQUEST, "request " + std::to_string(i) + " is not of an operation that was enqueued");
    if (!calls.empty() && call->comm->stream != calls.front()->comm->stream)
      throw MpiError(MPI_ERR_REQUEST, "the requests are of operations in several streams");
    calls.push_back(call);
  }
  return calls;
}

/// A graph would wait for such a call only when it is launched for the first time.
void check_capture(const std::vector<EnqueuedCall*>& calls, bool captured) {
  for (const EnqueuedCall* const call : calls)
    if (captured && !call->in_graph)
      throw MpiError(MPI_ERR_REQUEST, "the operation was enqueued before the capture of the stream began");
}

void deliver_to(EnqueuedCall* call, MPI_Status* status) {
  const LockGuard lock(outcome_mutex());
  call->status = status;
  if (call->complete && status != MPI_STATUS_IGNORE) *status = call->outcome;
}

}  // namespace

int enqueue_wait(const char* call, int count, MPI_Request* requests, MPI_Status* statuses) {
  return guarded(MPI_COMM_NULL, call, [&] {
    if (count < 0 || (count > 0 && requests == nullptr)) throw MpiError(MPI_ERR_REQUEST, "there are no requests");
    const std::vector<EnqueuedCall*> calls = calls_of(count, requests);
    if (calls.empty()) return int(MPI_SUCCESS);
    ProgramStream& stream = *calls.front()->comm->stream;
    check_capture(calls, stream.is_captured());
    stream.wait_for(calls);
    for (int i = 0, next = 0; i < count; ++i) {
      if (requests[i] == MPI_REQUEST_NULL) continue;
      EnqueuedCall* const waited = calls[static_cast<std::size_t>(next++)];
      if (statuses != MPI_STATUSES_IGNORE) deliver_to(waited, statuses + i);
      drop_request(waited);
      requests[i] = MPI_REQUEST_NULL;
    }
    return int(MPI_SUCCESS);
  });
}

int return_late_failure(MPI_Comm comm) {
  const std::shared_ptr<StreamComm> found = find_stream_comm(comm);
  const int failure = found ? take_failure(*found) : MPI_SUCCESS;
  return failure == MPI_SUCCESS ? failure : raise(comm, failure);
}

void streams_stop() {
  const std::string left = service_stop();
  for (const auto& each : stream_comms()) return_late_failure(each->comm);
  if (left.empty()) return;
  log_failure("MPI_Finalize", left);
  raise(MPI_COMM_WORLD, MPI_ERR_PENDING);
}

}  // namespace gpudt::interpose
