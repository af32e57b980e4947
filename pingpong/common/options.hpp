// The options that the measuring programs have in common.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "pingpong/common/command_line.hpp"
#include "pingpong/common/layouts.hpp"
#include "pingpong/common/sampling.hpp"

namespace gpudt::bench {

/// What goes wrong leads to these exit codes; all rows verified is 0.
enum ExitCode { exit_ok = 0, exit_wrong_data = 1, exit_usage = 2 };

struct RunOptions {
  std::string sizes_text = "64:16M";
  int factor = 4;
  std::string check_sizes = "64:64K";  ///< of --check, unless --sizes is given
  int check_factor = 32;
  SamplingPlan plan;
  int verify = 2;
  std::vector<std::string> ways;
  std::string json_file;
  bool check = false;

  std::vector<std::int64_t> sizes;  ///< derived when the command line has been parsed
};

struct CommonOptions : RunOptions {
  std::vector<std::string> layout_names;
  std::vector<LayoutFamily> layouts;  ///< derived when the command line has been parsed
};

/// Adds the options to `command`; `ways` are the names that --ways accepts, `sizes_help` says what the sizes are.
void add_run_options(CommandLine& command, RunOptions& options, const std::vector<std::string>& ways,
                     const std::string& sizes_help);

/// The same, with layouts.
void add_common_options(CommandLine& command, CommonOptions& options, const std::vector<std::string>& ways);

nlohmann::json to_json(const RunOptions& options);

/// Writes {"program", "time", "machine", "options", "rows"}. Throws std::runtime_error if the file cannot be written.
void write_json(const std::string& file, const std::string& program, nlohmann::json machine, nlohmann::json options,
                nlohmann::json rows);

}  // namespace gpudt::bench
