// The MPI library's own Fortran procedures, which this library's wrappers call.
#pragma once

#include <cstdio>
#include <cstdlib>

#include "interpose/support/loaded.hpp"

namespace gpudt::interpose::fortran {

/// The procedure of this name in any loaded file. A look-up in the global scope would not do: it lacks the Fortran part
/// of the MPI library if a program has loaded it with dlopen(RTLD_LOCAL), as Python does with modules in Fortran.
template <class Function>
Function* procedure(const char* name) {
  void* const found = loaded_function(name);
  if (found != nullptr) return reinterpret_cast<Function*>(found);
  std::fprintf(stderr, "gpudt: the MPI library has no Fortran procedure %s\n", name);
  std::abort();
}

}  // namespace gpudt::interpose::fortran
