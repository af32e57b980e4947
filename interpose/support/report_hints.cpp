// What was slow in a run, and how to avoid it.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "interpose/support/report_record.hpp"

namespace gpudt::interpose::report {
namespace {

/// What each Fallback means; "%" is the number of times.
struct Advice {
  const char* what;
  const char* remedy;
};
constexpr Advice fallback_advice[fallback_kinds] = {
    {"% messages from GPU memory were received into host memory",
     "Receive into GPU memory: they are fetched then, without the way through shared memory"},
    {"% messages were staged because too many were under way", "Complete requests before more are started"},
    {"% reductions in GPU memory went through the host: GPUs do not reduce this operator or type",
     "Use a predefined operator on a basic type, or reduce by a kernel of your own"},
    {"% nonblocking or persistent collectives went through the host",
     "Within a node GPUs do nonblocking collectives if all data are in GPU memory"},
};

constexpr Advice refused_advice = {
    "% messages were offered, but could not be fetched by the receiver",
    "Receive into GPU memory; let the processes of a node see all its GPUs (CUDA_VISIBLE_DEVICES), and GPUs have peer "
    "access (nvidia-smi topo -p2p r)"};
constexpr Advice late_advice = {
    "kernels or copies began late % times, behind other work on the GPU",
    "Start communication before long kernels, or leave some of the GPU free; GPUDT_TIMELINE shows where"};

/// One late start among this number of transfers is not worth a hint.
constexpr std::int64_t seldom = 100;

/// The cost of the variables that the user has set.
constexpr Advice forced_advice[] = {
    {"GPUDT_CHECK=", "It looks at the buffers of all calls, which is slow: for finding mistakes alone"},
    {"GPUDT_TRACE=", "A line for each choice takes time: for finding out alone"},
    {"GPUDT_PROTOCOL=", "Without it each message goes the way that is expected to be quickest"},
    {"GPUDT_WAY=", "Without it kernels and copies are chosen by their expected cost"},
    {"GPUDT_RESIDENT=", "Without it the persistent kernel is there when it pays"},
};

std::string with_number(std::string_view text, std::int64_t number) {
  std::string filled(text);
  return filled.replace(filled.find('%'), 1, std::to_string(number));
}

void add(std::vector<Hint>& hints, const Advice& advice, std::int64_t times) {
  if (times != 0) hints.push_back({with_number(advice.what, times), advice.remedy, ""});
}

void add_forced(std::vector<Hint>& hints, const std::string& setting) {
  for (const Advice& advice : forced_advice)
    if (setting.starts_with(advice.what)) hints.push_back({setting + " is set", advice.remedy, ""});
}

/// Whether GPUDT_PROTOCOL forbids receivers to fetch.
bool fetching_forbidden(const Summary& summary) {
  const auto& forced = summary.forced;
  return std::find(forced.begin(), forced.end(), "GPUDT_PROTOCOL=shared") != forced.end() ||
         std::find(forced.begin(), forced.end(), "GPUDT_PROTOCOL=pipelined") != forced.end();
}

bool any_staged(const Summary& summary) {
  for (const Row& row : summary.rows)
    if (std::strcmp(row.way, went_staged) == 0) return true;
  return false;
}

}  // namespace

std::vector<Hint> hints(const Summary& summary) {
  std::vector<Hint> found;
  if (summary.rows.empty()) return found;
  for (int kind = 0; kind < fallback_kinds; ++kind) add(found, fallback_advice[kind], summary.fallbacks[kind]);
  // Messages that were received into host memory have a hint of their own.
  const std::int64_t refused = summary.of(PeerEvent::refused) - summary.of(Fallback::host_receive);
  if (refused > 0 && !fetching_forbidden(summary)) {
    add(found, refused_advice, refused);
    if (!summary.not_mapped.empty()) found.back().what += " (" + summary.not_mapped + ")";
  }
  const std::int64_t late = summary.movements[4], moved = summary.movements[0] + summary.movements[1];
  if (late * seldom > moved) add(found, late_advice, late);
  if (!summary.no_peers.empty() && any_staged(summary))
    found.push_back({"messages were staged: there are no peer transfers, " + summary.no_peers,
                     summary.no_peers == no_shared_memory ? "Enlarge it: docker run --shm-size=1g, or --ipc=host"
                                                          : "docs/limits.md has what they need",
                     ""});
  for (const std::string& setting : summary.forced) add_forced(found, setting);
  return found;
}

}  // namespace gpudt::interpose::report
