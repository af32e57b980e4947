// What device/ throws when a GPU fails, or when there is no memory.
#pragma once

#include <cstdint>
#include <string>

#include "base/exception.hpp"

namespace gpudt::device {

enum class Failure : std::uint8_t {
  out_of_memory,   ///< staging memory could not be had, or the limit on it is reached
  runtime,         ///< a CUDA call failed
  no_such_memory,  ///< the same, and the program's data certainly lie beyond their memory (UserData::is_missing())
};

class Error : public Exception {
 public:
  Error(Failure failure, const std::string& what) : Exception(what), failure_(failure) {}
  Failure failure() const { return failure_; }

 private:
  Failure failure_;
};

}  // namespace gpudt::device
