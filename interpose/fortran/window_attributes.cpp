// MPI_Win_get_attr of Fortran, for those attributes of served windows that MPI does not know. In Fortran the values are
// integers, not addresses of integers. MPI translates all other attributes.
#include <cstdint>

#include "interpose/fortran/arguments.hpp"
#include "interpose/fortran/procedure.hpp"
#include "interpose/rma/registry.hpp"
#include "interpose/support/export.hpp"

namespace gpudt::interpose::fortran {
namespace {

using GetAttribute = void(const MPI_Fint* win, const MPI_Fint* keyval, MPI_Aint* value, MPI_Fint* flag,
                          MPI_Fint* ierror);

/// The key of the C interface for a predefined key.
int in_c(MPI_Fint keyval) {
#ifdef MPICH_NUMVERSION
  return keyval - 1;
#else
  return keyval;
#endif
}

/// `value`: as the C function returns it.
MPI_Aint as_integer(int keyval, void* value) {
  if (keyval == MPI_WIN_BASE) return static_cast<MPI_Aint>(reinterpret_cast<std::intptr_t>(value));
  return keyval == MPI_WIN_SIZE ? *static_cast<MPI_Aint*>(value) : *static_cast<int*>(value);
}

void get_attribute(const MPI_Fint* win, const MPI_Fint* keyval, MPI_Aint* value, MPI_Fint* flag, MPI_Fint* ierror) {
  const auto served = served_window(PMPI_Win_f2c(*win));
  void* found = nullptr;
  if (served && served->attribute(in_c(*keyval), static_cast<void*>(&found))) {
    *value = as_integer(in_c(*keyval), found);
    *Flag(flag) = 1;
    *ierror = MPI_SUCCESS;
    return;
  }
  static auto* const next = procedure<GetAttribute>("mpi_win_get_attr_");
  next(win, keyval, value, flag, ierror);
}

}  // namespace
}  // namespace gpudt::interpose::fortran

GPUDT_EXPORT void gpudt_mpi_win_get_attr_(const MPI_Fint* win, const MPI_Fint* keyval, MPI_Aint* value, MPI_Fint* flag,
                                          MPI_Fint* ierror) {
  MPI_Fint unwanted = MPI_SUCCESS;
  gpudt::interpose::fortran::get_attribute(win, keyval, value, flag, ierror == nullptr ? &unwanted : ierror);
}
