// Raising MPI errors.
#include "interpose/errors.hpp"

namespace gpudt::interpose {

int error_class(const device::Error& error) {
  return error.failure() == device::Failure::out_of_memory ? MPI_ERR_NO_MEM : MPI_ERR_OTHER;
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

/// MPI calls the handlers of communicators alone. A group of this process takes nobody else to make one of.
int KeptHandler::raise(int code) const {
  MPI_Group self = MPI_GROUP_NULL;
  MPI_Comm stand_in = MPI_COMM_NULL;
  PMPI_Comm_group(MPI_COMM_SELF, &self);
  PMPI_Comm_create(MPI_COMM_SELF, self, &stand_in);
  PMPI_Group_free(&self);
  PMPI_Comm_set_errhandler(stand_in, handler_);
  PMPI_Comm_call_errhandler(stand_in, code);
  PMPI_Comm_free(&stand_in);
  return code;
}

}  // namespace gpudt::interpose
