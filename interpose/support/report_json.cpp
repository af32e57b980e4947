// The report as JSON, for scripts/gpudt-report and others.
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "interpose/support/report_record.hpp"

namespace gpudt::interpose::report {
namespace {

bool is_plain(unsigned char c) {
  return c >= 0x20 && c < 0x7f && c != '"' && c != '\\';
}

/// Other characters than ASCII, which names of hosts and GPUs may contain in any encoding, become "?".
std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      (out += '\\') += c;
    else if (is_plain(byte))
      out += c;
    else if (byte < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(byte));
      out += escape;
    } else
      out += '?';
  }
  return out + '"';
}

/// Avoids printf(), whose decimal point depends on the program's locale.
std::string number(double value) {
  char text[64];
  const auto end = std::to_chars(std::begin(text), std::end(text), value).ptr;
  return std::string(std::begin(text), end);
}

/// A JSON object, made member by member.
class Object {
 public:
  Object& add(std::string_view name, std::string_view json) {
    ((text_ += text_.empty() ? "" : ", ") += in_quotes(name) + ": ") += json;
    return *this;
  }
  Object& add(std::string_view name, std::int64_t value) { return add(name, std::to_string(value)); }
  std::string text() const { return "{" + text_ + "}"; }

 private:
  std::string text_;
};

template <class Entries, class ToJson>
std::string list(const Entries& entries, ToJson to_json, const char* between = ", ") {
  std::string text;
  for (const auto& entry : entries) (text += text.empty() ? "" : between) += to_json(entry);
  return "[" + text + "]";
}
constexpr const char* own_lines = ",\n    ";

std::string row_json(const Row& row) {
  return Object()
      .add("call", in_quotes(row.call))
      .add("protocol", in_quotes(row.way))
      .add("layout", in_quotes(layout_name(row)))
      .add("buffers", row.buffers)
      .add("bytes", row.bytes)
      .add("seconds", number(seconds_of(row.nanoseconds)))
      .text();
}

std::string wait_json(const Wait& wait) {
  return Object()
      .add("call", in_quotes(wait.call))
      .add("calls", wait.calls)
      .add("seconds", number(seconds_of(wait.nanoseconds)))
      .text();
}

std::string ranks_json(const std::vector<int>& ranks) {
  return list(ranks, [](int rank) { return std::to_string(rank); });
}

std::string host_json(const Host& host) {
  const auto gpu_json = [](const auto& entry) {
    const Host::Gpu& gpu = entry.second;
    return Object()
        .add("name", in_quotes(gpu.name))
        .add("ordinal", std::int64_t{gpu.ordinal})
        .add("ranks", ranks_json(gpu.ranks))
        .text();
  };
  return Object()
      .add("name", in_quotes(host.name))
      .add("ranks", ranks_json(host.ranks))
      .add("gpus", list(host.gpus, gpu_json))
      .text();
}

std::string times_json(const Summary& summary) {
  const auto clock = [&](Clock which) { return number(summary.seconds[static_cast<std::size_t>(which)]); };
  return Object()
      .add("run", number(summary.run))
      .add("in_calls", number(summary.in_calls))
      .add("waiting_for_gpus_and_receivers", clock(Clock::transfer))
      .add("in_mpi", clock(Clock::mpi))
      .add("completing_requests", clock(Clock::completion))
      .add("busiest_rank", std::int64_t{summary.busiest})
      .add("in_calls_of_busiest", number(summary.most_in_calls))
      .text();
}

std::string messages_json(const Summary& summary) {
  return Object()
      .add("offered", summary.of(PeerEvent::offered))
      .add("packed", summary.of(PeerEvent::packed))
      .add("written_by_sender", summary.of(PeerEvent::put))
      .add("through_shared_memory", summary.of(PeerEvent::refused) + summary.of(PeerEvent::declined))
      .add("in_fragments", summary.of(PeerEvent::remote))
      .add("buffered", summary.of(PeerEvent::buffered))
      .text();
}

std::string movements_json(const Summary& summary) {
  constexpr const char* names[] = {"by_kernels",        "by_copy_engine", "launches_of_several",
                                   "launched_together", "begun_late",     "by_persistent_kernel"};
  Object moved;
  for (std::size_t i = 0; i < std::size(names); ++i) moved.add(names[i], summary.movements[i]);
  return moved.text();
}

std::string hint_json(const Hint& hint) {
  return Object()
      .add("about", in_quotes(hint.about))
      .add("what", in_quotes(hint.what))
      .add("remedy", in_quotes(hint.remedy))
      .text();
}

}  // namespace

std::string as_json(const Summary& summary) {
  const auto member = [](const char* name, const std::string& json) { return "  " + in_quotes(name) + ": " + json; };
  const std::string members[] = {
      member("gpudt_report", "1"),
      member("version", in_quotes(GPUDT_VERSION)),
      member("ranks", std::to_string(summary.ranks)),
      member("expected_ranks", std::to_string(summary.expected)),
      member("device", in_quotes(summary.device)),
      member("hosts", list(summary.hosts, host_json, own_lines)),
      member("rows", list(summary.rows, row_json, own_lines)),
      member("completions", list(summary.waits, wait_json, own_lines)),
      member("seconds", times_json(summary)),
      member("messages", messages_json(summary)),
      member("collectives_by_gpus", std::to_string(summary.of(PeerEvent::collective))),
      member("movements", movements_json(summary)),
      member("staging_peak_bytes",
             Object().add("mapped", summary.staging_peak[0]).add("device", summary.staging_peak[1]).text()),
      member("costs", list(summary.costs, in_quotes)),
      member("hints", list(summary.hints, hint_json, own_lines)),
  };
  std::string text;
  for (const std::string& each : members) (text += text.empty() ? "{\n" : ",\n") += each;
  return text + "\n}\n";
}

}  // namespace gpudt::interpose::report
