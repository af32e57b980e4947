// Counts by protocol and layout kind, gathered and printed once.
#include "interpose/support/report.hpp"

#include <mpi.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include "base/mutex.hpp"
#include "base/never_destroyed.hpp"
#include "device/device.hpp"

namespace gpudt::interpose {

bool report_wanted = false;
bool trace_wanted = false;

namespace {

constexpr int shape_kinds = 5;
constexpr int fallback_slots = 8;
constexpr int fallback_text = 120;
constexpr std::chrono::seconds gather_timeout{20};  ///< how long rank 0 waits for ranks that may lack the library

struct Counts {
  std::atomic<std::int64_t> calls[staging_protocols][shape_kinds];
  std::atomic<std::int64_t> bytes[staging_protocols][shape_kinds];
  std::atomic<std::int64_t> nanoseconds[2];
  std::atomic<std::int64_t> peer[peer_events];
} counts;

struct Fallback {
  char reason[fallback_text];
  std::int64_t calls;
};

Mutex fallback_mutex;
std::array<Fallback, fallback_slots> fallbacks GUARDED_BY(fallback_mutex){};

/// What one rank tells rank 0; plain bytes on the wire.
struct Record {
  std::int64_t calls[staging_protocols][shape_kinds];
  std::int64_t bytes[staging_protocols][shape_kinds];
  std::int64_t nanoseconds[2];
  std::int64_t movements[6];  ///< as in device::Movements
  std::int64_t peer[peer_events];
  std::int64_t staging_peak[2];
  std::array<Fallback, fallback_slots> fallbacks;
};

Record own_record() {
  Record record{};
  for (int p = 0; p < staging_protocols; ++p)
    for (int k = 0; k < shape_kinds; ++k) {
      record.calls[p][k] = counts.calls[p][k];
      record.bytes[p][k] = counts.bytes[p][k];
    }
  for (int c = 0; c < 2; ++c) record.nanoseconds[c] = counts.nanoseconds[c];
  for (int e = 0; e < peer_events; ++e) record.peer[e] = counts.peer[e];
  const device::Movements moved = device::movements();
  record.movements[0] = moved.kernels;
  record.movements[1] = moved.copies;
  record.movements[2] = moved.batches;
  record.movements[3] = moved.batched;
  record.movements[4] = moved.late;
  record.movements[5] = moved.resident;
  const device::StagingKind kinds[2] = {device::StagingKind::mapped, device::StagingKind::device};
  for (int s = 0; s < 2; ++s)
    record.staging_peak[s] = static_cast<std::int64_t>(device::staging_statistics(kinds[s]).peak_allocated);
  LockGuard lock(fallback_mutex);
  record.fallbacks = fallbacks;
  return record;
}

void add_fallback(std::array<Fallback, fallback_slots>& list, const char* reason, std::int64_t calls) {
  for (auto& entry : list) {
    if (entry.reason[0] == '\0') std::snprintf(entry.reason, sizeof entry.reason, "%s", reason);
    if (std::strncmp(entry.reason, reason, fallback_text - 1) == 0) {
      entry.calls += calls;
      return;
    }
  }
}

Record sum(const std::vector<Record>& records) {
  Record total{};
  for (const Record& record : records) {
    for (int p = 0; p < staging_protocols; ++p)
      for (int k = 0; k < shape_kinds; ++k) {
        total.calls[p][k] += record.calls[p][k];
        total.bytes[p][k] += record.bytes[p][k];
      }
    for (int c = 0; c < 2; ++c) {
      total.nanoseconds[c] += record.nanoseconds[c];
      total.staging_peak[c] = std::max(total.staging_peak[c], record.staging_peak[c]);
    }
    for (std::size_t m = 0; m < std::size(total.movements); ++m) total.movements[m] += record.movements[m];
    for (int e = 0; e < peer_events; ++e) total.peer[e] += record.peer[e];
    for (const Fallback& entry : record.fallbacks)
      if (entry.calls > 0) add_fallback(total.fallbacks, entry.reason, entry.calls);
  }
  return total;
}

void print(const Record& total, int ranks, int expected) {
  std::string text = "gpudt report: " + std::to_string(ranks) + " of " + std::to_string(expected) +
                     " ranks, device: " + device::runtime_name() + "\n";
  char line[256];
  std::snprintf(line, sizeof line, "  %-16s %-12s %14s %20s\n", "protocol", "layout", "buffers", "bytes");
  text += line;
  std::int64_t all = 0;
  for (int p = 0; p < staging_protocols; ++p)
    for (int k = 0; k < shape_kinds; ++k) {
      if (total.calls[p][k] == 0) continue;
      all += total.calls[p][k];
      std::snprintf(line, sizeof line, "  %-16s %-12s %14lld %20lld\n", protocol_name(static_cast<Protocol>(p)),
                    datatype::shape_kind_name(static_cast<datatype::ShapeKind>(k)),
                    static_cast<long long>(total.calls[p][k]), static_cast<long long>(total.bytes[p][k]));
      text += line;
    }
  if (all == 0) text += "  no device buffer was passed to MPI\n";
  const auto messages = [&](PeerEvent event) { return std::to_string(total.peer[static_cast<int>(event)]); };
  if (total.peer[static_cast<int>(PeerEvent::offered)] != 0)
    text += "  peer transfer: " + messages(PeerEvent::offered) + " messages offered; of these " +
            messages(PeerEvent::packed) + " packed to be fetched, " + messages(PeerEvent::put) +
            " written by their senders, " + messages(PeerEvent::refused) + " through shared memory, " +
            messages(PeerEvent::remote) + " in fragments by messages, " + messages(PeerEvent::buffered) + " buffered\n";
  if (const std::int64_t calls = total.peer[static_cast<int>(PeerEvent::collective)]; calls != 0)
    text += "  collectives as messages: " + std::to_string(calls) + " calls\n";
  std::snprintf(line, sizeof line, "  packs, unpacks and copies: %lld by kernels, %lld by the copy engine",
                static_cast<long long>(total.movements[0]), static_cast<long long>(total.movements[1]));
  text += line;
  if (total.movements[2] != 0)
    text += "; " + std::to_string(total.movements[3]) + " of the former in " + std::to_string(total.movements[2]) +
            " launches of several";
  if (total.movements[5] != 0)
    text += "; " + std::to_string(total.movements[5]) + " of the former by a kernel that was there already";
  if (total.movements[4] != 0)
    text += "; kernels or copies were seen to begin late " + std::to_string(total.movements[4]) + " times";
  text += "\n";
  std::snprintf(line, sizeof line,
                "  waiting for packs and unpacks: %.3f ms, in MPI with staged buffers: %.3f ms (sums over ranks)\n",
                static_cast<double>(total.nanoseconds[0]) * 1e-6, static_cast<double>(total.nanoseconds[1]) * 1e-6);
  text += line;
  std::snprintf(line, sizeof line, "  staging memory at its peak, largest rank: %lld B mapped host, %lld B device\n",
                static_cast<long long>(total.staging_peak[0]), static_cast<long long>(total.staging_peak[1]));
  text += line;
  for (const std::string& source : device::cost_sources())
    text += "  costs of kernels and copies, rank 0, " + source + "\n";
  for (const Fallback& entry : total.fallbacks)
    if (entry.calls != 0) text += "  fell back " + std::to_string(entry.calls) + " times: " + entry.reason + "\n";
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
}

/// Tests have less timeout.
std::chrono::seconds timeout() {
  const char* seconds = std::getenv("GPUDT_TEST_REPORT_TIMEOUT");
  return seconds == nullptr ? gather_timeout : std::chrono::seconds(std::atoi(seconds));
}

/// True if every rank's record has arrived at rank 0 (on other ranks: if their part is done).
bool gather(const Record& own, std::vector<Record>& records) {
  MPI_Request request = MPI_REQUEST_NULL;
  PMPI_Igather(&own, sizeof(Record), MPI_BYTE, records.data(), sizeof(Record), MPI_BYTE, 0, MPI_COMM_WORLD, &request);
  const auto deadline = std::chrono::steady_clock::now() + timeout();
  int done = 0;
  while (!done && std::chrono::steady_clock::now() < deadline) PMPI_Test(&request, &done, MPI_STATUS_IGNORE);
  return done != 0;
}

}  // namespace

void report_count(Protocol protocol, datatype::ShapeKind kind, std::int64_t bytes) {
  const int p = static_cast<int>(protocol), k = static_cast<int>(kind);
  counts.calls[p][k].fetch_add(1, std::memory_order_relaxed);
  counts.bytes[p][k].fetch_add(bytes, std::memory_order_relaxed);
}

void report_time(Clock clock, std::chrono::nanoseconds spent) {
  counts.nanoseconds[static_cast<int>(clock)].fetch_add(spent.count(), std::memory_order_relaxed);
}

void report_peer(PeerEvent event) {
  if (report_wanted) counts.peer[static_cast<int>(event)].fetch_add(1, std::memory_order_relaxed);
}

void report_fallback(const char* reason) {
  if (!report_wanted) return;
  LockGuard lock(fallback_mutex);
  add_fallback(fallbacks, reason, 1);
}

void report_print(Ranks ranks) {
  int rank = 0, size = 1;
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  PMPI_Comm_size(MPI_COMM_WORLD, &size);
  // Static: after a time-out the gather is still under way and may write here until MPI is finalized.
  static Record own;
  static auto& records = never_destroyed<std::vector<Record>>();
  own = own_record();
  if (ranks != Ranks::all) {  // there is no waiting for ranks that lack the library
    if (ranks == Ranks::own) print(sum({own}), 1, size);
    return;
  }
  records.resize(rank == 0 ? static_cast<std::size_t>(size) : 0);
  const bool complete = gather(own, records);
  if (rank != 0) return;
  print(sum(complete ? records : std::vector<Record>{own}), complete ? size : 1, size);
}

}  // namespace gpudt::interpose
