// Communicators on which errors are expected.
#pragma once

#include <mpi.h>

#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/mpi_harness.hpp"
#include "tests/support/mpi_quirks.hpp"

namespace gpudt::test {

/// Errors on the communicator go to this function from now on.
inline void set_handler(MPI_Comm comm, MPI_Comm_errhandler_function* function) {
  MPI_Errhandler handler = MPI_ERRHANDLER_NULL;
  PMPI_Comm_create_errhandler(function, &handler);
  PMPI_Comm_set_errhandler(comm, handler);
  PMPI_Errhandler_free(&handler);
}

struct HandlerCall {
  MPI_Comm comm;
  int error_class;
};
inline std::vector<HandlerCall> handler_calls;

// The standard's signature has further, unspecified arguments.
inline void remember_call(MPI_Comm* comm, int* code, ...) {
  handler_calls.push_back({*comm, error_class(*code)});
}

/// A duplicate of comm() with a handler of the program's own, or with MPI_ERRORS_RETURN.
class ErrorComm {
 public:
  explicit ErrorComm(bool own_handler) : own_handler_(own_handler) {
    MPI_Comm_dup(comm(), &comm_);
    if (own_handler) set_handler(comm_, remember_call);
    handler_calls.clear();
  }
  ~ErrorComm() { PMPI_Comm_free(&comm_); }
  ErrorComm(const ErrorComm&) = delete;
  ErrorComm& operator=(const ErrorComm&) = delete;
  operator MPI_Comm() const { return comm_; }  // NOLINT(google-explicit-constructor): stands in for the handle

  /// The handler has been called once since the last check, with this communicator and an error of this class (or
  /// of the other). `of_request`: it comes from a request or a matched message.
  void check_called(int wanted, int or_else = MPI_SUCCESS, bool of_request = false) {
    if (own_handler_ && (requests_have_handlers || !of_request)) {
      CHECK(handler_calls.size() == 1);
      for (const HandlerCall& call : handler_calls) {
        CHECK(call.comm == comm_);
        CHECK((call.error_class == wanted || call.error_class == or_else));
      }
    }
    handler_calls.clear();
  }

 private:
  bool own_handler_;
  MPI_Comm comm_ = MPI_COMM_NULL;
};

}  // namespace gpudt::test
