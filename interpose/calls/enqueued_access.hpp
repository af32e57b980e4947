// What becomes of an access to a window in a stream.
#pragma once

#include <mpi.h>

#include "interpose/streams/enqueued_call.hpp"

namespace gpudt::interpose::enqueued {

/// Steps of an access to `rank` that is started by `start`. `lands`: it is over when its data are at the target, unless
/// MPI itself serves the window. Throws MpiError, or returns an error that MPI has reported, if `rank` is not locked.
int access_steps(int rank, MPI_Win win, bool lands, StartEnqueued start, Steps* steps);

}  // namespace gpudt::interpose::enqueued
