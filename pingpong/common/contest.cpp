#include "pingpong/common/contest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <iterator>

#include "pingpong/common/program.hpp"

namespace gpudt::bench {
namespace {

std::vector<Column> all_columns(std::vector<Column> columns) {
  const std::vector<Column> result = {{"call", 9, true}, {"way", 9, true}, {"median us", 10}, {"min us", 10},
                                      {"max us", 10},    {"per s", 10},    {"/hand", 6},      {"data", 8, true}};
  columns.insert(columns.end(), result.begin(), result.end());
  return columns;
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// 10^9 of the entry's unit per second, at the median.
double rate(const Entry& entry) {
  return entry.statistics.median > 0 ? entry.amount / entry.statistics.median / 1e3 : 0;
}

}  // namespace

Contest::Contest(const char* program, const RunOptions& options, const Machine& machine, int rank,
                 const std::vector<Column>& case_columns, const char* reference)
    : program_(program),
      options_(options),
      machine_(machine),
      rank_(rank),
      case_columns_(case_columns.size()),
      table_(all_columns(case_columns)),
      reference_(reference) {}

std::vector<std::string> Contest::possible_ways(const std::vector<std::string>& through_mpi) {
  require(machine_, Place::device, false);
  if (mpi_takes_device_memory(machine_)) return options_.ways;
  std::vector<std::string> ways;
  std::copy_if(options_.ways.begin(), options_.ways.end(), std::back_inserter(ways),
               [&](const std::string& way) { return !contains(through_mpi, way); });
  without_mpi_ = ways.size() < options_.ways.size();
  if (ways.empty()) require(machine_, Place::device, true);
  return ways;
}

void Contest::print_head() const {
  if (rank_ != 0) return;
  fmt::print("# {}, on {}\n", program_, describe(machine_));
  if (without_mpi_) {
    fmt::print(
        "# {} cannot read device memory, and gpudt is not loaded: only the ways by hand.\n"
        "# Preload it: mpirun -x LD_PRELOAD=libgpudt-pmpi.so ...\n",
        machine_.mpi_library);
  }
  table_.head();
}

void Contest::rule() const {
  if (rank_ == 0) table_.rule();
}

void Contest::verify(const std::string& name, std::vector<Entry>& entries, int times) {
  for (Entry& entry : entries) {
    for (int i = 0; i < times; ++i) {
      const auto wrong = entry.verify(++round_);
      if (wrong) {
        fmt::print(stderr, "rank {}: {}, {}, {}: wrong data: {}\n", rank_, name, entry.call, entry.way, *wrong);
      }
      if (any_rank(wrong.has_value())) entry.verified = false;
    }
  }
}

void Contest::take_samples(std::vector<Entry>& entries) const {
  std::vector<Contestant> contestants;
  contestants.reserve(entries.size());
  for (const Entry& entry : entries) contestants.push_back({entry.way, entry.measure});
  sample_in_turns(contestants, options_.plan, rank_zero_decides);
  auto contestant = contestants.begin();
  for (Entry& entry : entries) entry.statistics = summarise(slowest_rank((contestant++)->samples));
}

void Contest::measure(const std::vector<std::string>& cells, const nlohmann::json& about, std::vector<Entry> entries) {
  std::string name;
  for (const std::string& cell : cells) name += (name.empty() ? "" : " ") + cell;
  const int before = options_.verify / 2;
  verify(name, entries, before);
  take_samples(entries);
  verify(name, entries, options_.verify - before);
  for (const Entry& entry : entries) all_verified_ = all_verified_ && entry.verified;
  if (rank_ == 0) report(cells, about, entries);
}

double Contest::reference_median(const std::vector<Entry>& entries, const std::string& call) const {
  for (const Entry& entry : entries) {
    if (entry.call == call && entry.way == reference_) return entry.statistics.median;
  }
  return 0;
}

void Contest::report(const std::vector<std::string>& cells, const nlohmann::json& about,
                     const std::vector<Entry>& entries) {
  for (const Entry& entry : entries) {
    const Statistics& s = entry.statistics;
    const double by_hand = reference_median(entries, entry.call);
    std::vector<std::string> row = &entry == &entries.front() ? cells : std::vector<std::string>(case_columns_);
    const std::vector<std::string> result = {entry.call,
                                             entry.way,
                                             number(s.median),
                                             number(s.min),
                                             number(s.max),
                                             fmt::format("{} {}", number(rate(entry)), entry.unit),
                                             number(by_hand > 0 ? s.median / by_hand : 0),
                                             entry.verified ? "verified" : "WRONG"};
    row.insert(row.end(), result.begin(), result.end());
    table_.row(row);
    nlohmann::json record = to_json(s);
    record.update(about);
    record.update({{"call", entry.call},
                   {"way", entry.way},
                   {entry.unit + std::string("_per_s"), rate(entry)},
                   {"verified", entry.verified}});
    if (by_hand > 0) record["ratio_to_hand"] = s.median / by_hand;
    rows_.push_back(std::move(record));
  }
}

int Contest::finish(nlohmann::json settings) {
  if (rank_ == 0 && !options_.json_file.empty()) {
    settings.update(to_json(options_));
    write_json(options_.json_file, program_, to_json(machine_), std::move(settings), rows_);
  }
  if (!all_verified_ && rank_ == 0) fmt::print(stderr, "{}: some data did not arrive intact\n", program_);
  return all_verified_ ? exit_ok : exit_wrong_data;
}

}  // namespace gpudt::bench
