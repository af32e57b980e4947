// Errors of the library are MPI errors: they go to the error handler of the communicator, window or file, with the
// class that fits.
#pragma once

#include <mpi.h>

#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/exception.hpp"
#include "interpose/support/log.hpp"
#include "interpose/support/nvtx.hpp"
#include "interpose/support/require.hpp"

namespace gpudt::interpose {

/// A failure of MPI or of another process, or a call that cannot be done.
class MpiError : public Exception {
 public:
  MpiError(int error_class, const std::string& what) : Exception(what), error_class_(error_class) {}
  int error_class() const { return error_class_; }

 private:
  int error_class_;
};

/// Whether this library has thrown the exception. Exceptions of the program's callbacks (error handlers, operators,
/// copy functions of attributes) pass through; they may be of a type of the same name.
bool is_own(const std::exception& error);

/// The class of the MPI error that an exception becomes; MPI_ERR_INTERN for an unexpected one.
int error_class(const std::exception& error);

/// Selects the error handler of a window: in MPICH all handles except files have one type.
struct OfWindow {
  MPI_Win win;
};

/// While it lives, raise() calls no handler in this thread, requests are tested by test_some(), and no access to a
/// window waits for a lock.
class HandlersSilent {
 public:
  explicit HandlersSilent(bool silent = true);
  ~HandlersSilent();
  HandlersSilent(const HandlersSilent&) = delete;
  HandlersSilent& operator=(const HandlersSilent&) = delete;

 private:
  bool before_;
};
bool handlers_are_silent();
/// Counts the errors for which raise() has called no handler in this thread.
unsigned errors_silenced();

/// Calls the error handler of `comm` (of MPI_COMM_WORLD for MPI_COMM_NULL; without MPI_Init MPI_ERRORS_ARE_FATAL) with
/// `code` and returns `code`, if the handler returns.
int raise(MPI_Comm comm, int code);
int raise(OfWindow window, int code);
int raise(MPI_File file, int code);

/// Makes a communicator of all processes of `comm`, an intracommunicator. It has no attributes: a duplicate would call
/// the copy callbacks of the program's attributes. To be called in a call that is collective over `comm`. The caller
/// frees it.
MPI_Comm bare_copy(MPI_Comm comm);
/// Makes a communicator of only this process, at any time. Simultaneous calls need different tags (0 to 32767). The
/// caller frees it.
MPI_Comm bare_self(int tag);

/// Keeps the error handler of a communicator that is about to be freed.
class KeptHandler {
 public:
  KeptHandler() : handler_(MPI_ERRORS_ARE_FATAL) {}
  explicit KeptHandler(MPI_Comm comm) { PMPI_Comm_get_errhandler(comm, &handler_); }
  ~KeptHandler() {
    if (handler_ != MPI_ERRORS_ARE_FATAL) PMPI_Errhandler_free(&handler_);
  }
  KeptHandler(const KeptHandler&) = delete;
  KeptHandler& operator=(const KeptHandler&) = delete;
  /// Calls the handler with a temporary communicator. Returns `code`, if the handler returns.
  int raise(int code) const;

 private:
  MPI_Errhandler handler_ = MPI_ERRHANDLER_NULL;
};

/// Determines the error handler for a failed operation: that of the handle that is not null, or else
/// the kept handler, or else that of MPI_COMM_WORLD.
struct ErrorOwner {
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_File file = MPI_FILE_NULL;
  MPI_Win win = MPI_WIN_NULL;
  std::shared_ptr<const KeptHandler> kept{};

  /// To be called before the communicator's handle becomes invalid: the handler replaces it.
  void forget_comm(std::shared_ptr<const KeptHandler> handler) {
    comm = MPI_COMM_NULL;
    kept = std::move(handler);
  }
};
int raise(const ErrorOwner& owner, int code);

/// Logs `what`, naming the MPI call and its argument, and raises `code`. Allocates no memory.
template <class Handle>
int fail(const Handle& handle, const char* call, int code, std::string_view what) {
  log_failure(call, what);
  return raise(handle, code);
}

/// To be called in the catch block for `error`. Logs it and returns its class; rethrows an exception of the program.
int log_own(const char* call, const std::exception& error);

/// Runs `body`, which returns an error code. An exception of this library becomes an MPI error on `handle`; the error
/// handler is called when all objects of `body` are destroyed. Exceptions of the program pass, as does the end of the
/// thread (pthread_cancel, pthread_exit).
template <class Handle, class Body>
int raising(const Handle& handle, const char* call, Body&& body) {
  int failure = MPI_SUCCESS;
  try {
    return body();
  } catch (const std::exception& error) {
    failure = log_own(call, error);
  }
  return raise(handle, failure);
}

/// raising() for the body of an MPI function, which also gets an NVTX range, and fails if GPUDT_REQUIRE forbids the way
/// that data have gone.
template <class Handle, class Body>
int guarded(const Handle& handle, const char* call, Body&& body) {
  int shortfall = MPI_SUCCESS;
  const auto run = [&]() -> int {  // MPI_SUCCESS may be an enumerator: of MPI-5's ABI it is
    const NvtxCall range(call);
    if (!require_wanted) return body();
    const Shortfalls found;  // ends before an error handler is called, which may not return
    const int code = body();
    if (code == MPI_SUCCESS) shortfall = found.end_call();
    return code;
  };
  const int code = raising(handle, call, run);
  return shortfall == MPI_SUCCESS ? code : raise(handle, shortfall);
}

}  // namespace gpudt::interpose
