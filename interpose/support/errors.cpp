// Raising MPI errors.
#include "interpose/support/errors.hpp"

#include <atomic>

#include "device/division.hpp"

namespace gpudt::interpose {
namespace {

/// Tags of the communicators that stand in for freed ones, each another: several threads may make them at once, and the
/// program may be making some of its own, with small tags most likely.
int stand_in_tag() {
  constexpr unsigned first = 20000, count = 10000;
  static std::atomic<unsigned> next{0};
  return static_cast<int>(first + next.fetch_add(1) % count);
}

}  // namespace

int error_class(const std::exception& error) {
  if (const auto* const told = dynamic_cast<const MpiError*>(&error)) return told->error_class();
  if (const auto* const failed = dynamic_cast<const device::Error*>(&error))
    return failed->failure() == device::Failure::out_of_memory ? MPI_ERR_NO_MEM : MPI_ERR_OTHER;
  if (dynamic_cast<const device::TooManyParts*>(&error) != nullptr) return MPI_ERR_TYPE;
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr ? MPI_ERR_NO_MEM : MPI_ERR_INTERN;
}

int raise(MPI_Comm comm, int code) {
  PMPI_Comm_call_errhandler(comm == MPI_COMM_NULL ? MPI_COMM_WORLD : comm, code);
  return code;
}

int raise(OfWindow window, int code) {
  PMPI_Win_call_errhandler(window.win, code);
  return code;
}

int raise(MPI_File file, int code) {
  PMPI_File_call_errhandler(file, code);
  return code;
}

int raise(const ErrorOwner& owner, int code) {
  if (owner.file != MPI_FILE_NULL) return raise(owner.file, code);
  if (owner.win != MPI_WIN_NULL) return raise(OfWindow{owner.win}, code);
  return owner.comm == MPI_COMM_NULL && owner.kept ? owner.kept->raise(code) : raise(owner.comm, code);
}

// Not MPI_Comm_create_group: in Open MPI its messages carry its tag, and meet the program's receives of any tag.
MPI_Comm bare_copy(MPI_Comm comm) {
  MPI_Group group = MPI_GROUP_NULL;
  MPI_Comm copy = MPI_COMM_NULL;
  PMPI_Comm_group(comm, &group);
  PMPI_Comm_create(comm, group, &copy);
  PMPI_Group_free(&group);
  return copy;
}

MPI_Comm bare_self(int tag) {
  MPI_Group group = MPI_GROUP_NULL;
  MPI_Comm copy = MPI_COMM_NULL;
  PMPI_Comm_group(MPI_COMM_SELF, &group);
  PMPI_Comm_create_group(MPI_COMM_SELF, group, tag, &copy);
  PMPI_Group_free(&group);
  return copy;
}

/// MPI calls the handlers of communicators alone. One of this process alone takes nobody else to make.
int KeptHandler::raise(int code) const {
  MPI_Comm stand_in = bare_self(stand_in_tag());
  PMPI_Comm_set_errhandler(stand_in, handler_);
  PMPI_Comm_call_errhandler(stand_in, code);
  PMPI_Comm_free(&stand_in);
  return code;
}

}  // namespace gpudt::interpose
