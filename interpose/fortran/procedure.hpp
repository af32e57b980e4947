// The MPI library's own Fortran procedures, which this library's stand before.
#pragma once

#include <cstdio>
#include <cstdlib>

#include "interpose/support/loaded.hpp"

namespace gpudt::interpose::fortran {

/// Of this name, in whatever file that is loaded: what a program loads by dlopen(RTLD_LOCAL), as Python does with
/// modules in Fortran, is not in the global scope, nor is the MPI library's Fortran part, which comes with it.
template <class Function>
Function* procedure(const char* name) {
  void* const found = loaded_function(name);
  if (found != nullptr) return reinterpret_cast<Function*>(found);
  std::fprintf(stderr, "gpudt: the MPI library has no Fortran procedure %s\n", name);
  std::abort();
}

}  // namespace gpudt::interpose::fortran
