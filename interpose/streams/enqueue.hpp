// Enqueueing operations in the program's streams, and waiting for them there.
#pragma once

#include <mpi.h>

#include <memory>

#include "interpose/streams/enqueued_call.hpp"
#include "interpose/support/errors.hpp"

namespace gpudt::interpose {

/// The stream in which the process enqueues on a communicator or window. Throws MpiError if there is none.
std::shared_ptr<StreamComm> stream_of(MPI_Comm comm);
std::shared_ptr<StreamComm> stream_of(OfWindow window);

/// Enqueues an operation for which the stream waits. `status`: gets the outcome when the operation is complete. Returns
/// an MPI error code, of an earlier operation on `comm` if that has failed; then nothing is enqueued. Throws
/// device::Error, MpiError and std::bad_alloc.
int enqueue(const char* call, const std::shared_ptr<StreamComm>& comm, MPI_Status* status, Steps steps);
/// Enqueues an operation for which the stream waits only when enqueue_wait() is called with `*request`.
int enqueue_nonblocking(const char* call, const std::shared_ptr<StreamComm>& comm, MPI_Request* request, Steps steps);
/// Lets the streams of the requests wait for them, and sets them to MPI_REQUEST_NULL, but persistent ones to inactive.
/// `statuses`: one for each, or MPI_STATUSES_IGNORE.
int enqueue_wait(const char* call, int count, MPI_Request* requests, MPI_Status* statuses);

/// Lets enqueue_start() start `request`, a persistent request made on `comm`, by `steps`; does nothing if `comm` has no
/// stream. May throw std::bad_alloc.
void startable_add(MPI_Comm comm, MPI_Request request, Steps steps);
/// Whether there may be such requests. Costs one atomic load.
bool any_startables();
/// MPI has given the request another handle.
void startable_follow(MPI_Request before, MPI_Request now);
/// Reports MPI_ERR_REQUEST, which it returns, if `request` is active in a stream.
int startable_expect_inactive(const char* call, MPI_Request request);
/// To be called when the program frees the request. False if it was not added.
bool startable_forget(MPI_Request request);
/// Enqueues the start of persistent requests, for which their streams wait only when enqueue_wait() is called with
/// them.
int enqueue_start(const char* call, int count, const MPI_Request* requests);

/// Calls the error handler of the communicator or window for a failure that no call has returned. Returns it, or
/// MPI_SUCCESS. `comm` may be null.
int return_late_failure(StreamComm* comm);
/// To be called first in MPI_Finalize: waits for what is enqueued, reports what has failed or does not complete, and
/// ends the thread.
void streams_stop();

}  // namespace gpudt::interpose
