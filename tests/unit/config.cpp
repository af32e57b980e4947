// The grammar of variables, and the messages that refuse what is not of it.
#include "interpose/support/config.hpp"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "base/numbers.hpp"
#include "device/choice/tuning.hpp"
#include "interpose/transport/protocol.hpp"
#include "tests/support/catch.hpp"

using namespace gpudt::interpose;
using Answer = Requirement::Answer;

namespace {

/// The complaints about a variable with this value.
std::vector<std::string> complaints_about(const char* value, const std::string& name = "GPUDT_REQUIRE") {
  const char* const before = std::getenv(name.c_str());
  const std::optional<std::string> kept = before == nullptr ? std::nullopt : std::optional<std::string>(before);
  setenv(name.c_str(), value, 1);
  std::vector<std::string> complaints;
  const gpudt::interpose::Config config = read_config(complaints);
  if (name == "GPUDT_PROTOCOL" && !parse_protocol(config.protocol))  // as in calls/environment.cpp
    complaints.push_back(not_understood("GPUDT_PROTOCOL", config.protocol, protocol_values()));
  if (name == "GPUDT_TUNING")  // as when the first buffer is seen
    complaints.push_back(gpudt::device::read_tuning(config.device.tuning, {"GPU", "CPU"}).complaint);
  kept ? setenv(name.c_str(), kept->c_str(), 1) : unsetenv(name.c_str());
  std::erase_if(complaints, [&](const std::string& each) { return each.find(name) == std::string::npos; });
  return complaints;
}

/// A variable with values that it takes, values that it refuses, and what the refusal names.
struct Row {
  const char* name;
  std::vector<const char*> right, wrong, allowed;
};

const std::vector<Row>& variables() {
  const std::vector<const char*> flag_right = {"0", "1"}, flag_wrong = {"2", "-1", "perhaps", "1 ", "10"},
                                 flag = {"0", "1"};
  const std::vector<const char*> bytes_right = {"0", "4096", "64K", "512m", "8G", "16B"},
                                 bytes_wrong = {"lots",        "-1", "12Q", "64KB", "1.5G", "99999999999999999999",
                                                "17179869184G"},
                                 bytes = {"4096", "64K", "512M", "8G"};
  const std::vector<const char*> delay_right = {"0", "10", "0-500", "5-5"},
                                 delay_wrong = {"slow", "10us", "5-", "-5", "500-0", "0-1-2"};
  static const std::vector<Row> rows = {
      {"GPUDT_DISABLE", flag_right, flag_wrong, flag},
      {"GPUDT_DEVICE", {"auto", "cuda", "sim", "none"}, {"toaster", "CUDA", "0"}, {"auto", "cuda", "sim", "none"}},
      {"GPUDT_ORDER",
       {"default-stream", "per-thread", "none"},
       {"1", "default", "legacy"},
       {"default-stream", "per-thread", "none"}},
      {"GPUDT_CHECK", flag_right, flag_wrong, flag},
      {"GPUDT_REPORT", {"0", "1", "run.json"}, {"perhaps", "run.txt", ".json", "2"}, {"0", "1", ".json"}},
      {"GPUDT_REQUIRE", {"none", "gpu", "warn:1M"}, {"1", "gpu:big", "none:1K"}, {"none", "gpu:BYTES", "warn:BYTES"}},
      {"GPUDT_TRACE", flag_right, flag_wrong, flag},
      {"GPUDT_TIMELINE", {"prefix", "/nowhere/at/all"}, {}, {}},  // each name may be that of a file
      {"GPUDT_NVTX", flag_right, flag_wrong, flag},
      {"GPUDT_MPI_CUDA_AWARE", flag_right, flag_wrong, flag},
      {"GPUDT_FORWARD_MAX", bytes_right, bytes_wrong, bytes},
      {"GPUDT_STAGING_LIMIT", bytes_right, bytes_wrong, bytes},
      {"GPUDT_STAGING_CACHE", bytes_right, bytes_wrong, bytes},
      {"GPUDT_PROTOCOL",
       {"auto", "peer", "shared", "pipelined", "staging"},
       {"swim", "PEER", "1"},
       {"auto", "peer", "shared", "pipelined", "staging"}},
      {"GPUDT_WAY", {"auto", "kernel", "copy"}, {"swim", "kernels", "1"}, {"auto", "kernel", "copy"}},
      {"GPUDT_RESIDENT", {"auto", "never", "always"}, {"1", "sometimes"}, {"auto", "never", "always"}},
      {"GPUDT_UNMAP_FREED", flag_right, flag_wrong, flag},
      {"GPUDT_TUNING", {"none"}, {"/gone.json", "fast", "/"}, {"auto", "none", "file of gpudt-tune"}},
      {"GPUDT_SIM_DEVICES", {"0", "1", "16"}, {"17", "-1", "two", "2x", ""}, {"0 to 16"}},
      {"GPUDT_SIM_CHANGE_US", delay_right, delay_wrong, {"10", "0-500"}},
      {"GPUDT_SIM_DELAY_US", delay_right, delay_wrong, {"10", "0-500"}},
      {"GPUDT_SIM_HOST_ACCESS", flag_right, flag_wrong, flag},
      {"GPUDT_SIM_MPS", flag_right, flag_wrong, flag},
      {"GPUDT_SIM_PEERS", flag_right, flag_wrong, flag},
      {"GPUDT_SIM_QUEUE", {"0", "8", "1024"}, {"1025", "-1", "few", ""}, {"0 to 1024"}},
      {"GPUDT_SIM_REUSE", flag_right, flag_wrong, flag},
  };
  return rows;
}

}  // namespace

TEST_CASE("GPUDT_REQUIRE takes an answer and a size", "[datatype]") {
  struct Right {
    const char* text;
    Answer answer;
    std::int64_t least;
  };
  constexpr std::int64_t usual = Requirement::default_least;
  for (const Right& each : std::vector<Right>{{"", Answer::none, usual},
                                              {"none", Answer::none, usual},
                                              {"gpu", Answer::error, usual},
                                              {"warn", Answer::warning, usual},
                                              {"gpu:0", Answer::error, 0},
                                              {"gpu:64K", Answer::error, 64 << 10},
                                              {"warn:1M", Answer::warning, 1 << 20}}) {
    INFO(each.text);
    const auto parsed = parse_requirement(each.text);
    REQUIRE(parsed.has_value());
    CHECK(parsed->answer == each.answer);
    CHECK(parsed->least == each.least);
    CHECK(complaints_about(each.text).empty());
  }
}

TEST_CASE("GPUDT_REQUIRE refuses what it does not know, and names what it takes", "[datatype]") {
  for (const char* const wrong : {"1", "yes", "GPU", "gpu:", "gpu:big", "gpu:-1", "gpu:64KB", "warn:1M:2", "none:1K",
                                  "gpu=1", "gpu:99999999999999999999", "gpu:16000000000G"}) {
    INFO(wrong);
    CHECK_FALSE(parse_requirement(wrong).has_value());
    const std::vector<std::string> complaints = complaints_about(wrong);
    REQUIRE(complaints.size() == 1);
    for (const char* const named : {wrong, "none", "gpu:BYTES", "warn:BYTES", "64K"})
      CHECK(complaints[0].find(named) != std::string::npos);
  }
}

TEST_CASE("Each variable refuses nonsense, and names what it takes", "[datatype]") {
  for (const Row& row : variables()) {
    for (const char* const value : row.right) {
      INFO(row.name << "=" << value);
      CHECK(complaints_about(value, row.name).empty());
    }
    for (const char* const value : row.wrong) {
      INFO(row.name << "=" << value);
      const std::vector<std::string> complaints = complaints_about(value, row.name);
      REQUIRE(complaints.size() == 1);
      INFO(complaints[0]);
      CHECK(complaints[0].find(value) != std::string::npos);
      const std::size_t grammar = complaints[0].find("take");
      REQUIRE(grammar != std::string::npos);
      for (const char* const allowed : row.allowed) CHECK(complaints[0].find(allowed, grammar) != std::string::npos);
    }
  }
}

TEST_CASE("The page of variables has those whose values are checked", "[datatype]") {
  std::set<std::string> checked, on_page;
  for (const Row& row : variables()) checked.insert(row.name);
  std::ifstream page(GPUDT_SOURCE_ROOT "/docs/variables.md");
  const std::regex row("^\\| `(GPUDT_[A-Z_]+)` .*");
  std::smatch found;
  for (std::string line; std::getline(page, line);)
    if (std::regex_match(line, found, row)) on_page.insert(found[1]);
  CHECK(on_page.size() > 20);
  CHECK(checked == on_page);
}

TEST_CASE("The simulated device takes the values that are not refused", "[datatype]") {
  using gpudt::parse_number;
  using gpudt::parse_range;
  for (const Row& row : variables()) {
    const std::string name = row.name;
    if (!name.starts_with("GPUDT_SIM_")) continue;
    const auto is_taken = [&](const char* value) {
      if (name.ends_with("_US")) return parse_range(value).has_value();
      const int most = name == "GPUDT_SIM_DEVICES" ? 16 : name == "GPUDT_SIM_QUEUE" ? 1024 : 1;
      return parse_number(value, most).has_value();
    };
    for (const char* const value : row.right) CHECK(is_taken(value));
    for (const char* const value : row.wrong) CHECK_FALSE(is_taken(value));
  }
  CHECK(parse_range("10") == std::pair(10, 10));
  CHECK(parse_range("0-500") == std::pair(0, 500));
}
