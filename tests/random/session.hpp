// What the parts of the randomised program (differential.cpp) share: random decisions, communicators, the log that two
// runs of the program are compared by, and failures.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "tests/random/arena.hpp"
#include "tests/support/mpi_harness.hpp"

namespace gpudt::test {

/// Random decisions: one key makes the same ones everywhere.
class Dice {
 public:
  explicit Dice(std::uint64_t key) : random_(key) {}
  std::mt19937_64& engine() { return random_; }
  std::uint64_t word() { return random_(); }
  int below(int end) { return static_cast<int>(random_() % static_cast<std::uint64_t>(end)); }
  int between(int low, int high) { return low + below(high - low + 1); }
  bool one_in(int chances) { return below(chances) == 0; }
  bool percent(int chance) { return below(100) < chance; }
  template <class Values>
  auto pick(const Values& values) {
    return values[static_cast<std::size_t>(below(static_cast<int>(std::size(values))))];
  }

 private:
  std::mt19937_64 random_;
};

/// A communicator as every rank knows it, whether or not it is a member.
struct Communicator {
  MPI_Comm handle = MPI_COMM_NULL;  ///< MPI_COMM_NULL in a rank that is not a member
  std::vector<int> group;           ///< ranks of MPI_COMM_WORLD, in the order of the communicator
  std::vector<int> remote = {};     ///< the other group of an intercommunicator

  bool inter() const { return !remote.empty(); }
  bool has(int world_rank) const;
  /// In the group that the process belongs to.
  int rank_of(int world_rank) const;
  /// Whom this process communicates with: the other group of an intercommunicator.
  const std::vector<int>& peers_of(int world_rank) const;
};

/// Memory of one round, of every kind, by place.
class Arenas {
 public:
  Arena& at(Place place) { return arenas_[static_cast<std::size_t>(place)]; }
  void clear(bool release);                          ///< forgets the reservations; `release`: frees the memory, too
  void prepare(std::uint64_t key);                   ///< allocates, and fills the images with a pattern
  void upload();                                     ///< the images to memory
  void download();                                   ///< memory to what was found
  std::string difference(std::size_t& wrong) const;  ///< between the images and what was found

 private:
  std::vector<Arena> arenas_{std::begin(all_places), std::end(all_places)};
};

/// One thread's part of the program: communicators and memory of its own.
struct Context {
  Context(std::uint64_t seed, int thread, int threads);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  void make_communicators();
  void free_communicators();
  void begin_round(int number);
  /// Whether any rank has failed. Collective.
  bool any_failed();
  void log(const std::string& text);
  void fail(const std::string& text);
  /// Fails unless the call's error is of the class wanted; true if it is.
  bool check(int error, const char* call, int wanted = MPI_SUCCESS);
  void step(const std::string& text);
  std::string where();
  /// Compares all memory with what it should hold, guard zones included.
  void compare_memory();
  /// Memory for a buffer: on the device for `chance` of a hundred, now and then of a rarer kind.
  Place place(Dice& dice, int chance) const;
  bool single_threaded() const { return threads_ == 1; }

  const std::uint64_t seed;
  const int thread;
  int round = 0;
  std::uint64_t key = 0;  ///< of the round, the same on all ranks
  MPI_Comm control = MPI_COMM_NULL;
  std::vector<Communicator> communicators;
  MPI_Comm graph = MPI_COMM_NULL;  ///< a communicator of all ranks, whose neighbours are as has_edge() says
  Arenas arenas;
  std::vector<std::string> lines;
  int failures = 0;
  std::int64_t messages = 0;     ///< received and verified by this thread
  std::int64_t collectives = 0;  ///< of all processes together, counted by rank 0 alone
  std::atomic<double> last_step = 0;

 private:
  int threads_;
  std::mutex mutex_;
  std::string step_;
};

/// Whether process `to` is a neighbour that process `from` sends to, in Context::graph.
bool has_edge(int from, int to);
/// Bytes that depend on the key and on the place within.
void fill_pattern(char* data, std::size_t bytes, std::uint64_t key);
std::string hash_of(const char* data, std::size_t bytes);

// The kinds of rounds.
void exchange_messages(Context& context);
void exchange_persistent(Context& context);
void call_collectives(Context& context);
void access_windows(Context& context);

}  // namespace gpudt::test
