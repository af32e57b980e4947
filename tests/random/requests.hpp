// Requests under way, completed by every function that MPI has for that, in random order.
#pragma once

#include <mpi.h>

#include <string>
#include <vector>

#include "tests/random/session.hpp"

namespace gpudt::test {

/// What became of an operation.
struct Outcome {
  bool done = false;
  int error = MPI_SUCCESS;
  MPI_Status status = {};
  const char* call = "";  ///< the function that completed it
};

enum class After {
  anything,    ///< may be waited for at any time
  everything,  ///< only at the end: completes for sure only when all others have started everything
};

class Requests {
 public:
  /// `persistent`: requests are left alone once they are complete.
  Requests(Context& context, std::uint64_t key, bool persistent = false)
      : context_(context), dice_(key), persistent_(persistent) {}

  /// The slot of its outcome. `fails`: with an error. Those are completed one at a time: of several requests Open MPI
  /// 4.1 may then free some of which it does not tell.
  int add(MPI_Request request, After after = After::anything, bool fails = false);
  /// The slot of an operation that is complete.
  int add_done(int error, const MPI_Status& status);
  const Outcome& outcome(int slot) const { return outcomes_[static_cast<std::size_t>(slot)]; }
  /// Perhaps tests or waits for some.
  void act();
  /// Completes all; `names` tells what they are, where one of them never ends.
  void finish(const std::string& names = "");
  bool empty() const { return pending_.empty(); }

 private:
  struct Pending {
    MPI_Request request;
    int slot;
    After after;
    bool fails;
  };

  std::vector<std::size_t> choose(bool waiting, bool finishing);
  void complete(std::size_t index, int error, const MPI_Status& status, const char* call);
  void forget_done();
  void one(bool wait, std::size_t index);
  void status_first(std::size_t index);
  void any(bool wait, const std::vector<std::size_t>& chosen);
  void some(bool wait, const std::vector<std::size_t>& chosen);
  void all(bool wait, const std::vector<std::size_t>& chosen);
  void none_active(const std::vector<std::size_t>& chosen, const char* call);
  void do_something(bool finishing);
  std::vector<MPI_Request> requests_of(const std::vector<std::size_t>& chosen) const;
  void put_back(const std::vector<std::size_t>& chosen, const std::vector<MPI_Request>& requests);

  Context& context_;
  Dice dice_;
  bool persistent_;
  std::vector<Pending> pending_;
  std::vector<Outcome> outcomes_;
};

}  // namespace gpudt::test
