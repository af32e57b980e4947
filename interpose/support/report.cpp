// Gathers the counts of all ranks at MPI_Finalize, and writes the report.
#include "interpose/support/report.hpp"

#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "base/never_destroyed.hpp"
#include "device/device.hpp"
#include "interpose/support/config.hpp"
#include "interpose/support/log.hpp"
#include "interpose/support/report_record.hpp"
#include "interpose/support/sessions.hpp"

namespace gpudt::interpose {

namespace {

using report::Host;
using report::Record;
using report::Row;
using report::Summary;
using report::Wait;

constexpr std::chrono::seconds gather_timeout{20};  ///< how long rank 0 waits for ranks that may lack the library

struct Wanted {
  std::string file;  ///< empty: standard error
  std::vector<std::string> forced;
  ReportClock::time_point started;
};
Wanted& wanted = never_destroyed<Wanted>();

void name_host(Record& record) {
  if (gethostname(record.host, sizeof record.host - 1) != 0) report::put_text(record.host, "unknown host");
}

void name_gpus(Record& record) {
  for (const device::UsedGpu& gpu : device::used_gpus()) {
    if (record.gpu_count == static_cast<int>(report::most_gpus)) return;
    report::GpuOfRank& place = record.gpus[record.gpu_count++];
    std::memcpy(place.id, gpu.id.data(), sizeof place.id);
    report::put_text(place.name, gpu.name.c_str());
    place.ordinal = gpu.ordinal;
  }
}

Record own_record() {
  Record record{};
  report::counted(record);
  record.run_nanoseconds = std::chrono::nanoseconds(ReportClock::now() - wanted.started).count();
  const device::Movements moved = device::movements();
  const std::int64_t movements[] = {moved.kernels, moved.copies, moved.batches,
                                    moved.batched, moved.late,   moved.resident};
  std::copy(std::begin(movements), std::end(movements), record.movements);
  const device::StagingKind kinds[2] = {device::StagingKind::mapped, device::StagingKind::device};
  for (int s = 0; s < 2; ++s)
    record.staging_peak[s] = static_cast<std::int64_t>(device::staging_statistics(kinds[s]).peak_allocated);
  name_host(record);
  name_gpus(record);
  const char* const root = std::getenv("GPUDT_TEST_ROOT");
  record.around = report::look_around(root == nullptr ? "" : root, device::visible_gpus());
  return record;
}

// --- what all ranks have counted -------------------------------------------------------------------------------------

template <std::size_t size>
void add_each(std::int64_t (&total)[size], const std::int64_t (&more)[size]) {
  for (std::size_t i = 0; i < size; ++i) total[i] += more[i];
}

void add_row(std::vector<Row>& rows, const Row& more) {
  const auto same = std::find_if(rows.begin(), rows.end(), [&](const Row& row) {
    return std::strcmp(row.way, more.way) == 0 && row.kind == more.kind && std::strcmp(row.call, more.call) == 0;
  });
  if (same == rows.end()) {
    rows.push_back(more);
    return;
  }
  same->buffers += more.buffers;
  same->bytes += more.bytes;
  same->nanoseconds += more.nanoseconds;
}

void add_wait(std::vector<Wait>& waits, const Wait& more) {
  const auto same = std::find_if(waits.begin(), waits.end(),
                                 [&](const Wait& wait) { return std::strcmp(wait.call, more.call) == 0; });
  if (same == waits.end()) {
    waits.push_back(more);
    return;
  }
  same->calls += more.calls;
  same->nanoseconds += more.nanoseconds;
}

void add_time(Summary& summary, const Record& record, int rank) {
  double in_calls = 0;
  for (int c = 0; c < clocks; ++c) {
    const double seconds = report::seconds_of(record.nanoseconds[c]);
    summary.seconds[static_cast<std::size_t>(c)] += seconds;
    in_calls += seconds;
  }
  summary.in_calls += in_calls;
  if (in_calls > summary.most_in_calls) {
    summary.most_in_calls = in_calls;
    summary.busiest = rank;
  }
  summary.run = std::max(summary.run, report::seconds_of(record.run_nanoseconds));
}

void add_host(std::vector<Host>& hosts, const Record& record, int rank) {
  auto host = std::find_if(hosts.begin(), hosts.end(), [&](const Host& each) { return each.name == record.host; });
  if (host == hosts.end()) {
    hosts.push_back({record.host, {}, {}});
    host = std::prev(hosts.end());
  }
  host->ranks.push_back(rank);
  for (int g = 0; g < record.gpu_count; ++g) {
    const report::GpuOfRank& gpu = record.gpus[g];
    const std::string id(reinterpret_cast<const char*>(gpu.id), sizeof gpu.id);
    const auto entry = host->gpus.try_emplace(id, Host::Gpu{gpu.name, gpu.ordinal, {}}).first;
    entry->second.ranks.push_back(rank);
  }
}

void add(Summary& summary, const Record& record, int rank) {
  for (const Row& row : record.rows)
    if (row.buffers != 0) add_row(summary.rows, row);
  for (const Wait& wait : record.waits)
    if (wait.calls != 0) add_wait(summary.waits, wait);
  add_time(summary, record, rank);
  add_each(summary.movements, record.movements);
  add_each(summary.peer, record.peer);
  add_each(summary.fallbacks, record.fallbacks);
  for (int s = 0; s < 2; ++s) summary.staging_peak[s] = std::max(summary.staging_peak[s], record.staging_peak[s]);
  if (summary.no_peers.empty()) summary.no_peers = record.no_peers;
  if (summary.not_mapped.empty()) summary.not_mapped = record.not_mapped;
  add_host(summary.hosts, record, rank);
}

/// `first`: the rank of the first record.
Summary summarise(const std::vector<Record>& records, int first, int expected) {
  Summary summary;
  summary.ranks = static_cast<int>(records.size());
  summary.expected = expected;
  summary.device = device::runtime_name();
  summary.costs = device::cost_sources();
  summary.forced = wanted.forced;
  for (std::size_t i = 0; i < records.size(); ++i) add(summary, records[i], first + static_cast<int>(i));
  const auto longer = [](const auto& one, const auto& other) { return one.nanoseconds > other.nanoseconds; };
  std::sort(summary.rows.begin(), summary.rows.end(), longer);
  std::sort(summary.waits.begin(), summary.waits.end(), longer);
  summary.hints = report::hints(summary);
  if (summary.rows.empty()) return summary;
  for (report::Hint& hint : report::placement_hints(records, first)) summary.hints.push_back(std::move(hint));
  return summary;
}

// --- gathering and writing -------------------------------------------------------------------------------------------

void print(const std::string& text) {
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
}

bool write_file(const std::string& name, const std::string& text) {
  std::ofstream file(name);
  file << text << std::flush;
  return static_cast<bool>(file);
}

void deliver(const Summary& summary) {
  if (wanted.file.empty()) return print(report::as_text(summary));
  if (write_file(wanted.file, report::as_json(summary)))
    return print("gpudt report: " + wanted.file + " (scripts/gpudt-report shows it)\n");
  log_warning("GPUDT_REPORT: " + wanted.file + " cannot be written. The report follows");
  print(report::as_text(summary));
}

/// Tests set a shorter timeout.
std::chrono::seconds timeout() {
  const char* seconds = std::getenv("GPUDT_TEST_REPORT_TIMEOUT");
  return seconds == nullptr ? gather_timeout : std::chrono::seconds(std::atoi(seconds));
}

/// Gathers the records at rank 0. False after the timeout: then the gather is still under way.
bool gather(const Record& own, std::vector<Record>& records) {
  MPI_Request request = MPI_REQUEST_NULL;
  PMPI_Igather(&own, sizeof(Record), MPI_BYTE, records.data(), sizeof(Record), MPI_BYTE, 0, MPI_COMM_WORLD, &request);
  const auto deadline = std::chrono::steady_clock::now() + timeout();
  int done = 0;
  while (!done && std::chrono::steady_clock::now() < deadline) PMPI_Test(&request, &done, MPI_STATUS_IGNORE);
  return done != 0;
}

/// The variables that take choices away from the library, or make it slow.
std::vector<std::string> forced_by(const Config& config) {
  std::vector<std::string> forced;
  if (config.check) forced.emplace_back("GPUDT_CHECK=1");
  if (config.trace) forced.emplace_back("GPUDT_TRACE=1");
  if (config.protocol != Config::free_protocol) forced.push_back("GPUDT_PROTOCOL=" + config.protocol);
  if (config.device.way == device::Way::kernel) forced.emplace_back("GPUDT_WAY=kernel");
  if (config.device.way == device::Way::copy) forced.emplace_back("GPUDT_WAY=copy");
  if (config.device.resident == device::ResidentUse::never) forced.emplace_back("GPUDT_RESIDENT=never");
  if (config.device.resident == device::ResidentUse::always) forced.emplace_back("GPUDT_RESIDENT=always");
  return forced;
}

}  // namespace

void report_start(const Config& config) {
  if (!config.report) return;
  wanted.file = *config.report;
  wanted.forced = forced_by(config);
  wanted.started = ReportClock::now();
  report_wanted = buffers_followed = true;
}

void report_print(Ranks ranks) {
  int rank = 0, size = 1;
  if (!sessions_alone()) {
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    PMPI_Comm_size(MPI_COMM_WORLD, &size);
  }
  // Static: after a time-out the gather is still under way and may write here until MPI is finalized.
  static Record own;
  static auto& records = never_destroyed<std::vector<Record>>();
  own = own_record();
  if (ranks != Ranks::all) {  // ranks that lack the library would never answer
    if (ranks == Ranks::own) deliver(summarise({own}, rank, size));
    return;
  }
  records.resize(rank == 0 ? static_cast<std::size_t>(size) : 0);
  const bool complete = gather(own, records);
  if (rank == 0) deliver(summarise(complete ? records : std::vector<Record>{own}, 0, size));
}

}  // namespace gpudt::interpose
