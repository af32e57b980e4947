// Errors are MPI errors: they go to the error handler of the communicator or window, with the right class.
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

namespace gpudt::interpose {

/// What MPI, or another process, has failed with, or a call that cannot be carried out.
class MpiError : public Exception {
 public:
  MpiError(int error_class, const std::string& what) : Exception(what), error_class_(error_class) {}
  int error_class() const { return error_class_; }

 private:
  int error_class_;
};

/// Whether this library has thrown it, and not the program, in a callback of its own (an error handler, an operator, an
/// attribute's copy function): that passes through. It may be of a type of the same name.
bool is_own(const std::exception& error);

/// The class of the MPI error that an exception becomes; MPI_ERR_INTERN for what should not have been thrown.
int error_class(const std::exception& error);

/// A window as the one whose error handler is meant: in MPICH all handles but files are of one type.
struct OfWindow {
  MPI_Win win;
};

/// Calls the error handler of `comm` (of MPI_COMM_WORLD for MPI_COMM_NULL; without MPI_Init one that ends the program)
/// with `code` and returns `code`, if the handler returns.
int raise(MPI_Comm comm, int code);
int raise(OfWindow window, int code);
int raise(MPI_File file, int code);

/// A communicator of all processes of `comm`, an intracommunicator, without the program's attributes, whose copy
/// callbacks a duplicate would call. To be called within a call that is collective over `comm`. The caller frees it.
MPI_Comm bare_copy(MPI_Comm comm);
/// One of this process alone, at any time; of two calls at a time each has another `tag` (0 to 32767). The caller frees
/// it.
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
  /// Calls it with a communicator made for the purpose. Returns `code`, if the handler returns.
  int raise(int code) const;

 private:
  MPI_Errhandler handler_ = MPI_ERRHANDLER_NULL;
};

/// Whose error handler is to hear of an operation's failure: the handle that is not null; with none, the handler kept,
/// or that of MPI_COMM_WORLD.
struct ErrorOwner {
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_File file = MPI_FILE_NULL;
  MPI_Win win = MPI_WIN_NULL;
  std::shared_ptr<const KeptHandler> kept{};

  /// The communicator's handle is about to become invalid: its handler stands for it.
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

/// To be called where `error` has been caught. Logs it, and returns its class; what the program has thrown is thrown
/// again.
int log_own(const char* call, const std::exception& error);

/// Runs `body`, which returns an error code; what this library throws meanwhile becomes an error of that class on
/// `handle`, which the error handler hears of when all that `body` has made is gone. What the program throws passes, as
/// does the end of the thread (pthread_cancel, pthread_exit).
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

/// The same for the body of a wrapper.
template <class Handle, class Body>
int guarded(const Handle& handle, const char* call, Body&& body) {
  return raising(handle, call, [&] {
    const NvtxCall range(call);
    return body();
  });
}

}  // namespace gpudt::interpose
