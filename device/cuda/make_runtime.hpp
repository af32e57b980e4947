// The Runtime of real GPUs.
#pragma once

#include <memory>
#include <string>

#include "device/runtime/runtime.hpp"

namespace gpudt::device {

/// nullptr, and in `why` the reason and its remedy: built without CUDA, or no driver. Throws Error if built without
/// CUDA in a process that uses the driver.
std::unique_ptr<Runtime> make_cuda_runtime(std::string* why = nullptr);

}  // namespace gpudt::device
