#include "interpose/job/presence.hpp"

#include <algorithm>
#include <atomic>
#include <numeric>

#include "base/never_destroyed.hpp"
#include "interpose/job/launcher.hpp"
#include "interpose/mpi/workarounds.hpp"
#include "interpose/support/log.hpp"

namespace gpudt::interpose {
namespace {

auto& job = never_destroyed<std::string>();
auto& announced = never_destroyed<std::vector<int>>();  ///< by rank in MPI_COMM_WORLD; empty: nothing is known
auto& started = never_destroyed<std::vector<std::atomic<peer::Started>>>();  ///< by rank, as far as it is known
bool all_on_node = false;                                                    ///< all processes of the job
int lacking_on_node = 0;                                                     ///< how many processes lack the library
bool lowest = false;  ///< of those that have it, this process has the lowest rank
std::atomic<bool> answers{false};
std::atomic<bool> has_session{false};  ///< the program has made one

/// "0, 2-5"
std::string listed(const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t first = 0, last = 0; first < ranks.size(); first = ++last) {
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += (text.empty() ? "" : ", ") + std::to_string(ranks[first]);
    if (last > first) text += "-" + std::to_string(ranks[last]);
  }
  return text;
}

std::vector<int> all_without() {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < announced.size(); ++rank)
    if (announced[rank] == 0) ranks.push_back(static_cast<int>(rank));
  return ranks;
}

std::string on_this_host() {
  char host[MPI_MAX_PROCESSOR_NAME] = "";
  int length = 0;
  PMPI_Get_processor_name(host, &length);
  return std::string(" on host ") + host;
}

void warn() {
  log_warning(all_on_node ? presence_complaint(all_without())
                          : std::to_string(lacking_on_node) + " of the ranks" + on_this_host() +
                                " run without gpudt. " + presence_remedy());
}

}  // namespace

void presence_note_session() {
  has_session.store(true);
}

bool presence_announce(int what) {
  constexpr int here_alone = 1;  // matches no other announcement
  job = job_name();
  const int rank = rank_by_launcher();
  const bool alone = has_session.load();
  return rank >= 0 && !job.empty() && peer::announce(job, rank, alone ? here_alone : what, processes_on_node()) &&
         !alone;
}

// All processes are looked up now: later they may have ended, or this process may have no means to see them.
void presence_start() {
  answers.store(true);
  int rank = 0, size = 0;
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  PMPI_Comm_size(MPI_COMM_WORLD, &size);
  if (job.empty() || has_session.load() || !init_waits_for_all()) return log_trace("which ranks have gpudt is unknown");
  peer::all_have_announced(job);
  started = std::vector<std::atomic<peer::Started>>(static_cast<std::size_t>(size));
  for (int other = 0; other < size; ++other) announced.push_back(peer::announced(job, other));
  const auto present = static_cast<int>(announced.size() - all_without().size());
  if (present == 0) return announced.clear();  // without a file nobody sees any process: treat all as unknown
  // Other processes do not see this one, so it must not take part.
  if (announced[static_cast<std::size_t>(rank)] == 0) return answers.store(false);
  const int here = processes_on_node();
  all_on_node = here == size;
  lacking_on_node = std::max(0, here - present);
  lowest = std::all_of(announced.begin(), announced.begin() + rank, [](int what) { return what == 0; });
  if (lacking_on_node != 0 && lowest) warn();
  if (!all_on_node) log_trace("which ranks of other nodes have gpudt is unknown to windows");
}

void presence_tell_started(bool has_segment) noexcept {
  peer::tell_started(has_segment ? peer::Started::on : peer::Started::off);
}

peer::Started presence_started(int world_rank) noexcept {
  std::atomic<peer::Started>& known = started[static_cast<std::size_t>(world_rank)];
  if (known.load(std::memory_order_acquire) == peer::Started::not_yet)
    known.store(peer::started(world_rank), std::memory_order_release);
  return known.load(std::memory_order_acquire);
}

void presence_stop() {
  answers.store(false);
}

bool presence_says_first(const std::string& text) {
  return job.empty() || peer::says_first(job, text);
}

bool presence_answers() {
  return answers.load(std::memory_order_acquire);
}

int presence_announced(int world_rank) {
  return world_rank >= 0 && static_cast<std::size_t>(world_rank) < announced.size()
             ? announced[static_cast<std::size_t>(world_rank)]
             : 0;
}

bool presence_rules_out(int world_rank) {
  return !announced.empty() && presence_announced(world_rank) == 0;
}

Absence presence_absence(MPI_Group group) {
  int size = 0;
  MPI_Group all = MPI_GROUP_NULL;
  PMPI_Group_size(group, &size);
  std::vector<int> members(static_cast<std::size_t>(size)), ranks(members.size());
  std::iota(members.begin(), members.end(), 0);
  PMPI_Comm_group(MPI_COMM_WORLD, &all);
  PMPI_Group_translate_ranks(group, size, members.data(), all, ranks.data());
  PMPI_Group_free(&all);
  std::sort(ranks.begin(), ranks.end());
  Absence absence;
  for (const int rank : ranks)
    if (presence_announced(rank) == 0)
      (all_on_node && rank != MPI_UNDEFINED ? absence.lacking : absence.unknown).push_back(rank);
  return absence;
}

bool presence_incomplete() {
  return lacking_on_node != 0;
}

bool presence_speaks() {
  return lowest;
}

// Those that are known to lack the library are on this host.
std::string presence_complaint(const std::vector<int>& lacking) {
  const bool one = lacking.size() == 1;
  return (one ? "rank " : "ranks ") + listed(lacking) + on_this_host() + (one ? " runs" : " run") + " without gpudt. " +
         presence_remedy();
}

std::string presence_remedy() {
#ifdef OPEN_MPI
  constexpr const char* option = "mpirun -x LD_PRELOAD";
#else
  constexpr const char* option = "mpirun -genv LD_PRELOAD";
#endif
  return std::string("libgpudt-pmpi.so is to be preloaded on all ranks (") + option + ")";
}

}  // namespace gpudt::interpose
