// What the launcher (mpirun) tells a process of its job, which is known before MPI is initialized.
#pragma once

#include <string>

namespace gpudt::interpose {

/// What the processes of this job on this node, and no others, have in common; empty if it cannot be told, as of
/// processes that others have spawned over MPICH. Under Open MPI's mpirun other users do not know it.
std::string job_name();

/// This process's rank in MPI_COMM_WORLD; negative: not known.
int rank_by_launcher();

/// How many processes of the job are on this node; negative: not known.
int processes_on_node();

}  // namespace gpudt::interpose
