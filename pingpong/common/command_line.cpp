#include "pingpong/common/command_line.hpp"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <stdexcept>
#include <utility>

#include "pingpong/common/machine.hpp"
#include "pingpong/common/options.hpp"
#include "pingpong/common/statistics.hpp"

namespace gpudt::bench {
namespace {

template <class Number>
CLI::Validator check_of(const Bounds& bounds) {
  if (bounds.kind == Bounds::positive) return CLI::PositiveNumber;
  if (bounds.kind == Bounds::not_negative) return CLI::NonNegativeNumber;
  return CLI::Range(static_cast<Number>(bounds.low), static_cast<Number>(bounds.high));
}

}  // namespace

CommandLine::CommandLine(const std::string& description) : app_(std::make_unique<CLI::App>(description)) {}

CommandLine::~CommandLine() = default;

template <class Value>
CLI::Option* CommandLine::add_option(const std::string& names, Value& value, const std::string& help) {
  return app_->add_option(names, value, help)->capture_default_str();
}

void CommandLine::add(const std::string& names, int& value, const std::string& help, const Bounds& bounds) {
  add_option(names, value, help)->check(check_of<int>(bounds));
}

void CommandLine::add(const std::string& names, double& value, const std::string& help, const Bounds& bounds) {
  add_option(names, value, help)->check(check_of<double>(bounds));
}

void CommandLine::add(const std::string& names, std::vector<int>& values, const std::string& help,
                      const Bounds& bounds) {
  add_option(names, values, help)
      ->delimiter(',')
      ->expected(static_cast<int>(values.size()))
      ->check(check_of<int>(bounds));
}

void CommandLine::add(const std::string& names, int& value, const std::string& help) {
  add_option(names, value, help);
}

void CommandLine::add(const std::string& names, std::string& value, const std::string& help,
                      const std::vector<std::string>& allowed) {
  CLI::Option* option = add_option(names, value, help);
  if (!allowed.empty()) option->check(CLI::IsMember(allowed));
}

void CommandLine::add(const std::string& names, std::vector<std::string>& values, const std::string& help,
                      const std::vector<std::string>& allowed) {
  CLI::Option* option = app_->add_option(names, values, help)->delimiter(',');
  if (!values.empty()) option->capture_default_str();
  if (!allowed.empty()) option->check(CLI::IsMember(allowed));
}

void CommandLine::add_size(const std::string& names, std::int64_t& bytes, const std::string& help) {
  app_->add_option_function<std::string>(
          names, [&bytes](const std::string& text) { bytes = parse_size(text); }, help)
      ->type_name("BYTES");
}

void CommandLine::add_flag(const std::string& names, bool& value, const std::string& help) {
  app_->add_flag(names, value, help);
}

void CommandLine::add_footer(const std::string& text) {
  app_->footer(text + app_->get_footer());
}

void CommandLine::when_parsed(std::function<void()> complete) {
  app_->callback(std::move(complete));
}

bool CommandLine::given(const std::string& name) const {
  return app_->count(name) > 0;
}

std::optional<int> CommandLine::parse(int argc, char** argv) {
  try {
    app_->parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    if (launched_rank() == 0) app_->exit(error);
    const bool is_help = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success);
    return is_help ? exit_ok : exit_usage;
  } catch (const std::invalid_argument& error) {
    if (launched_rank() == 0) std::fprintf(stderr, "%s\n", error.what());
    return exit_usage;
  }
}

}  // namespace gpudt::bench
