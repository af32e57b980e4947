// What the host gives kernels that use GPI's calls (gaspi.cuh).
#pragma once

#include <cstdint>

#include "initiated/kernel_world.hpp"

constexpr int gpu_gaspi_segments = 16;

/// In a kernel's parameters: world is view(1), segments are windows, and flags one of
/// gpu_gaspi_flag_bytes(notifications) bytes.
struct gpu_gaspi_context {  // NOLINT(readability-identifier-naming): as GPI has it
  gpudt::initiated::KernelWorld world;
  gpudt::initiated::Window segment[gpu_gaspi_segments];
  gpudt::initiated::Window flags;
  int notifications;
};

constexpr std::int64_t gpu_gaspi_flag_bytes(int notifications) {
  return static_cast<std::int64_t>(sizeof(std::uint64_t)) * gpu_gaspi_segments * notifications;
}
