// What the measuring programs do alike as MPI programs: start and end, and agree on something.
#pragma once

#include <functional>
#include <vector>

namespace gpudt::bench {

/// The program between MPI_Init, or MPI_Init_thread with MPI_THREAD_MULTIPLE (`threads`), and MPI_Finalize; its exit
/// code. A Refusal thrown by `body` is printed by rank 0 and gives exit_usage; any other exception aborts all ranks.
int run_program(const char* name, int argc, char** argv, const std::function<int(int rank, int size)>& body,
                bool threads = false);

/// Whether `mine` is true on any rank. Collective.
bool any_rank(bool mine);

/// Rank 0's answer, on all ranks. Collective.
bool rank_zero_decides(bool mine);

/// For each entry the largest of all ranks, which give equally many. Collective.
std::vector<double> slowest_rank(std::vector<double> microseconds);

}  // namespace gpudt::bench
