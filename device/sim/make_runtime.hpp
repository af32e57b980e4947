// The Runtime of the simulated device.
#pragma once

#include <memory>
#include <string>

#include "device/runtime/runtime.hpp"

namespace gpudt::device {

/// nullptr, and in `why` the reason and its remedy: libgpudt-sim.so is not loaded, or has no devices. Throws Error if
/// it is one of another version.
std::unique_ptr<Runtime> make_sim_runtime(std::string* why = nullptr);

}  // namespace gpudt::device
