// The environment variables of the library, read once, in MPI_Init.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "device/device.hpp"

namespace gpudt::interpose {

struct Config {
  bool disable = false;               ///< GPUDT_DISABLE: pass every call straight through
  std::optional<std::string> report;  ///< GPUDT_REPORT: file that rank 0 writes at MPI_Finalize; empty: stderr
  bool check = false;                 ///< GPUDT_CHECK: reports wrong uses of buffers
  bool trace = false;                 ///< GPUDT_TRACE: one line per choice
  bool nvtx = false;                  ///< GPUDT_NVTX: ranges for Nsight Systems
  bool unmap_freed = true;            ///< GPUDT_UNMAP_FREED: unmap what other processes have freed at the next MPI call
  std::string timeline;         ///< GPUDT_TIMELINE: each rank writes <this>.<rank>.json at MPI_Finalize; empty: none
  int cuda_aware = -1;          ///< GPUDT_MPI_CUDA_AWARE: 0, 1, or -1: as MPIX_Query_cuda_support returns
  std::size_t forward_max = 0;  ///< GPUDT_FORWARD_MAX: largest message forwarded from device memory; 0: any
  /// GPUDT_PROTOCOL, unchecked; parse_protocol() (transport/protocol.hpp) understands it.
  std::string protocol = free_protocol;
  static constexpr const char* free_protocol = "auto";
  device::Config device;  ///< GPUDT_DEVICE, _WAY, _RESIDENT, _ORDER, _TUNING, _STAGING_LIMIT and _STAGING_CACHE
};

/// Reads the environment. Unknown names and malformed values add a sentence to `complaints`; the default is used
/// instead.
Config read_config(std::vector<std::string>& complaints);

/// The complaint that `value` is not valid for variable `name`. `wanted` describes the valid values.
std::string not_understood(const char* name, const std::string& value, const std::string& wanted);

}  // namespace gpudt::interpose
