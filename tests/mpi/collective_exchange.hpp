// Collectives that move data unchanged, on communicators of every sort.
#pragma once

#include <mpi.h>

#include <random>
#include <string>
#include <vector>

#include "tests/mpi/collective_calls.hpp"

namespace gpudt::test {

/// A communicator and who talks to whom on it. Processes are named by their rank in comm().
class Peers {
 public:
  static constexpr int nobody = -1;  ///< MPI_PROC_NULL

  static Peers all();
  /// Ranks in reverse order.
  static Peers reversed();
  /// The first `first` processes and the others.
  static Peers intercommunicator(int first);
  /// A cartesian ring, of three processes at least: two neighbours in one process are too much for Open MPI 4.1, whose
  /// blocking and nonblocking collectives then disagree which is which.
  static Peers ring();
  /// Two dimensions, not periodic: some processes have no neighbour on some side.
  static Peers grid();
  /// Process 0 with all others.
  static Peers star();
  /// Some send where they do not receive from; process 0 to itself, too.
  static Peers directed();
  ~Peers();
  Peers(Peers&& other) noexcept;
  Peers& operator=(Peers&&) = delete;

  MPI_Comm comm() const { return comm_; }
  const std::string& text() const { return text_; }
  bool inter() const { return inter_; }
  const std::vector<int>& to() const { return to_; }
  const std::vector<int>& from() const { return from_; }
  /// On this process' side of an intercommunicator.
  bool near(int process) const;
  /// The root argument of this process if `process` is the root.
  int root_argument(int process) const;

 private:
  static Peers cartesian(int dimensions, const int* dims, int periodic, std::string text);
  Peers(MPI_Comm comm, std::string text, std::vector<int> to, std::vector<int> from, bool inter = false);
  MPI_Comm comm_;
  std::string text_;
  std::vector<int> to_, from_;
  bool inter_;
};

/// One call to make: the same on all processes but for the places.
struct Exchange {
  const Operation& operation;
  Form form;
  const Peers& peers;
  const std::vector<Pair>& types;  ///< w forms use all, others the first
  std::vector<int> counts;         ///< blocks of the v and w forms take them in turn, other blocks the first
  int root;
  bool in_place;
  std::vector<Place> send_places, receive_places;  ///< by process

  std::string text() const;
};

/// Buffers and arguments of one call, for this process.
struct Prepared {
  Region send, receive;
  Arguments arguments, reference;

  void fill(int round);
};
Prepared prepare(const Exchange& exchange);

/// Makes the call and the reference call and compares.
void exchange(const Exchange& exchange);
/// Types of equal signature.
Pair random_types(std::mt19937_64& random);
/// A kind of memory for each process.
std::vector<Place> mixed(std::mt19937_64& random);

/// For one operation and form: every mix of places, and random ones; every root in turn, in place where that is legal,
/// types at random.
void exchange_all(const Operation& operation, const Peers& peers, std::mt19937_64& random, int random_cases);

}  // namespace gpudt::test
