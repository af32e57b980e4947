// Objects that last as long as the process. Destructors of static objects run when the program exits, perhaps without
// MPI_Finalize, perhaps after the CUDA runtime has ended, perhaps while other threads still use the objects: so no
// static object of the library has one (scripts/check/clang_warnings.py). What MPI_Finalize ends (stop() in
// interpose/calls/environment.cpp) is cleared there.
#pragma once

#include <utility>

namespace gpudt {

template <class T, class... Arguments>
T& never_destroyed(Arguments&&... arguments) {
  return *new T(std::forward<Arguments>(arguments)...);
}

}  // namespace gpudt
