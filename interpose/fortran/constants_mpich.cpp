// MPICH's constants without a value in mpi_f08. They are variables of its C library, or the program's copies. Buffers
// reach C functions alone, which know them by the names of C.
#include "interpose/fortran/constants.hpp"

#include <dlfcn.h>

namespace gpudt::interpose::fortran {

bool is_bottom(const void*) {
  return false;
}
bool is_in_place(const void*) {
  return false;
}
bool is_status_ignore(const void* address) {
  static const void* const constant = dlsym(RTLD_DEFAULT, "MPIR_F08_MPI_STATUS_IGNORE_OBJ");
  return constant != nullptr && address == constant;
}
bool is_statuses_ignore(const void* address) {
  static const void* const constant = dlsym(RTLD_DEFAULT, "MPIR_F08_MPI_STATUSES_IGNORE_OBJ");
  return constant != nullptr && address == constant;
}

}  // namespace gpudt::interpose::fortran
