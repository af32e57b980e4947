// Collective calls of the randomised program.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <memory>
#include <string>

#include "tests/random/session.hpp"

namespace gpudt::test {

/// One call, the same on all ranks; nothing in those that are not in its communicator. It reserves its buffers when it
/// is made; `key` decides all else.
class CollectiveCall {
 public:
  virtual ~CollectiveCall() = default;
  virtual void fill() = 0;          ///< the images of its buffers
  virtual MPI_Request start() = 0;  ///< MPI_REQUEST_NULL from a blocking call
  virtual void verify() = 0;        ///< what was found, and adds to the images what should have been
  virtual std::string name() const = 0;
};

std::unique_ptr<CollectiveCall> make_data_call(Context& context, std::uint64_t key);
std::unique_ptr<CollectiveCall> make_reduction(Context& context, std::uint64_t key);

}  // namespace gpudt::test
