// Aligned tables that appear row by row while a program measures, and a progress line on a terminal.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace gpudt::bench {

struct Column {
  std::string title;
  int width = 0;
  bool left = false;  ///< text; numbers are aligned to the right
};

/// Writes to standard output; every row is flushed.
class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  void head() const;
  /// One cell for each column.
  void row(const std::vector<std::string>& cells) const;
  void rule() const;

 private:
  std::vector<Column> columns_;
};

/// "12.3" with three to four digits that mean something; "-" for zero and below.
std::string number(double value);

/// A line on standard error that is overwritten; nothing where that is no terminal.
class Progress {
 public:
  /// `active`: this rank is the one that talks. `steps`: how many calls of step() there will be.
  Progress(bool active, std::size_t steps);
  void step(const std::string& what);
  void clear() const;

 private:
  bool active_;
  std::size_t steps_, done_ = 0;
};

}  // namespace gpudt::bench
