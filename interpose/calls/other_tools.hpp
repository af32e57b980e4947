// Other PMPI tools (MPI-4.1 section 15.2), such as mpiP and Score-P: they define MPI_X, and call PMPI_X.
//
// gpudt works behind all of them, in the place of the MPI library. A tool sees every call of the program, with the
// program's own arguments, and none of gpudt's calls. The tool's PMPI_X is gpudt's function, which calls the MPI
// library's. So the order in LD_PRELOAD or on the link line does not matter.
#pragma once

namespace gpudt::interpose {

/// The tools in this process. To be used while the library is being loaded: it considers the files loaded by then.
class OtherTools {
 public:
  OtherTools();

  /// The function that programs get instead of gpudt's for `name`, an MPI function that gpudt exports: that of a tool
  /// which is loaded after gpudt or, if the MPI library has no Fortran part, the program's stub. Null if there is none.
  void* in_place_of(const char* name);
  /// Whether a tool has been found for any name that in_place_of() was called with: PMPI_X is gpudt's function then.
  bool any() const { return any_; }

 private:
  const void* here_;                      ///< the dynamic section of this library
  bool has_fortran_, has_fortran_stubs_;  ///< whether the MPI library has procedures; or stubs for them
  bool any_ = false;
};

/// Whether the program, or a library that is loaded, is linked to MPIX_Stream_create or its procedure for Fortran.
bool makes_streams();

/// The name of a PMPI tool that sees no calls, because it looks up MPI functions with dlsym() and is loaded after
/// gpudt. Null if there is none.
const char* tool_passed_by();

}  // namespace gpudt::interpose
