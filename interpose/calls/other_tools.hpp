// Other PMPI tools (MPI-4.1 section 15.2), as mpiP and Score-P do: they define MPI_X, and call PMPI_X.
//
// gpudt works behind all of them, where the MPI library would be: a tool sees every call of the program's, with the
// program's own arguments, and none of gpudt's; what it then calls as PMPI_X is gpudt's, which calls the MPI library's.
// So it does not matter which of them comes first in LD_PRELOAD or on the link line.
#pragma once

#include <memory>

namespace gpudt::interpose {

/// The tools in this process. To be used while the library is loaded: it keeps to what ld.so has loaded by then.
class OtherTools {
 public:
  OtherTools();
  ~OtherTools();
  OtherTools(const OtherTools&) = delete;
  OtherTools& operator=(const OtherTools&) = delete;

  /// The function that programs are to get for `name`, a name of MPI's that gpudt exports, in the place of gpudt's:
  /// that of a tool that gpudt comes before, or, where the MPI library has nothing for Fortran, the program's stub.
  /// Null if there is none.
  void* in_place_of(const char* name);
  /// Whether some tool stands before one of the functions asked for, so that what is called as PMPI_X is gpudt's.
  bool any() const { return any_; }

 private:
  struct Objects;
  std::unique_ptr<Objects> objects_;
  bool any_ = false;
};

/// Name of a PMPI tool that is bypassed because it looks up MPI functions with dlsym() and comes after gpudt. Null if
/// there is none.
const char* tool_passed_by();

}  // namespace gpudt::interpose
