#include "pingpong/common/options.hpp"

#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "pingpong/common/statistics.hpp"

namespace gpudt::bench {
namespace {

/// --check: enough to see that every path works and every byte arrives, in seconds.
void shorten(const CommandLine& command, RunOptions& options) {
  if (!command.given("--sizes")) options.sizes_text = options.check_sizes;
  if (!command.given("--factor")) options.factor = options.check_factor;
  if (!command.given("--iterations")) options.plan.iterations = 10;
  if (!command.given("--warmup")) options.plan.warmup = 1;
  if (!command.given("--verify")) options.verify = 3;
}

void complete(const CommandLine& command, RunOptions& options) {
  if (options.check) shorten(command, options);
  options.sizes = parse_sizes(options.sizes_text, options.factor);
}

void complete(const CommandLine& command, CommonOptions& options) {
  complete(command, static_cast<RunOptions&>(options));
  const bool all = options.layout_names.empty() || options.layout_names == std::vector<std::string>{"all"};
  for (const std::string& name : all ? default_layouts() : options.layout_names) options.layouts.emplace_back(name);
}

}  // namespace

void add_run_options(CommandLine& command, RunOptions& options, const std::vector<std::string>& ways,
                     const std::string& sizes_help) {
  options.ways = ways;
  command.add("-s,--sizes", options.sizes_text, sizes_help);
  command.add("-f,--factor", options.factor, "From one size of a range to the next");
  command.add("-n,--iterations", options.plan.iterations, "Timed iterations of each row, at most",
              {Bounds::within, 1, 10'000'000});
  command.add("-w,--warmup", options.plan.warmup, "Untimed iterations of each row", {Bounds::not_negative});
  command.add("--seconds", options.plan.seconds, "Time after which a row has enough iterations", {Bounds::positive});
  command.add("--verify", options.verify,
              "Iterations of each row, outside of the timing, of which every byte is checked", {Bounds::positive});
  command.add("--ways", options.ways, "What to measure, separated by commas", ways);
  command.add("--json", options.json_file, "Write all statistics to this file");
  command.add_flag("--check", options.check, "A short run that verifies: few sizes and iterations");
  command.when_parsed([&] { complete(command, options); });
}

void add_common_options(CommandLine& command, CommonOptions& options, const std::vector<std::string>& ways) {
  command.add("-l,--layouts", options.layout_names, "Layouts, separated by commas (default: all)");
  add_run_options(command, options, ways, "Packed bytes: a range 64:16M, or a list 64,4K,1M");
  command.when_parsed([&] { complete(command, options); });
  command.add_footer("Layouts:\n" + layout_help());
}

nlohmann::json to_json(const RunOptions& options) {
  return {{"sizes", options.sizes_text},   {"factor", options.factor},        {"iterations", options.plan.iterations},
          {"warmup", options.plan.warmup}, {"seconds", options.plan.seconds}, {"verify", options.verify},
          {"ways", options.ways}};
}

void write_json(const std::string& file, const std::string& program, nlohmann::json machine, nlohmann::json options,
                nlohmann::json rows) {
  const std::time_t now = std::time(nullptr);
  char time[32];
  std::strftime(time, sizeof time, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  const nlohmann::json document = {{"program", program},
                                   {"time", time},
                                   {"machine", std::move(machine)},
                                   {"options", std::move(options)},
                                   {"rows", std::move(rows)}};
  std::ofstream out(file);
  out << document.dump(1) << '\n';
  out.close();
  if (!out) throw std::runtime_error("cannot write " + file);
}

}  // namespace gpudt::bench
