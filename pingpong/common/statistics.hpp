// What is kept of a set of timings, and how it is shown.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace gpudt::bench {

/// Microseconds.
struct Statistics {
  std::size_t samples = 0;
  double min = 0, p10 = 0, median = 0, mean = 0, p90 = 0, max = 0;
};

/// All zero without samples.
Statistics summarise(std::vector<double> microseconds);

nlohmann::json to_json(const Statistics& statistics);

/// 10^9 bytes per second at the median.
double gigabytes_per_second(std::int64_t bytes, const Statistics& statistics);

/// "64", "16K", "1M" (powers of 1024) where exact, else the plain number.
std::string short_size(std::int64_t bytes);

/// "64" or "16K" or "4M" or "1G". Throws std::invalid_argument.
std::int64_t parse_size(const std::string& text);

/// "64:16M" (each `factor` times the one before, the last one included), "4K" or "64,1K,16M".
/// Throws std::invalid_argument.
std::vector<std::int64_t> parse_sizes(const std::string& text, int factor);

}  // namespace gpudt::bench
