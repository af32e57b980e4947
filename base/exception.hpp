// The base of what this project throws itself. Besides that there is what the standard library throws, std::bad_alloc
// most of all; all of it derives from std::exception. None of it leaves an MPI function: guarded() in
// interpose/support/errors.hpp.
#pragma once

#include <stdexcept>

namespace gpudt {

class Exception : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace gpudt
