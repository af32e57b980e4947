#include "pingpong/common/statistics.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <string_view>

namespace gpudt::bench {
namespace {

constexpr std::string_view suffixes = "KMG";
constexpr std::int64_t kibi = 1024;
constexpr std::int64_t largest_size = INT32_MAX;  // MPI's counts of bytes are ints

}  // namespace

Statistics summarise(std::vector<double> microseconds) {
  if (microseconds.empty()) return {};
  std::sort(microseconds.begin(), microseconds.end());
  const auto at = [&](double share) {
    return microseconds[static_cast<std::size_t>(std::lround(share * static_cast<double>(microseconds.size() - 1)))];
  };
  Statistics statistics;
  statistics.samples = microseconds.size();
  statistics.min = microseconds.front();
  statistics.p10 = at(0.1);
  statistics.median = at(0.5);
  statistics.mean =
      std::accumulate(microseconds.begin(), microseconds.end(), 0.0) / static_cast<double>(microseconds.size());
  statistics.p90 = at(0.9);
  statistics.max = microseconds.back();
  return statistics;
}

nlohmann::json to_json(const Statistics& statistics) {
  return {{"samples", statistics.samples},  {"min_us", statistics.min},   {"p10_us", statistics.p10},
          {"median_us", statistics.median}, {"mean_us", statistics.mean}, {"p90_us", statistics.p90},
          {"max_us", statistics.max}};
}

double gigabytes_per_second(std::int64_t bytes, const Statistics& statistics) {
  return statistics.median > 0 ? static_cast<double>(bytes) / statistics.median / 1e3 : 0;
}

std::string short_size(std::int64_t bytes) {
  std::string suffix;
  for (const char next : suffixes) {
    if (bytes == 0 || bytes % kibi != 0) break;
    bytes /= kibi;
    suffix = next;
  }
  return std::to_string(bytes) + suffix;
}

std::int64_t parse_size(const std::string& text) {
  std::int64_t value = 0;
  const char* last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  const std::size_t suffix = end == last ? suffixes.size() : suffixes.find(*end);
  const bool known = end == last || (end + 1 == last && suffix != std::string_view::npos);
  if (error == std::errc() && known && value >= 1 && value <= largest_size) {
    for (std::size_t i = 0; end != last && i <= suffix; ++i) value *= kibi;
    if (value <= largest_size) return value;
  }
  throw std::invalid_argument("size '" + text + "': expected 1 to 2G - 1 bytes, such as 64, 16K or 4M");
}

std::vector<std::int64_t> parse_sizes(const std::string& text, int factor) {
  if (factor < 2) throw std::invalid_argument("the factor between sizes must be at least 2");
  const std::size_t colon = text.find(':');
  std::vector<std::int64_t> sizes;
  if (colon == std::string::npos) {
    std::istringstream list(text);
    for (std::string item; std::getline(list, item, ',');) sizes.push_back(parse_size(item));
    if (sizes.empty()) throw std::invalid_argument("no sizes are given");
    return sizes;
  }
  const std::int64_t first = parse_size(text.substr(0, colon)), last = parse_size(text.substr(colon + 1));
  if (first > last) throw std::invalid_argument("sizes '" + text + "': the first is above the last");
  for (std::int64_t size = first; size < last; size *= factor) sizes.push_back(size);
  sizes.push_back(last);
  return sizes;
}

}  // namespace gpudt::bench
