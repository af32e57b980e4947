#include "tests/random/session.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "tests/random/layout.hpp"
#include "tests/support/mpi_world.hpp"

namespace gpudt::test {
namespace {

constexpr int most_reported = 8;  ///< failures printed by each thread

std::vector<int> ranks_with(int remainder) {
  std::vector<int> found;
  for (int i = remainder; i < ranks(); i += 2) found.push_back(i);
  return found;
}

}  // namespace

bool Communicator::has(int world_rank) const {
  const auto in = [&](const std::vector<int>& list) {
    return std::find(list.begin(), list.end(), world_rank) != list.end();
  };
  return in(group) || in(remote);
}

int Communicator::rank_of(int world_rank) const {
  for (const auto* list : {&group, &remote}) {
    const auto found = std::find(list->begin(), list->end(), world_rank);
    if (found != list->end()) return static_cast<int>(found - list->begin());
  }
  return MPI_PROC_NULL;
}

const std::vector<int>& Communicator::peers_of(int world_rank) const {
  const bool in_group = std::find(group.begin(), group.end(), world_rank) != group.end();
  return inter() && in_group ? remote : group;
}

void Arenas::clear(bool release) {
  for (Arena& arena : arenas_) arena.clear(release);
}

void Arenas::prepare(std::uint64_t key) {
  for (Arena& arena : arenas_) arena.prepare(key);
}

void Arenas::upload() {
  for (Arena& arena : arenas_) arena.upload();
}

void Arenas::download() {
  for (Arena& arena : arenas_) arena.download();
}

std::string Arenas::difference(std::size_t& wrong) const {
  std::string first;
  for (const Arena& arena : arenas_) {
    const std::string found = arena.difference(wrong);
    if (first.empty()) first = found;
  }
  return first;
}

Context::Context(std::uint64_t seed_, int thread_, int threads) : seed(seed_), thread(thread_), threads_(threads) {
  PMPI_Comm_dup(world(), &control);
  make_communicators();
}

Context::~Context() {
  free_communicators();
  PMPI_Comm_free(&control);
}

void Context::make_communicators() {
  std::vector<int> all(static_cast<std::size_t>(ranks()));
  for (int i = 0; i < ranks(); ++i) all[static_cast<std::size_t>(i)] = i;
  for (int i = 0; i < 2; ++i) {
    communicators.push_back({MPI_COMM_NULL, all});
    MPI_Comm_dup(control, &communicators.back().handle);
  }
  communicators.push_back({MPI_COMM_NULL, {all.rbegin(), all.rend()}});
  MPI_Comm_split(control, 0, ranks() - rank(), &communicators.back().handle);
  if (ranks() > 1) {
    MPI_Comm half = MPI_COMM_NULL, between = MPI_COMM_NULL;
    const int odd = rank() % 2;
    MPI_Comm_split(control, odd, rank(), &half);
    MPI_Intercomm_create(half, 0, control, 1 - odd, 5, &between);
    communicators.push_back({odd == 0 ? half : MPI_COMM_NULL, ranks_with(0)});
    communicators.push_back({odd == 1 ? half : MPI_COMM_NULL, ranks_with(1)});
    communicators.push_back({between, ranks_with(0), ranks_with(1)});
  }
  std::vector<int> sources, destinations;
  for (int i = 0; i < ranks(); ++i) {
    if (has_edge(i, rank())) sources.push_back(i);
    if (has_edge(rank(), i)) destinations.push_back(i);
  }
  MPI_Dist_graph_create_adjacent(control, static_cast<int>(sources.size()), sources.data(), MPI_UNWEIGHTED,
                                 static_cast<int>(destinations.size()), destinations.data(), MPI_UNWEIGHTED,
                                 MPI_INFO_NULL, 0, &graph);
  MPI_Comm_set_errhandler(graph, MPI_ERRORS_RETURN);
  for (const Communicator& made : communicators)
    if (made.handle != MPI_COMM_NULL) MPI_Comm_set_errhandler(made.handle, MPI_ERRORS_RETURN);
}

void Context::free_communicators() {
  for (Communicator& made : communicators)
    if (made.handle != MPI_COMM_NULL) MPI_Comm_free(&made.handle);
  communicators.clear();
  MPI_Comm_free(&graph);
}

void Context::begin_round(int number) {
  round = number;
  key = mix(mix(seed, static_cast<std::uint64_t>(thread)), static_cast<std::uint64_t>(number));
  Dice dice(mix(key, 1));
  if (single_threaded() && dice.one_in(8)) {
    free_communicators();
    make_communicators();
  }
  arenas.clear(dice.one_in(3));
}

bool Context::any_failed() {
  int mine = failures != 0 ? 1 : 0, any = 0;
  PMPI_Allreduce(&mine, &any, 1, MPI_INT, MPI_MAX, control);
  return any != 0;
}

void Context::log(const std::string& text) {
  lines.push_back("thread " + std::to_string(thread) + " round " + std::to_string(round) + " " + text);
}

std::string Context::where() {
  std::lock_guard lock(mutex_);
  return "[rank " + std::to_string(rank()) + ", thread " + std::to_string(thread) + ", seed " + std::to_string(seed) +
         ", round " + std::to_string(round) + "] " + step_;
}

void Context::fail(const std::string& text) {
  if (++failures > most_reported) return;
  std::fprintf(stderr, "%s: %s\n", where().c_str(), text.c_str());
}

bool Context::check(int error, const char* call, int wanted) {
  const int found = error == MPI_SUCCESS ? MPI_SUCCESS : error_class(error);
  if (found == wanted) return true;
  fail(std::string(call) + ": " + (error == MPI_SUCCESS ? "no error" : error_text(error)) + ", class " +
       std::to_string(found) + ", expected " + std::to_string(wanted));
  return false;
}

void Context::step(const std::string& text) {
  std::lock_guard lock(mutex_);
  step_ = text;
  last_step = PMPI_Wtime();
}

void Context::compare_memory() {
  std::size_t wrong = 0;
  const std::string first = arenas.difference(wrong);
  if (!first.empty()) fail(std::to_string(wrong) + " wrong bytes, the first in " + first);
}

Place Context::place(Dice& dice, int chance) const {
  if (!dice.percent(chance))
    return dice.one_in(12) ? dice.pick(std::vector{Place::pinned, Place::registered}) : Place::host;
  if (!dice.one_in(8)) return Place::device;
  return dice.pick(
      std::vector{Place::managed, Place::stream_ordered, Place::mapped, Place::shareable, Place::other_gpu});
}

bool has_edge(int from, int to) {
  return mix(static_cast<std::uint64_t>(from), static_cast<std::uint64_t>(to)) % 3 != 0;
}

void fill_pattern(char* data, std::size_t bytes, std::uint64_t key) {
  for (std::size_t at = 0; at < bytes; at += sizeof(std::uint64_t)) {
    const std::uint64_t value = mix(key, at);
    std::memcpy(data + at, &value, std::min(sizeof value, bytes - at));
  }
}

std::string hash_of(const char* data, std::size_t bytes) {
  std::uint64_t hash = bytes;
  for (std::size_t at = 0; at < bytes; at += sizeof hash) {
    std::uint64_t value = 0;
    std::memcpy(&value, data + at, std::min(sizeof value, bytes - at));
    hash = mix(hash, value);
  }
  char text[20];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

}  // namespace gpudt::test
