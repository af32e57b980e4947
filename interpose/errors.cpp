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

}  // namespace gpudt::interpose
