// Open MPI's constants without a value in Fortran are common blocks, recognised by their addresses; a program's own
// blocks precede the library's. A compiler uses one of four names for each. The symbols are weak, because C programs
// have none of them.
#include <mpi.h>

#include <algorithm>
#include <array>

#include "interpose/fortran/constants.hpp"

#define GPUDT_WEAK(name) extern "C" __attribute__((weak)) MPI_Fint name[]
#define GPUDT_SENTINEL(lower, upper) \
  GPUDT_WEAK(lower);                 \
  GPUDT_WEAK(lower##_);              \
  GPUDT_WEAK(lower##__);             \
  GPUDT_WEAK(upper);                 \
  static const std::array<MPI_Fint*, 4> lower##_names = {lower, lower##_, lower##__, upper}

GPUDT_SENTINEL(mpi_fortran_bottom, MPI_FORTRAN_BOTTOM);
GPUDT_SENTINEL(mpi_fortran_in_place, MPI_FORTRAN_IN_PLACE);
GPUDT_SENTINEL(mpi_fortran_status_ignore, MPI_FORTRAN_STATUS_IGNORE);
GPUDT_SENTINEL(mpi_fortran_statuses_ignore, MPI_FORTRAN_STATUSES_IGNORE);

namespace gpudt::interpose::fortran {
namespace {

bool is(const void* address, const std::array<MPI_Fint*, 4>& names) {
  return address != nullptr && std::find(names.begin(), names.end(), address) != names.end();
}

}  // namespace

bool is_bottom(const void* address) {
  return is(address, mpi_fortran_bottom_names);
}
bool is_in_place(const void* address) {
  return is(address, mpi_fortran_in_place_names);
}
bool is_status_ignore(const void* address) {
  return is(address, mpi_fortran_status_ignore_names);
}
bool is_statuses_ignore(const void* address) {
  return is(address, mpi_fortran_statuses_ignore_names);
}

}  // namespace gpudt::interpose::fortran
