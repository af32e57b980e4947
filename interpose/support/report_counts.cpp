// The counters of this rank.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "base/mutex.hpp"
#include "interpose/support/report_record.hpp"

namespace gpudt::interpose {

bool report_wanted = false;
bool buffers_followed = false;
bool trace_wanted = false;

namespace {

using report::Row;
using report::Wait;

Mutex counts_mutex;
std::array<Row, report::most_rows> rows GUARDED_BY(counts_mutex){};
std::array<Wait, report::most_waits> waits GUARDED_BY(counts_mutex){};

struct Counts {
  std::atomic<std::int64_t> buffers[2], bytes[2];  ///< by GPUs, through the host
  std::atomic<std::int64_t> nanoseconds[clocks];
  std::atomic<std::int64_t> peer[peer_events];
  std::atomic<std::int64_t> fallbacks[fallback_kinds];
} counts;
std::atomic<const char*> no_peers{nullptr};
char not_mapped[sizeof(report::Record::not_mapped)] GUARDED_BY(counts_mutex) = "";

thread_local bool timing = false;  ///< whether a clock runs in this thread

/// The entry for which `is_it` holds, or else the first free one, or else the last.
template <class Entries, class IsIt>
auto& entry_for(Entries& entries, IsIt is_it) {
  const auto found = std::find_if(entries.begin(), entries.end(),
                                  [&](const auto& each) { return each.call[0] == '\0' || is_it(each); });
  return found == entries.end() ? entries.back() : *found;
}

/// Names a free entry. The last one is for all calls that find no free entry.
template <class Entry, class Entries>
void name_entry(Entry& entry, const Entries& entries, const char* call) {
  if (entry.call[0] == '\0') report::put_text(entry.call, &entry == &entries.back() ? "others" : call);
}

/// Whether `name` is what put_text() makes of `text`.
template <std::size_t size>
bool is_named(const char (&name)[size], const char* text) {
  return std::strncmp(name, text, size - 1) == 0;
}

void count_wait(const char* call, std::chrono::nanoseconds taken) {
  const LockGuard lock(counts_mutex);
  Wait& wait = entry_for(waits, [&](const Wait& each) { return is_named(each.call, call); });
  name_entry(wait, waits, call);
  ++wait.calls;
  wait.nanoseconds += taken.count();
}

struct Counter {
  const char* name;
  const char* meaning;
  const std::atomic<std::int64_t>& value;
};

/// Those of gpudt_counter(); null beyond the last.
const Counter* counter_number(int index) {
  const auto event = [](PeerEvent which) -> const auto& {
    return counts.peer[static_cast<int>(which)];
  };
  static const std::array<Counter, 13> counters = {{
      {"buffers_by_gpus", "buffers in GPU memory whose data GPUs moved", counts.buffers[0]},
      {"bytes_by_gpus", "bytes in GPU memory that GPUs moved", counts.bytes[0]},
      {"buffers_through_host", "buffers in GPU memory whose data went through memory of the host", counts.buffers[1]},
      {"bytes_through_host", "bytes in GPU memory that went through memory of the host", counts.bytes[1]},
      {"messages_offered", "messages that the receiver's GPU was to fetch", event(PeerEvent::offered)},
      {"messages_buffered", "messages offered, and copied away since no receive came in time",
       event(PeerEvent::buffered)},
      {"messages_refused", "messages offered, and sent through shared memory since the receiver could not fetch them",
       event(PeerEvent::refused)},
      {"messages_declined", "messages offered, and sent through shared memory since the sender could not write them",
       event(PeerEvent::declined)},
      {"messages_packed", "messages offered, and packed first by the sender's GPU", event(PeerEvent::packed)},
      {"messages_in_fragments", "messages offered, to other nodes", event(PeerEvent::remote)},
      {"messages_put", "messages offered, and written by the sender's GPU", event(PeerEvent::put)},
      {"collectives_by_gpus", "collective calls, by kernels or messages between GPUs", event(PeerEvent::collective)},
      {"messages_from_host", "messages from host memory that were offered to the receiver's GPU",
       event(PeerEvent::from_host)},
  }};
  return index < 0 || index >= static_cast<int>(counters.size()) ? nullptr : &counters[static_cast<std::size_t>(index)];
}

}  // namespace

void report_buffer(const char* call, const Went& went, datatype::ShapeKind kind, std::int64_t bytes,
                   std::chrono::nanoseconds taken) {
  const bool on_host = went.why_through_host != nullptr;
  counts.buffers[on_host ? 1 : 0].fetch_add(1, std::memory_order_relaxed);
  counts.bytes[on_host ? 1 : 0].fetch_add(bytes, std::memory_order_relaxed);
  if (!report_wanted) return;
  const char* const way = went.way;
  const auto kind_number = static_cast<std::int32_t>(kind);
  const LockGuard lock(counts_mutex);
  Row& row = entry_for(rows, [&](const Row& each) {
    return is_named(each.way, way) && each.kind == kind_number && is_named(each.call, call);
  });
  if (row.call[0] == '\0') {
    report::put_text(row.way, way);
    row.kind = kind_number;
  }
  name_entry(row, rows, call);
  ++row.buffers;
  row.bytes += bytes;
  row.nanoseconds += taken.count();
}

void Timed::start() {
  outermost_ = !timing;
  timing = true;
  begin_ = ReportClock::now();
}

void Timed::stop() {
  const auto taken = ReportClock::now() - begin_;
  timing = false;
  counts.nanoseconds[static_cast<int>(clock_)].fetch_add(taken.count(), std::memory_order_relaxed);
  if (call_ != nullptr) count_wait(call_, taken);
}

void report_peer_now(PeerEvent event) {
  counts.peer[static_cast<int>(event)].fetch_add(1, std::memory_order_relaxed);
}

const char* report_counter(int index, std::int64_t& value) {
  const Counter* const counter = counter_number(index);
  if (counter == nullptr) return nullptr;
  value = counter->value.load(std::memory_order_relaxed);
  return counter->name;
}

const char* report_counter_meaning(int index) {
  const Counter* const counter = counter_number(index);
  return counter == nullptr ? nullptr : counter->meaning;
}

void report_fallback_now(Fallback kind) {
  counts.fallbacks[static_cast<int>(kind)].fetch_add(1, std::memory_order_relaxed);
}

void report_no_peers(const char* why) {
  no_peers.store(why);
}

void report_not_mapped(const std::string& why) {
  if (!report_wanted) return;
  const LockGuard lock(counts_mutex);
  if (not_mapped[0] == '\0') report::put_text(not_mapped, why.c_str());
}

void report::counted(Record& record) {
  for (int c = 0; c < clocks; ++c) record.nanoseconds[c] = counts.nanoseconds[c];
  for (int e = 0; e < peer_events; ++e) record.peer[e] = counts.peer[e];
  for (int f = 0; f < fallback_kinds; ++f) record.fallbacks[f] = counts.fallbacks[f];
  if (const char* const why = no_peers.load()) put_text(record.no_peers, why);
  const LockGuard lock(counts_mutex);
  std::copy(rows.begin(), rows.end(), record.rows);
  std::copy(waits.begin(), waits.end(), record.waits);
  put_text(record.not_mapped, not_mapped);
}

}  // namespace gpudt::interpose
