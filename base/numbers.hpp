// Numbers in the values of variables, which libgpudt-pmpi.so and libgpudt-sim.so read alike.
#pragma once

#include <charconv>
#include <climits>
#include <optional>
#include <string_view>
#include <utility>

namespace gpudt {

/// A number from 0 to `most`; nothing else may stand beside it.
inline std::optional<int> parse_number(std::string_view text, int most) {
  int value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || value < 0 || value > most) return std::nullopt;
  return value;
}

/// "10" or "0-500", the smaller number first.
inline std::optional<std::pair<int, int>> parse_range(std::string_view text) {
  const std::size_t hyphen = text.find('-');
  const std::optional<int> least = parse_number(text.substr(0, hyphen), INT_MAX);
  const std::optional<int> most =
      hyphen == std::string_view::npos ? least : parse_number(text.substr(hyphen + 1), INT_MAX);
  if (!least || !most || *most < *least) return std::nullopt;
  return std::pair(*least, *most);
}

}  // namespace gpudt
