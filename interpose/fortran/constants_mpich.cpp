// MPICH's constants without a value in mpi_f08. They are variables of its C library. Buffers reach C functions alone,
// which know them by the names of C.
#include "interpose/fortran/constants.hpp"

#include <mpi.h>

extern "C" MPI_F08_status MPIR_F08_MPI_STATUS_IGNORE_OBJ;
extern "C" MPI_F08_status MPIR_F08_MPI_STATUSES_IGNORE_OBJ[];

namespace gpudt::interpose::fortran {

bool is_bottom(const void*) {
  return false;
}
bool is_in_place(const void*) {
  return false;
}
bool is_status_ignore(const void* address) {
  return address == &MPIR_F08_MPI_STATUS_IGNORE_OBJ;
}
bool is_statuses_ignore(const void* address) {
  return address == MPIR_F08_MPI_STATUSES_IGNORE_OBJ;
}

}  // namespace gpudt::interpose::fortran
