// What the host's functions throw.
#pragma once

#include <stdexcept>

namespace gpudt::initiated {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace gpudt::initiated
