// Several ways of doing the same thing, on all ranks at once: verified, timed in turns, and shown row by row in a
// table and in JSON. For the programs that are small applications.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "pingpong/common/machine.hpp"
#include "pingpong/common/options.hpp"
#include "pingpong/common/statistics.hpp"
#include "pingpong/common/table.hpp"

namespace gpudt::bench {

/// What one row shows. Both functions are collective.
struct Entry {
  std::string call;                 ///< what is done, e.g. "exchange"
  std::string way;                  ///< how, e.g. "mpi"
  std::function<double()> measure;  ///< does it once; microseconds on this rank
  /// Does it with fresh data of this round; what is wrong on this rank, if anything.
  std::function<std::optional<std::string>(std::int64_t round)> verify;
  double amount = 0;        ///< what is done at once, of `unit`
  const char* unit = "GB";  ///< of 10^9: "GB", "GF" (operations)
  bool verified = true;
  Statistics statistics = {};
};

class Contest {
 public:
  /// `case_columns` come first in each row. The last column but one compares with the way `reference` of the same
  /// call. Keeps references.
  Contest(const char* program, const RunOptions& options, const Machine& machine, int rank,
          const std::vector<Column>& case_columns, const char* reference);

  /// The ways of the options that are possible here. `through_mpi` are those that give MPI device memory: without a
  /// library for it they are left out, and the head of the table says so. Throws Refusal without any GPU.
  std::vector<std::string> possible_ways(const std::vector<std::string>& through_mpi);

  void print_head() const;
  /// Verifies and measures the entries in turns. `cells` are for the case's columns, `about` for JSON. Collective.
  void measure(const std::vector<std::string>& cells, const nlohmann::json& about, std::vector<Entry> entries);
  void rule() const;

  /// Writes the JSON file, if one is wanted, and gives the program's exit code.
  int finish(nlohmann::json settings = nlohmann::json::object());

 private:
  void verify(const std::string& name, std::vector<Entry>& entries, int times);
  void take_samples(std::vector<Entry>& entries) const;
  void report(const std::vector<std::string>& cells, const nlohmann::json& about, const std::vector<Entry>& entries);
  double reference_median(const std::vector<Entry>& entries, const std::string& call) const;

  const char* program_;
  const RunOptions& options_;
  const Machine& machine_;
  int rank_;
  std::size_t case_columns_;
  Table table_;
  const char* reference_;
  bool without_mpi_ = false;
  std::int64_t round_ = 0;
  bool all_verified_ = true;
  nlohmann::json rows_ = nlohmann::json::array();
};

}  // namespace gpudt::bench
