// The environment variables of the library, read once, in MPI_Init.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "device/device.hpp"

namespace gpudt::interpose {

/// GPUDT_REQUIRE: what becomes of data in device memory that go through the host (require.hpp).
struct Requirement {
  enum class Answer : std::uint8_t { none, warning, error };
  /// Bytes of a buffer. Shorter data go through the host wherever that is faster, for some by the time that the
  /// receiver takes.
  static constexpr std::int64_t default_least = 4097;
  Answer answer = Answer::none;
  std::int64_t least = default_least;
};
/// Parses "none", "gpu", "warn", "gpu:64K", "warn:64K"; no value if it is none of these.
std::optional<Requirement> parse_requirement(std::string_view text);

struct Config {
  bool disable = false;               ///< GPUDT_DISABLE: pass every call straight through
  std::optional<std::string> report;  ///< GPUDT_REPORT: file that rank 0 writes at MPI_Finalize; empty: stderr
  Requirement require;                ///< GPUDT_REQUIRE
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
