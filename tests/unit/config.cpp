// The grammar of variables, and the messages that refuse what is not of it.
#include "interpose/support/config.hpp"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/support/catch.hpp"

using namespace gpudt::interpose;
using Answer = Requirement::Answer;

namespace {

/// The complaints about the environment with this value of GPUDT_REQUIRE.
std::vector<std::string> complaints_about(const char* value) {
  setenv("GPUDT_REQUIRE", value, 1);
  std::vector<std::string> complaints;
  read_config(complaints);
  unsetenv("GPUDT_REQUIRE");
  std::erase_if(complaints, [](const std::string& each) { return !each.starts_with("GPUDT_REQUIRE"); });
  return complaints;
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
