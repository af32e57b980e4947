// The thread of the library that carries out enqueued operations. It starts an operation, by the library's nonblocking
// functions, when its stream has come to it, and opens its gate when it is complete. It never blocks in one, so that no
// stream waits for another. It sleeps while nothing is enqueued.
//
// Messages begin early, so that they are matched when their streams come to them: the data are not touched before that
// (support/early_start.hpp). They begin in the order in which they were enqueued, after all that was enqueued before.
// What cannot wait like this begins when the stream comes to it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "interpose/streams/enqueued_call.hpp"

namespace gpudt::interpose {

/// The library's own functions of these names, as MPI's are declared.
struct RequestCalls {
  int (*testsome)(int, MPI_Request*, int*, int*, MPI_Status*);
  int (*cancel)(MPI_Request*);
  int (*free)(MPI_Request*);
};

/// The status of an operation that has received nothing.
MPI_Status empty_status();

/// Starts the thread, unless it runs, and lets it look at the stream. Throws std::system_error.
void service_add(std::shared_ptr<ProgramStream> stream, const RequestCalls& calls);
/// Numbers a call and counts it among those that live.
void service_counts(EnqueuedCall& call);
/// To be called when there is something new for the thread.
void service_wake();
/// Waits until calls that streams have come to are complete, except those that wait for messages which do not come, and
/// ends the thread. Returns what has not completed, for a message; empty: nothing. To be called in MPI_Finalize.
std::string service_stop();

/// Whether calls are enqueued that may use the program's handles. Costs one atomic load.
bool enqueued_calls_live();
/// Lets the thread call `free` when the calls that are enqueued now are over. May throw std::bad_alloc.
void free_after_enqueued(std::function<void()> free);

}  // namespace gpudt::interpose
