// The constants that Fortran programs pass by address. One implementation for each family of MPI libraries,
// constants_<family>.cpp; the build picks one.
#pragma once

namespace gpudt::interpose::fortran {

bool is_bottom(const void* address);
bool is_in_place(const void* address);
bool is_status_ignore(const void* address);
bool is_statuses_ignore(const void* address);

}  // namespace gpudt::interpose::fortran
