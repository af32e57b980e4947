// Enqueueing operations in the program's streams, and waiting for them there.
#pragma once

#include <mpi.h>

#include "interpose/streams/enqueued_call.hpp"

namespace gpudt::interpose {

/// Enqueues an operation for which the stream waits. `status`: gets the outcome when the operation is complete. Returns
/// an MPI error code, of an earlier operation on `comm` if that has failed; then nothing is enqueued.
int enqueue(const char* call, MPI_Comm comm, MPI_Status* status, StartEnqueued start);
/// Enqueues an operation for which the stream waits only when enqueue_wait() is called with `*request`.
int enqueue_nonblocking(const char* call, MPI_Comm comm, MPI_Request* request, StartEnqueued start);
/// Lets the stream of the requests wait for them, and sets them to MPI_REQUEST_NULL. `statuses`: one for each, or
/// MPI_STATUSES_IGNORE.
int enqueue_wait(const char* call, int count, MPI_Request* requests, MPI_Status* statuses);

/// Calls the error handler of `comm` for a failure that no call has returned. Returns it, or MPI_SUCCESS.
int return_late_failure(MPI_Comm comm);
/// To be called first in MPI_Finalize: waits for what is enqueued, reports what has failed or does not complete, and
/// ends the thread.
void streams_stop();

}  // namespace gpudt::interpose
