// Makes the runtime (device/runtime/runtime.hpp) that drives real GPUs; sim/ has the other one.
#pragma once

#include <memory>
#include <string>

#include "device/runtime/runtime.hpp"

namespace gpudt::device {

/// The runtime; or, if the library is built without CUDA or there is no driver, nullptr, and in `why` the reason and
/// its remedy. Throws Error if the library is built without CUDA and the process has loaded the driver: its device
/// memory would be taken for the host's.
std::unique_ptr<Runtime> make_cuda_runtime(std::string* why = nullptr);

}  // namespace gpudt::device
