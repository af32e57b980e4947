// The base class of the library's own exceptions. The standard library throws others, mostly std::bad_alloc. None of
// them leaves an MPI function: guarded() in interpose/support/errors.hpp.
#pragma once

#include <stdexcept>

namespace gpudt {

class Exception : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace gpudt
