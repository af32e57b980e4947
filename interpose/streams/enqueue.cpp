#include "interpose/streams/enqueue.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
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

constexpr std::chrono::milliseconds longest_release{100};  ///< until the thread knows that a graph is gone

/// Whether it is of a graph that is gone, of which no launch is under way.
bool is_given_up(const EnqueuedCall& call) {
  return call.forgotten.load(std::memory_order_acquire);
}

/// is_given_up(), which comes a moment after the program has destroyed the graph.
bool is_soon_given_up(const EnqueuedCall& call) {
  const auto until = std::chrono::steady_clock::now() + longest_release;
  while (!is_given_up(call)) {
    if (!call.in_graph || std::chrono::steady_clock::now() > until) return false;
    std::this_thread::yield();
  }
  return true;
}

/// A persistent request made on a communicator with a stream.
struct Startable {
  Startable(std::shared_ptr<StreamComm> its_comm, Steps its_steps)
      : comm(std::move(its_comm)), steps(std::move(its_steps)) {}
  const std::shared_ptr<StreamComm> comm;
  const Steps steps;
  CallOwner call;  ///< while it is active in the stream
};

/// The calls of the requests that the program holds, each of which is a generalized request that shares its call; and
/// the persistent requests.
struct Requests {
  Mutex mutex;
  std::unordered_map<MPI_Request, EnqueuedCall*> calls GUARDED_BY(mutex);
  std::unordered_map<MPI_Request, std::shared_ptr<Startable>> startables GUARDED_BY(mutex);
  std::atomic<std::size_t> startable_count{0};  ///< changed with the mutex
};
auto& requests_held = never_destroyed<Requests>();

EnqueuedCall* find_call(MPI_Request request) {
  const LockGuard lock(requests_held.mutex);
  const auto at = requests_held.calls.find(request);
  return at == requests_held.calls.end() ? nullptr : at->second;
}

std::shared_ptr<Startable> find_startable(MPI_Request request) {
  if (!any_startables()) return nullptr;
  const LockGuard lock(requests_held.mutex);
  const auto at = requests_held.startables.find(request);
  return at == requests_held.startables.end() ? nullptr : at->second;
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

/// The operation for which a persistent request is active in its stream, or null. Of a capture that the program has
/// given up nothing remains.
EnqueuedCall* active_call(const Startable& of) {
  EnqueuedCall* const call = of.call.get();
  return call == nullptr || is_given_up(*call) ? nullptr : call;
}

/// Throws MpiError.
void expect_inactive(const Startable& of) {
  const EnqueuedCall* const call = active_call(of);
  if (call != nullptr && !is_soon_given_up(*call))
    throw MpiError(MPI_ERR_REQUEST, "the persistent request is active in its stream");
}

/// Runs `put(call)`, which enqueues a new call, unless an earlier operation on the communicator has failed.
template <class Put>
int enqueueing(const char* name, const std::shared_ptr<StreamComm>& comm, Steps steps, Put put) {
  if (const int failure = return_late_failure(comm.get()); failure != MPI_SUCCESS) return failure;
  CallOwner made(new EnqueuedCall(name, comm, std::move(steps)));
  put(made);
  service_wake();
  return MPI_SUCCESS;
}

}  // namespace

std::shared_ptr<StreamComm> stream_of(MPI_Comm comm) {
  std::shared_ptr<StreamComm> found = find_stream_comm(comm);
  if (!found)
    throw MpiError(MPI_ERR_COMM, "the communicator has no stream: make one that has by MPIX_Stream_comm_create");
  return found;
}

std::shared_ptr<StreamComm> stream_of(OfWindow window) {
  std::shared_ptr<StreamComm> found = find_stream_comm(window);
  if (!found)
    throw MpiError(MPI_ERR_WIN, "the window has no stream: make it on a communicator of MPIX_Stream_comm_create");
  return found;
}

int enqueue(const char* call, const std::shared_ptr<StreamComm>& comm, MPI_Status* status, Steps steps) {
  return enqueueing(call, comm, std::move(steps), [&](const CallOwner& made) {
    made->status = status;
    comm->stream->enqueue(made.get(), /*waits=*/true);
  });
}

int enqueue_nonblocking(const char* call, const std::shared_ptr<StreamComm>& comm, MPI_Request* request, Steps steps) {
  return enqueueing(call, comm, std::move(steps), [&](const CallOwner& made) {
    make_request(made.get());
    try {
      comm->stream->enqueue(made.get(), /*waits=*/false);
    } catch (const std::exception&) {
      drop_request(made.get());
      throw;
    }
    *request = made->request;
  });
}

// --- persistent requests ---------------------------------------------------------------------------------------------

void startable_add(MPI_Comm comm, MPI_Request request, Steps steps) {
  const std::shared_ptr<StreamComm> found = find_stream_comm(comm);
  if (!found) return;
  auto made = std::make_shared<Startable>(found, std::move(steps));
  const LockGuard lock(requests_held.mutex);
  requests_held.startables.insert_or_assign(request, std::move(made));
  requests_held.startable_count.store(requests_held.startables.size(), std::memory_order_release);
}

bool any_startables() {
  return requests_held.startable_count.load(std::memory_order_acquire) != 0;
}

void startable_follow(MPI_Request before, MPI_Request now) {
  if (before == now || !any_startables()) return;
  const LockGuard lock(requests_held.mutex);
  auto found = requests_held.startables.extract(before);
  if (found.empty()) return;
  found.key() = now;
  requests_held.startables.insert(std::move(found));
}

int startable_expect_inactive(const char* call, MPI_Request request) {
  const std::shared_ptr<Startable> found = find_startable(request);
  if (!found) return MPI_SUCCESS;
  return guarded(MPI_COMM_NULL, call, [&] {
    expect_inactive(*found);
    return int(MPI_SUCCESS);
  });
}

bool startable_forget(MPI_Request request) {
  const std::shared_ptr<Startable> found = find_startable(request);  // outlives the mutex
  if (!found) return false;
  const LockGuard lock(requests_held.mutex);
  requests_held.startables.erase(request);
  requests_held.startable_count.store(requests_held.startables.size(), std::memory_order_release);
  return true;
}

namespace {

int start(const char* call, MPI_Request request) {
  const std::shared_ptr<Startable> found = find_startable(request);
  const bool has_comm = found && find_stream_comm(found->comm->comm) == found->comm;
  return guarded(has_comm ? found->comm->comm : MPI_COMM_NULL, call, [&] {
    if (!found)
      throw MpiError(MPI_ERR_REQUEST, "it is no persistent request made on a communicator of MPIX_Stream_comm_create");
    if (!has_comm) throw MpiError(MPI_ERR_COMM, "the communicator of the persistent request has been freed");
    expect_inactive(*found);
    return enqueueing(call, found->comm, found->steps, [&](CallOwner& made) {
      found->comm->stream->enqueue(made.get(), /*waits=*/false);
      found->call = std::move(made);
    });
  });
}

/// Throws MpiError.
int check_requests(int count, const MPI_Request* requests) {
  if (count < 0) throw MpiError(MPI_ERR_COUNT, "the count is negative");
  if (count > 0 && requests == nullptr) throw MpiError(MPI_ERR_REQUEST, "there are no requests");
  return MPI_SUCCESS;
}

}  // namespace

int enqueue_start(const char* call, int count, const MPI_Request* requests) {
  if (const int code = guarded(MPI_COMM_NULL, call, [&] { return check_requests(count, requests); })) return code;
  for (int i = 0; i < count; ++i)
    if (const int code = start(call, requests[i])) return code;
  return MPI_SUCCESS;
}

// --- waiting ---------------------------------------------------------------------------------------------------------

namespace {

/// An operation that MPIX_Waitall_enqueue waits for.
struct Waited {
  int index;  ///< of its request
  EnqueuedCall* call;
  std::shared_ptr<Startable> persistent;  ///< null if the request is not
};

/// The operations of the requests, without requests that are null or inactive. Throws MpiError unless all belong to one
/// stream.
std::vector<Waited> waited_of(int count, const MPI_Request* requests) {
  std::vector<Waited> all;
  all.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    if (requests[i] == MPI_REQUEST_NULL) continue;
    std::shared_ptr<Startable> persistent = find_startable(requests[i]);
    EnqueuedCall* const call = persistent ? active_call(*persistent) : find_call(requests[i]);
    if (persistent && call == nullptr) continue;
    if (call == nullptr)
      throw MpiError(MPI_ERR_REQUEST, "request " + std::to_string(i) + " is not of an operation that was enqueued");
    if (!all.empty() && call->comm->stream != all.front().call->comm->stream)
      throw MpiError(MPI_ERR_REQUEST, "the requests are of operations in several streams");
    all.push_back({i, call, std::move(persistent)});
  }
  return all;
}

/// Whether the stream is to wait for the call: not if its capture was given up. Throws MpiError for a call outside of
/// the graph under capture, which would wait for it in its first launch alone, and for one in a graph that may be gone
/// before the stream gets there.
bool is_waited_for(const EnqueuedCall& call, bool captured) {
  if (captured && (!call.in_graph || is_given_up(call)))
    throw MpiError(MPI_ERR_REQUEST, "the operation was enqueued before the capture of the stream began");
  if (captured || !call.in_graph) return true;
  if (is_soon_given_up(call)) return false;
  throw MpiError(MPI_ERR_REQUEST, "the operation is part of a graph: wait for it in the same capture");
}

void deliver_to(EnqueuedCall* call, MPI_Status* status) {
  const LockGuard lock(outcome_mutex());
  call->status = status;
  if (call->complete && status != MPI_STATUS_IGNORE) *status = call->outcome;
}

}  // namespace

int enqueue_wait(const char* call, int count, MPI_Request* requests, MPI_Status* statuses) {
  return guarded(MPI_COMM_NULL, call, [&] {
    check_requests(count, requests);
    const std::vector<Waited> all = waited_of(count, requests);
    if (!all.empty()) {
      ProgramStream& stream = *all.front().call->comm->stream;
      const bool captured = stream.is_captured();
      std::vector<EnqueuedCall*> calls;
      calls.reserve(all.size());
      for (const Waited& each : all)
        if (is_waited_for(*each.call, captured)) calls.push_back(each.call);
      stream.wait_for(calls);
    }
    if (statuses != MPI_STATUSES_IGNORE) std::fill_n(statuses, count, empty_status());
    for (const Waited& each : all) {
      if (statuses != MPI_STATUSES_IGNORE) deliver_to(each.call, statuses + each.index);
      if (each.persistent) {
        each.persistent->call.reset();
      } else {
        drop_request(each.call);
        requests[each.index] = MPI_REQUEST_NULL;
      }
    }
    return int(MPI_SUCCESS);
  });
}

int return_late_failure(StreamComm* comm) {
  if (comm == nullptr || comm->failure.load(std::memory_order_relaxed) == MPI_SUCCESS) return MPI_SUCCESS;
  const int failure = comm->failure.exchange(MPI_SUCCESS);
  return raise(ErrorOwner{.comm = comm->comm, .win = comm->win}, failure);
}

void streams_stop() {
  const std::string left = service_stop();
  for (const auto& each : stream_comms()) return_late_failure(each.get());
  if (left.empty()) return;
  log_failure("MPI_Finalize", left);
  raise(MPI_COMM_WORLD, MPI_ERR_PENDING);
}

}  // namespace gpudt::interpose
