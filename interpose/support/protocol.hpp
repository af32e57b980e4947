// The ways in which a message, or another buffer in device memory, goes: their names in the report, in the trace and
// for GPUDT_PROTOCOL. Which of them is taken is decided in transport/choose.hpp.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gpudt::interpose {

/// Buffers in host memory are passed on as they are, and have none.
enum class Protocol : std::uint8_t {
  direct,          ///< a CUDA-aware MPI takes the contiguous device buffer as it is
  device_staging,  ///< packed into device staging memory, which a CUDA-aware MPI takes
  mapped_staging,  ///< packed into mapped host memory (zero-copy), which any MPI takes
  peer,            ///< offered: the receiver's GPU fetches it if it can, else it comes as by `shared`
  shared,          ///< offered: in fragments through memory that the two processes share
  pipelined,       ///< offered to a process of another node: in fragments, each of them a message
};

struct ProtocolName {
  Protocol protocol;
  const char* name;
  const char* value;  ///< of GPUDT_PROTOCOL, which forces it; null: none does
};
inline constexpr std::array<ProtocolName, 6> protocol_names = {{
    {Protocol::direct, "direct", nullptr},
    {Protocol::device_staging, "device staging", nullptr},
    {Protocol::mapped_staging, "mapped staging", "staging"},
    {Protocol::peer, "peer", "peer"},
    {Protocol::shared, "shared", "shared"},
    {Protocol::pipelined, "pipelined", "pipelined"},
}};

constexpr const char* protocol_name(Protocol protocol) {
  return protocol_names[static_cast<std::size_t>(protocol)].name;
}

/// The protocol that GPUDT_PROTOCOL forces wherever it can be taken; none: the choice is free ("auto").
using ForcedProtocol = std::optional<Protocol>;

/// Null if `value` is not understood.
constexpr std::optional<ForcedProtocol> parse_protocol(std::string_view value) {
  if (value == "auto" || value.empty()) return ForcedProtocol();
  for (const ProtocolName& row : protocol_names)
    if (row.value != nullptr && value == row.value) return row.protocol;
  return std::nullopt;
}

/// What GPUDT_PROTOCOL may be: "auto, staging ... or pipelined".
inline std::string protocol_values() {
  std::string text, last = "auto";
  for (const ProtocolName& row : protocol_names) {
    if (row.value == nullptr) continue;
    text += (text.empty() ? "" : ", ") + last;
    last = row.value;
  }
  return text + " or " + last;
}

}  // namespace gpudt::interpose
