#include "pingpong/common/program.hpp"

#include <fmt/format.h>
#include <mpi.h>

#include <cstdio>
#include <exception>

#include "pingpong/common/machine.hpp"
#include "pingpong/common/options.hpp"

namespace gpudt::bench {
namespace {

int guarded(const char* name, const std::function<int(int rank, int size)>& body) {
  int rank = 0, size = 0;
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  PMPI_Comm_size(MPI_COMM_WORLD, &size);
  try {
    return body(rank, size);
  } catch (const Refusal& refusal) {
    if (rank == 0) fmt::print(stderr, "{}: {}\n", name, refusal.what());
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", name, error.what());
    MPI_Abort(MPI_COMM_WORLD, exit_usage);
  }
  return exit_usage;
}

}  // namespace

int run_program(const char* name, int argc, char** argv, const std::function<int(int rank, int size)>& body,
                bool threads) {
  int level = MPI_THREAD_SINGLE;
  if (threads)
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  else
    MPI_Init(&argc, &argv);
  const int code = guarded(name, body);
  MPI_Finalize();
  return code;
}

bool any_rank(bool mine) {
  int any = mine ? 1 : 0;
  PMPI_Allreduce(MPI_IN_PLACE, &any, 1, MPI_INT, MPI_LOR, MPI_COMM_WORLD);
  return any != 0;
}

bool rank_zero_decides(bool mine) {
  int decision = mine ? 1 : 0;
  PMPI_Bcast(&decision, 1, MPI_INT, 0, MPI_COMM_WORLD);
  return decision != 0;
}

std::vector<double> slowest_rank(std::vector<double> microseconds) {
  PMPI_Allreduce(MPI_IN_PLACE, microseconds.data(), static_cast<int>(microseconds.size()), MPI_DOUBLE, MPI_MAX,
                 MPI_COMM_WORLD);
  return microseconds;
}

}  // namespace gpudt::bench
