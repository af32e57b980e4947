// What an application does on a GPU while MPI packs: the application operations of Jenkins et al., section 4.4.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "pingpong/common/memory.hpp"

namespace gpudt::bench {

/// Work of a fixed amount for the current device, on a stream of its own.
class UserLoad {
 public:
  UserLoad();
  UserLoad(const UserLoad&) = delete;
  UserLoad& operator=(const UserLoad&) = delete;
  virtual ~UserLoad();

  /// Queues the work. From any thread whose current device is the load's.
  void start();
  /// Returns when the work is done; the microseconds from its turn on the device to its end.
  double wait();
  /// Makes the work so long when nothing else runs.
  void calibrate(double microseconds);

 protected:
  virtual void queue(std::int64_t amount, cudaStream_t stream) = 0;

 private:
  double microseconds_for(std::int64_t amount);
  Stream stream_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  std::int64_t amount_ = 1;
};

/// The names of the loads, in the order in which they are shown.
const std::vector<std::string>& load_names();

/// One line for each, for --help.
extern const char* const load_help;

/// A load of the current device, calibrated to `microseconds`. Null in a build without CUDA.
std::unique_ptr<UserLoad> make_load(const std::string& name, double microseconds);

}  // namespace gpudt::bench
