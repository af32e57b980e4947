// Stands in for runtime.cpp in a build without CUDA.
#include "device/runtime.hpp"

namespace gpudt::device {

std::unique_ptr<Runtime> make_cuda_runtime() {
  return nullptr;
}

}  // namespace gpudt::device
