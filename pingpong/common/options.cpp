#include "pingpong/common/options.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "pingpong/common/machine.hpp"
#include "pingpong/common/statistics.hpp"

namespace gpudt::bench {
namespace {

/// --check: enough to see that every path works and every byte arrives, in seconds.
void shorten(const CLI::App& app, RunOptions& options) {
  if (app.count("--sizes") == 0) options.sizes_text = options.check_sizes;
  if (app.count("--factor") == 0) options.factor = options.check_factor;
  if (app.count("--iterations") == 0) options.plan.iterations = 10;
  if (app.count("--warmup") == 0) options.plan.warmup = 1;
  if (app.count("--verify") == 0) options.verify = 3;
}

void complete(const CLI::App& app, RunOptions& options) {
  if (options.check) shorten(app, options);
  options.sizes = parse_sizes(options.sizes_text, options.factor);
}

void complete(const CLI::App& app, CommonOptions& options) {
  complete(app, static_cast<RunOptions&>(options));
  const bool all = options.layout_names.empty() || options.layout_names == std::vector<std::string>{"all"};
  for (const std::string& name : all ? default_layouts() : options.layout_names) options.layouts.emplace_back(name);
}

}  // namespace

void add_run_options(CLI::App& app, RunOptions& options, const std::vector<std::string>& ways,
                     const std::string& sizes_help) {
  options.ways = ways;
  app.add_option("-s,--sizes", options.sizes_text, sizes_help)->capture_default_str();
  app.add_option("-f,--factor", options.factor, "From one size of a range to the next")->capture_default_str();
  app.add_option("-n,--iterations", options.plan.iterations, "Timed iterations of each row, at most")
      ->check(CLI::Range(1, 10'000'000))
      ->capture_default_str();
  app.add_option("-w,--warmup", options.plan.warmup, "Untimed iterations of each row")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--seconds", options.plan.seconds, "Time after which a row has enough iterations")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--verify", options.verify,
                 "Iterations of each row, outside of the timing, of which every byte is checked")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--ways", options.ways, "What to measure, separated by commas")
      ->delimiter(',')
      ->check(CLI::IsMember(ways))
      ->capture_default_str();
  app.add_option("--json", options.json_file, "Write all statistics to this file");
  app.add_flag("--check", options.check, "A short run that verifies: few sizes and iterations");
  app.callback([&] { complete(app, options); });
}

void add_common_options(CLI::App& app, CommonOptions& options, const std::vector<std::string>& ways) {
  app.add_option("-l,--layouts", options.layout_names, "Layouts, separated by commas (default: all)")->delimiter(',');
  add_run_options(app, options, ways, "Packed bytes: a range 64:16M, or a list 64,4K,1M");
  app.callback([&] { complete(app, options); });
  app.footer("Layouts:\n" + layout_help());
}

std::optional<int> parse(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    if (launched_rank() == 0) app.exit(error);
    const bool is_help = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success);
    return is_help ? exit_ok : exit_usage;
  } catch (const std::invalid_argument& error) {
    if (launched_rank() == 0) fmt::print(stderr, "{}\n", error.what());
    return exit_usage;
  }
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
