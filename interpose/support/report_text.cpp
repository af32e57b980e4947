// The report as text: a screenful.
#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "interpose/support/report_record.hpp"

namespace gpudt::interpose::report {
namespace {

constexpr std::size_t most_rows_printed = 20;
constexpr std::size_t most_hosts_printed = 3;

__attribute__((format(printf, 1, 2))) std::string formatted(const char* format, ...) {
  char line[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  return line;
}

std::string counted(std::size_t number, const char* what) {
  return std::to_string(number) + " " + what + (number == 1 ? "" : "s");
}

/// "512 B", "3.9 KiB".
std::string size_text(double bytes) {
  constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < std::size(units); ++unit) bytes /= 1024;
  return formatted(unit == 0 ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
}

/// "2 x NVIDIA H200 (0, 1)": the GPUs by name, with the ordinals that their ranks see.
std::string gpus_text(const Host& host) {
  std::map<std::string, std::pair<std::size_t, std::set<int>>> by_name;
  for (const auto& [id, gpu] : host.gpus) {
    auto& [number, ordinals] = by_name[gpu.name];
    ++number;
    ordinals.insert(gpu.ordinal);
  }
  std::string text;
  for (const auto& [name, found] : by_name) {
    std::string ordinals;
    for (const int ordinal : found.second) ordinals += (ordinals.empty() ? "" : ", ") + std::to_string(ordinal);
    if (!text.empty()) text += "; ";
    text += std::to_string(found.first) + " x ";
    text.append(name).append(" (").append(ordinals).append(")");
  }
  return text.empty() ? "no GPU used" : "GPUs: " + text;
}

std::string hosts_text(const Summary& summary) {
  std::string text;
  std::size_t others = 0;
  for (std::size_t i = 0; i < summary.hosts.size(); ++i) {
    const Host& host = summary.hosts[i];
    if (i < most_hosts_printed)
      text += "  host " + host.name + ": " + counted(host.ranks.size(), "rank") + "; " + gpus_text(host) + "\n";
    else
      others += host.ranks.size();
  }
  if (others != 0)
    text += "  and " + counted(summary.hosts.size() - most_hosts_printed, "more host") + " with " +
            counted(others, "rank") + "\n";
  return text;
}

std::string table(const Summary& summary) {
  if (summary.rows.empty()) return "  no device buffer was passed to MPI\n";
  std::string text = formatted("  %-24s %-15s %-11s %9s %10s %10s %10s %10s\n", "call", "protocol", "layout", "buffers",
                               "bytes", "mean size", "time ms", "mean us");
  const std::size_t printed = std::min(summary.rows.size(), most_rows_printed);
  for (std::size_t i = 0; i < printed; ++i) {
    const Row& row = summary.rows[i];
    const auto number = static_cast<double>(row.buffers), time = static_cast<double>(row.nanoseconds);
    text += formatted("  %-24s %-15s %-11s %9lld %10lld %10s %10.3f %10.1f\n", row.call, row.way, layout_name(row),
                      static_cast<long long>(row.buffers), static_cast<long long>(row.bytes),
                      size_text(static_cast<double>(row.bytes) / number).c_str(), time * 1e-6, time * 1e-3 / number);
  }
  if (printed < summary.rows.size())
    text += "  and " + counted(summary.rows.size() - printed, "shorter row") + ": GPUDT_REPORT=FILE.json has all\n";
  return text;
}

std::string times_text(const Summary& summary) {
  const auto mean = [&](double seconds) { return seconds * 1e3 / std::max(summary.ranks, 1); };
  const auto clock = [&](Clock which) { return mean(summary.seconds[static_cast<std::size_t>(which)]); };
  std::string text = formatted(
      "  inside MPI calls, mean of ranks: %.3f ms of %.3f ms since MPI_Init (%.1f %%); most: rank %d, %.3f ms\n",
      mean(summary.in_calls), summary.run * 1e3, summary.run > 0 ? mean(summary.in_calls) * 0.1 / summary.run : 0.0,
      summary.busiest, summary.most_in_calls * 1e3);
  text += formatted("    of these: %.3f ms waiting for GPUs and receivers, %.3f ms in MPI, %.3f ms completing requests",
                    clock(Clock::transfer), clock(Clock::mpi), clock(Clock::completion));
  std::string waits;
  for (const Wait& wait : summary.waits)
    waits += formatted("%s%s: %lld calls, %.3f ms", waits.empty() ? "" : "; ", wait.call,
                       static_cast<long long>(wait.calls), mean(seconds_of(wait.nanoseconds)));
  return text + (waits.empty() ? "" : " (" + waits + ")") + "\n";
}

std::string messages_text(const Summary& summary) {
  std::string text;
  const auto messages = [&](auto... events) { return std::to_string((summary.of(events) + ...)); };
  if (summary.of(PeerEvent::offered) != 0)
    text += "  peer transfer: " + messages(PeerEvent::offered) + " messages offered; of these " +
            messages(PeerEvent::packed) + " packed to be fetched, " + messages(PeerEvent::put) +
            " written by their senders, " + messages(PeerEvent::refused, PeerEvent::declined) +
            " through shared memory, " + messages(PeerEvent::remote) + " in fragments by messages, " +
            messages(PeerEvent::buffered) + " buffered\n";
  if (summary.of(PeerEvent::collective) != 0)
    text += "  collectives by GPUs: " + messages(PeerEvent::collective) + " calls\n";
  return text;
}

std::string movements_text(const Summary& summary) {
  const auto moved = [&](int which) { return std::to_string(summary.movements[which]); };
  std::string text = "  packs, unpacks and copies: " + moved(0) + " by kernels, " + moved(1) + " by the copy engine";
  if (summary.movements[2] != 0) text += "; " + moved(3) + " of the former in " + moved(2) + " launches of several";
  if (summary.movements[5] != 0) text += "; " + moved(5) + " of the former by a kernel that was there already";
  return text + "\n" +
         formatted("  staging memory at its peak, largest rank: %s mapped host, %s device\n",
                   size_text(static_cast<double>(summary.staging_peak[0])).c_str(),
                   size_text(static_cast<double>(summary.staging_peak[1])).c_str());
}

}  // namespace

std::string as_text(const Summary& summary) {
  std::string text = "gpudt report: " + std::to_string(summary.ranks) + " of " + std::to_string(summary.expected) +
                     " ranks, device: " + summary.device + "\n" + hosts_text(summary) + table(summary);
  if (!summary.rows.empty()) text += times_text(summary);
  text += messages_text(summary) + movements_text(summary);
  for (const std::string& source : summary.costs) text += "  costs of kernels and copies, rank 0, " + source + "\n";
  for (const Hint& hint : summary.hints) text += "  hint: " + hint.what + ". " + hint.remedy + ".\n";
  if (!summary.rows.empty())
    text +=
        "  legend: time: from the call until the buffer was sent or received, summed over buffers and ranks; "
        "protocols\n"
        "  and hints: docs/report.md\n";
  return text;
}

}  // namespace gpudt::interpose::report
