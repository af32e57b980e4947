// Raising MPI errors.
#include "interpose/support/errors.hpp"

#include <atomic>
#include <new>
#include <typeinfo>

#include "device/device.hpp"
#include "interpose/support/loaded.hpp"
#include "interpose/support/sessions.hpp"

namespace gpudt::interpose {
namespace {

/// A tag for a communicator that stands in for a freed one. Tags differ because several threads may make such
/// communicators at once, and are large because those of the program are most likely small.
int stand_in_tag() {
  constexpr unsigned first = 20000, count = 10000;
  static std::atomic<unsigned> next{0};
  return static_cast<int>(first + next.fetch_add(1) % count);
}

constinit thread_local bool silent = false;
constinit thread_local unsigned count_silenced = 0;

/// Whether no handler is to be called for an error.
bool silenced() {
  if (silent) ++count_silenced;
  return silent;
}

}  // namespace

HandlersSilent::HandlersSilent(bool now) : before_(std::exchange(silent, now)) {}
HandlersSilent::~HandlersSilent() {
  silent = before_;
}
bool handlers_are_silent() {
  return silent;
}
unsigned errors_silenced() {
  return count_silenced;
}

/// This library contains the C++ run-time library, so that the types of its exceptions lie in its own file, and those
/// of the program's exceptions do not.
bool is_own(const std::exception& error) {
  static const char here = 0;
  return file_of(&typeid(error)) == file_of(&here);
}

namespace {

int class_of(device::Failure failure) {
  switch (failure) {
    case device::Failure::out_of_memory:
      return MPI_ERR_NO_MEM;
    case device::Failure::no_such_memory:
      return MPI_ERR_BUFFER;
    default:
      return MPI_ERR_OTHER;
  }
}

}  // namespace

int error_class(const std::exception& error) {
  if (const auto* const told = dynamic_cast<const MpiError*>(&error)) return told->error_class();
  if (const auto* const failed = dynamic_cast<const device::Error*>(&error)) return class_of(failed->failure());
  if (dynamic_cast<const device::TooManyParts*>(&error) != nullptr) return MPI_ERR_TYPE;
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr ? MPI_ERR_NO_MEM : MPI_ERR_INTERN;
}

int log_own(const char* call, const std::exception& error) {
  if (!is_own(error)) throw;
  log_failure(call, dynamic_cast<const std::bad_alloc*>(&error) != nullptr ? "out of memory" : error.what());
  return error_class(error);
}

int raise(MPI_Comm comm, int code) {
  if (silenced()) return code;
  const bool of_nobody = comm == MPI_COMM_NULL || comm == MPI_COMM_WORLD;
  if (of_nobody && sessions_alone()) return KeptHandler().raise(code);
  const OutsideCalls outside;
  PMPI_Comm_call_errhandler(of_nobody ? MPI_COMM_WORLD : comm, code);
  return code;
}

int raise(OfWindow window, int code) {
  if (silenced()) return code;
  const OutsideCalls outside;
  PMPI_Win_call_errhandler(window.win, code);
  return code;
}

int raise(MPI_File file, int code) {
  if (silenced()) return code;
  const OutsideCalls outside;
  PMPI_File_call_errhandler(file, code);
  return code;
}

int raise(const ErrorOwner& owner, int code) {
  if (owner.file != MPI_FILE_NULL) return raise(owner.file, code);
  if (owner.win != MPI_WIN_NULL) return raise(OfWindow{owner.win}, code);
  return owner.comm == MPI_COMM_NULL && owner.kept ? owner.kept->raise(code) : raise(owner.comm, code);
}

// Not MPI_Comm_create_group: in Open MPI its messages carry its tag, and match the program's receives of any tag.
MPI_Comm bare_copy(MPI_Comm comm) {
  MPI_Group group = MPI_GROUP_NULL;
  MPI_Comm copy = MPI_COMM_NULL;
  PMPI_Comm_group(comm, &group);
  PMPI_Comm_create(comm, group, &copy);
  PMPI_Group_free(&group);
  return copy;
}

MPI_Comm bare_self(int tag) {
  if (sessions_alone()) return self_of_session(tag);
  MPI_Group group = MPI_GROUP_NULL;
  MPI_Comm copy = MPI_COMM_NULL;
  PMPI_Comm_group(MPI_COMM_SELF, &group);
  PMPI_Comm_create_group(MPI_COMM_SELF, group, tag, &copy);
  PMPI_Group_free(&group);
  return copy;
}

/// MPI calls the handlers of communicators only. A communicator of this process alone needs no other process.
int KeptHandler::raise(int code) const {
  if (silenced()) return code;
  struct StandIn {
    MPI_Comm comm = bare_self(stand_in_tag());
    ~StandIn() { PMPI_Comm_free(&comm); }  // the handler may throw
  };
  const StandIn stand_in;
  PMPI_Comm_set_errhandler(stand_in.comm, handler_);
  const OutsideCalls outside;
  PMPI_Comm_call_errhandler(stand_in.comm, code);
  return code;
}

}  // namespace gpudt::interpose
