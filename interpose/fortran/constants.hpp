// The constants that Fortran programs pass by address. Each family of MPI libraries has an implementation,
// constants_<family>.cpp; the build picks one.
#pragma once

namespace gpudt::interpose::fortran {

bool is_bottom(const void* address);
bool is_in_place(const void* address);
bool is_status_ignore(const void* address);
bool is_statuses_ignore(const void* address);

}  // namespace gpudt::interpose::fortran
