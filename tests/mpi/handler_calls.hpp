// Error handlers of the program's own, which remember how they were called.
#pragma once

#include <mpi.h>

#include <vector>

namespace gpudt::test {

void watch_errors(MPI_Comm comm);
void watch_errors(MPI_File file);
void return_errors(MPI_Comm comm);
void return_errors(MPI_File file);
std::vector<int> take_handler_calls();

/// Gives a communicator or a file a handler that remembers, and MPI_ERRORS_RETURN in the end. One at a time.
template <class Handle>
class HandlerCalls {
 public:
  explicit HandlerCalls(Handle handle) : handle_(handle) { watch_errors(handle); }
  ~HandlerCalls() { return_errors(handle_); }
  HandlerCalls(const HandlerCalls&) = delete;
  HandlerCalls& operator=(const HandlerCalls&) = delete;

  /// The error classes it was called with since the last time; -1 for a call with another handle.
  std::vector<int> take() { return take_handler_calls(); }

 private:
  Handle handle_;
};

}  // namespace gpudt::test
