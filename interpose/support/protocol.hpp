// How MPI is given a buffer in device memory: what the report counts and the trace names.
#pragma once

#include <cstdint>

namespace gpudt::interpose {

/// Buffers in host memory are passed on as they are, and have none.
enum class Protocol : std::uint8_t {
  direct,          ///< a CUDA-aware MPI takes the contiguous device buffer as it is
  device_staging,  ///< packed into device staging memory, which a CUDA-aware MPI takes
  mapped_staging,  ///< packed into mapped host memory (zero-copy), which any MPI takes
};
inline constexpr int protocol_count = 3;

constexpr const char* protocol_name(Protocol protocol) {
  switch (protocol) {
    case Protocol::direct:
      return "direct";
    case Protocol::device_staging:
      return "device staging";
    default:
      return "mapped staging";
  }
}

}  // namespace gpudt::interpose
