// A stream of the program that does not go on.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <thread>

#include "tests/mpi/exchange.hpp"

namespace gpudt::test {

/// A stream, or else the default stream, waits until this object's end, or release().
class HeldStream {
 public:
  explicit HeldStream(cudaStream_t stream = nullptr) : stream_(stream) {
    const auto wait = [](void* released) {
      while (!static_cast<std::atomic<bool>*>(released)->load()) std::this_thread::yield();
    };
    REQUIRE(cudaLaunchHostFunc(stream, wait, &released_) == cudaSuccess);
  }
  ~HeldStream() {
    release();
    cudaStreamSynchronize(stream_);
  }
  HeldStream(const HeldStream&) = delete;
  HeldStream& operator=(const HeldStream&) = delete;
  void release() { released_ = true; }

 private:
  cudaStream_t stream_;
  std::atomic<bool> released_{false};
};

}  // namespace gpudt::test
