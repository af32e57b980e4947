#include "interpose/transport/protocol.hpp"

namespace gpudt::interpose {
namespace {

constexpr bool rows_are_in_order() {
  for (std::size_t i = 0; i < protocols.size(); ++i)
    if (static_cast<std::size_t>(protocols[i].protocol) != i) return false;
  return protocols.back().protocol == Protocol::mapped_staging;
}
static_assert(rows_are_in_order());

}  // namespace

std::string comparison(const Message& message, const Route& route) {
  const Protocol taken = choose(message, route);
  std::string text;
  for (const ProtocolRow& row : protocols) {
    const Obstacle obstacle = row.obstacle(message, route);
    text += (text.empty() ? "" : "; ") + std::string(row.name) + ": " +
            (row.protocol == taken ? "taken"
             : obstacle != nullptr ? obstacle
                                   : "possible");
  }
  return text;
}

std::optional<ForcedProtocol> parse_protocol(std::string_view value) {
  if (value == "auto" || value.empty()) return ForcedProtocol();
  for (const ProtocolRow& row : protocols)
    if (row.value != nullptr && value == row.value) return row.protocol;
  return std::nullopt;
}

std::string protocol_values() {
  std::string text, last = "auto";
  for (const ProtocolRow& row : protocols) {
    if (row.value == nullptr) continue;
    text += (text.empty() ? "" : ", ") + last;
    last = row.value;
  }
  return text + " or " + last;
}

}  // namespace gpudt::interpose
