// Reads the GPUDT_ variables, and complains of those that it does not understand.
#include "interpose/support/config.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "base/numbers.hpp"

namespace gpudt::interpose {
namespace {

constexpr std::array<std::string_view, 18> known_names = {
    "GPUDT_DISABLE",     "GPUDT_REPORT", "GPUDT_TRACE",         "GPUDT_MPI_CUDA_AWARE",
    "GPUDT_FORWARD_MAX", "GPUDT_DEVICE", "GPUDT_STAGING_LIMIT", "GPUDT_STAGING_CACHE",
    "GPUDT_WAY",         "GPUDT_TUNING", "GPUDT_PROTOCOL",      "GPUDT_TIMELINE",
    "GPUDT_RESIDENT",    "GPUDT_ORDER",  "GPUDT_CHECK",         "GPUDT_NVTX",
    "GPUDT_UNMAP_FREED", "GPUDT_REQUIRE"};
// The simulated device reads these; here they are only checked.
constexpr std::array<std::string_view, 8> sim_names = {
    "GPUDT_SIM_CHANGE_US", "GPUDT_SIM_DEVICES", "GPUDT_SIM_DELAY_US", "GPUDT_SIM_HOST_ACCESS",
    "GPUDT_SIM_MPS",       "GPUDT_SIM_PEERS",   "GPUDT_SIM_QUEUE",    "GPUDT_SIM_REUSE"};
constexpr std::string_view sim_prefix = "GPUDT_SIM_";
constexpr std::string_view test_prefix = "GPUDT_TEST_";  ///< read by the tests

std::optional<bool> parse_flag(std::string_view text) {
  if (text == "1" || text == "yes" || text == "on" || text == "true") return true;
  if (text == "0" || text == "no" || text == "off" || text == "false" || text.empty()) return false;
  return std::nullopt;
}

/// "4096", "64K", "512M", "8G" (powers of 1024).
std::optional<std::size_t> parse_bytes(std::string_view text) {
  unsigned long long value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  const std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  if (unit.size() > 1) return std::nullopt;
  int shift = 0;
  if (!unit.empty()) {
    switch (std::toupper(static_cast<unsigned char>(unit[0]))) {
      case 'B':
        break;
      case 'K':
        shift = 10;
        break;
      case 'M':
        shift = 20;
        break;
      case 'G':
        shift = 30;
        break;
      default:
        return std::nullopt;
    }
  }
  if (value > (~0ULL >> shift)) return std::nullopt;
  return static_cast<std::size_t>(value << shift);
}

std::optional<device::Choice> parse_choice(std::string_view text) {
  if (text == "auto" || text.empty()) return device::Choice::automatic;
  if (text == "cuda") return device::Choice::cuda;
  if (text == "sim") return device::Choice::sim;
  if (text == "none") return device::Choice::none;
  return std::nullopt;
}

std::optional<device::Way> parse_way(std::string_view text) {
  if (text == "auto" || text.empty()) return device::Way::automatic;
  if (text == "kernel") return device::Way::kernel;
  if (text == "copy") return device::Way::copy;
  return std::nullopt;
}

std::optional<device::ResidentUse> parse_resident(std::string_view text) {
  if (text == "auto" || text.empty()) return device::ResidentUse::automatic;
  if (text == "never") return device::ResidentUse::never;
  if (text == "always") return device::ResidentUse::always;
  return std::nullopt;
}

std::optional<device::Order> parse_order(std::string_view text) {
  if (text == "none" || text.empty()) return device::Order::none;
  if (text == "default-stream") return device::Order::default_stream;
  if (text == "per-thread") return device::Order::per_thread;
  return std::nullopt;
}

/// Any text: a file that cannot be read is reported when it is needed.
std::optional<std::string> parse_text(std::string_view text) {
  return std::string(text.empty() ? "auto" : text);
}

/// The name of a JSON file, "" for 1, empty for 0.
std::optional<std::optional<std::string>> parse_report(std::string_view text) {
  using Report = std::optional<std::string>;
  constexpr std::string_view ending = ".json";
  if (text.size() > ending.size() && text.ends_with(ending)) return Report(text);
  const auto flag = parse_flag(text);
  if (!flag) return std::nullopt;
  return *flag ? Report("") : Report();
}

std::optional<std::string> parse_prefix(std::string_view text) {
  return std::string(text);
}

template <int most>
std::optional<int> parse_up_to(std::string_view text) {
  return parse_number(text, most);
}

/// The least of a range.
std::optional<int> parse_delay(std::string_view text) {
  const auto range = parse_range(text);
  return range ? std::optional(range->first) : std::nullopt;
}

template <class T, class Parse>
void read(const char* name, Parse parse, const char* wanted, T& value, std::vector<std::string>& complaints) {
  const char* text = std::getenv(name);
  if (text == nullptr) return;
  if (const auto parsed = parse(std::string_view(text)))
    value = static_cast<T>(*parsed);
  else
    complaints.push_back(not_understood(name, text, wanted));
}

void check_sim_variables(std::vector<std::string>& complaints) {
  int unused = 0;
  read("GPUDT_SIM_DEVICES", parse_up_to<16>, "a number from 0 to 16", unused, complaints);
  for (const char* const name : {"GPUDT_SIM_CHANGE_US", "GPUDT_SIM_DELAY_US"})
    read(name, parse_delay, "microseconds such as 10 or 0-500", unused, complaints);
  read("GPUDT_SIM_HOST_ACCESS", parse_up_to<1>, "0 or 1", unused, complaints);
  read("GPUDT_SIM_MPS", parse_up_to<1>, "0 or 1", unused, complaints);
  read("GPUDT_SIM_PEERS", parse_up_to<1>, "0 or 1", unused, complaints);
  read("GPUDT_SIM_QUEUE", parse_up_to<1024>, "a number from 0 to 1024", unused, complaints);
  read("GPUDT_SIM_REUSE", parse_up_to<1>, "0 or 1", unused, complaints);
}

template <std::size_t size>
bool is_among(const std::array<std::string_view, size>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

template <std::size_t size>
std::string listed(const std::array<std::string_view, size>& names) {
  std::string all;
  for (const auto name : names) all += (all.empty() ? "" : ", ") + std::string(name);
  return all;
}

void complain_of_unknown(std::vector<std::string>& complaints) {
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    if (!name.starts_with("GPUDT_") || name.starts_with(test_prefix) || is_among(known_names, name) ||
        is_among(sim_names, name))
      continue;
    complaints.push_back(std::string(name) + " is not a variable of gpudt and has no effect. There are: " +
                         (name.starts_with(sim_prefix) ? listed(sim_names) : listed(known_names)) + ".");
  }
}

}  // namespace

std::optional<Requirement> parse_requirement(std::string_view text) {
  if (text.empty() || text == "none") return Requirement();
  const std::size_t colon = text.find(':');
  const std::string_view answer = text.substr(0, colon);
  Requirement required;
  if (answer == "gpu")
    required.answer = Requirement::Answer::error;
  else if (answer == "warn")
    required.answer = Requirement::Answer::warning;
  else
    return std::nullopt;
  if (colon == std::string_view::npos) return required;
  const std::optional<std::size_t> least = parse_bytes(text.substr(colon + 1));
  if (!least || *least > static_cast<std::size_t>(INT64_MAX)) return std::nullopt;
  required.least = static_cast<std::int64_t>(*least);
  return required;
}

std::string not_understood(const char* name, const std::string& value, const std::string& wanted) {
  return std::string(name) + "=" + value + " is not understood; it takes " + wanted + ". The default is used.";
}

Config read_config(std::vector<std::string>& complaints) {
  constexpr const char* flag = "0 or 1";
  constexpr const char* bytes = "a number of bytes such as 4096, 64K, 512M or 8G";
  Config config;
  config.device.tuning = "auto";
  read("GPUDT_DISABLE", parse_flag, flag, config.disable, complaints);
  read("GPUDT_REPORT", parse_report, "0, 1 or a file name that ends in .json", config.report, complaints);
  read("GPUDT_CHECK", parse_flag, flag, config.check, complaints);
  read("GPUDT_REQUIRE", parse_requirement, "none, gpu, warn, gpu:BYTES or warn:BYTES, with BYTES such as 4096 or 64K",
       config.require, complaints);
  read("GPUDT_TRACE", parse_flag, flag, config.trace, complaints);
  read("GPUDT_NVTX", parse_flag, flag, config.nvtx, complaints);
  read("GPUDT_UNMAP_FREED", parse_flag, flag, config.unmap_freed, complaints);
  read("GPUDT_TIMELINE", parse_prefix, "the beginning of the names of files", config.timeline, complaints);
  read("GPUDT_MPI_CUDA_AWARE", parse_flag, flag, config.cuda_aware, complaints);
  read("GPUDT_FORWARD_MAX", parse_bytes, bytes, config.forward_max, complaints);
  read("GPUDT_DEVICE", parse_choice, "auto, cuda, sim or none", config.device.choice, complaints);
  read("GPUDT_PROTOCOL", parse_text, "", config.protocol, complaints);
  read("GPUDT_WAY", parse_way, "auto, kernel or copy", config.device.way, complaints);
  read("GPUDT_RESIDENT", parse_resident, "auto, never or always", config.device.resident, complaints);
  read("GPUDT_ORDER", parse_order, "default-stream, per-thread or none", config.device.order, complaints);
  read("GPUDT_TUNING", parse_text, "auto, none or a file", config.device.tuning, complaints);
  read("GPUDT_STAGING_LIMIT", parse_bytes, bytes, config.device.staging_limit, complaints);
  read("GPUDT_STAGING_CACHE", parse_bytes, bytes, config.device.staging_cache, complaints);
  check_sim_variables(complaints);
  complain_of_unknown(complaints);
  return config;
}

}  // namespace gpudt::interpose
