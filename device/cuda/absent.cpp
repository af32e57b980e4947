// Stands in for runtime.cpp in a build without CUDA.
#include <dlfcn.h>

#include "device/cuda/make_runtime.hpp"

namespace gpudt::device {

std::unique_ptr<Runtime> make_cuda_runtime(std::string* why) {
  const std::string reason =
      "this gpudt was built without CUDA. Build it where nvcc is in PATH (meson setup -Dcuda=enabled)";
  if (void* const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD)) {
    dlclose(driver);
    throw Error(Failure::runtime, reason);
  }
  if (why) *why = reason;
  return nullptr;
}

}  // namespace gpudt::device
