// What the programs of dCUDA's case studies share: each is measured as kernels that the host starts for each step, with
// MPI on device memory, and as one kernel whose thread blocks are ranks, with several numbers of threads for each.
#pragma once

#include <functional>
#include <string>

#include "initiated/programs/app_kernels.hpp"
#include "initiated/programs/session.hpp"

namespace gpudt::initiated::programs {

void measure_particles(Session& session);
void measure_stencil(Session& session);
/// `normalise`: the power iteration, else the product alone.
void measure_multiply(Session& session, bool normalise);

/// With the neighbours in a row of processes; those beyond the ends are none.
struct Neighbours {
  explicit Neighbours(const World& world);
  int up, down;
};

/// Waits for the kernels that the host has started.
void synchronise();

/// One application: its rows, and how its ways compare. `steps` are measured.
class AppRows {
 public:
  AppRows(Session& session, const char* app, int steps) : session_(session), app_(app), steps_(steps) {}

  /// Whether the work can be done by kernels that the host starts.
  bool has_host() const { return session_.processes() == 1 || session_.mpi_takes_device_memory(); }
  /// run(blocks, steps) of kernels that the host starts: measured with as many blocks as there are multiprocessors, and
  /// more; the quickest counts. Collective.
  void host(int most_blocks, const std::function<void(int, int)>& run, const std::string& wrong);
  /// For each number of threads: verify(ranks, threads) says what is wrong, run(ranks, threads, steps) is measured. Of
  /// ranks there are as many on each GPU as can be resident, but `most_ranks` at most. Collective.
  void kernels(const void* kernel, int most_ranks, const std::function<std::string(int, int)>& verify,
               const std::function<void(int, int, int)>& run);

 private:
  void show(const char* way, int blocks, int threads, double us, const std::string& wrong);
  Session& session_;
  const char* app_;
  int steps_;
  double by_host_ = 0;
};

}  // namespace gpudt::initiated::programs
