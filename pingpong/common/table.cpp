#include "pingpong/common/table.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace gpudt::bench {
namespace {

std::string aligned(const std::string& text, const Column& column) {
  return column.left ? fmt::format("{:<{}}", text, column.width) : fmt::format("{:>{}}", text, column.width);
}

void print_line(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

/// mpirun passes standard error on through a pipe: then its own, the parent's, is what a user sees.
bool stderr_reaches_terminal() {
  if (isatty(STDERR_FILENO) != 0) return true;
  if (std::getenv("OMPI_COMM_WORLD_RANK") == nullptr) return false;
  std::error_code error;
  const auto target = std::filesystem::read_symlink(fmt::format("/proc/{}/fd/{}", getppid(), STDERR_FILENO), error);
  return target.string().starts_with("/dev/pts/") || target.string().starts_with("/dev/tty");
}

}  // namespace

void Table::head() const {
  std::vector<std::string> titles;
  for (const Column& column : columns_) titles.push_back(column.title);
  row(titles);
  rule();
}

void Table::row(const std::vector<std::string>& cells) const {
  std::string line;
  for (std::size_t i = 0; i < columns_.size(); ++i) line += (i == 0 ? "" : "  ") + aligned(cells[i], columns_[i]);
  print_line(line);
}

void Table::rule() const {
  std::string line;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    line += (i == 0 ? "" : "  ") + std::string(static_cast<std::size_t>(columns_[i].width), '-');
  }
  print_line(line);
}

std::string number(double value) {
  if (!(value > 0)) return "-";
  if (value < 10) return fmt::format("{:.2f}", value);
  if (value < 1000) return fmt::format("{:.1f}", value);
  return fmt::format("{:.0f}", value);
}

Progress::Progress(bool active, std::size_t steps) : active_(active && stderr_reaches_terminal()), steps_(steps) {}

void Progress::step(const std::string& what) {
  ++done_;
  if (!active_) return;
  fmt::print(stderr, "\r\033[K[{}/{}] {}", done_, steps_, what);
  std::fflush(stderr);
}

void Progress::clear() const {
  if (!active_) return;
  fmt::print(stderr, "\r\033[K");
  std::fflush(stderr);
}

}  // namespace gpudt::bench
