// What the launcher (mpirun) tells a process about its job. It is known before MPI is initialized.
#pragma once

#include <string>

namespace gpudt::interpose {

/// A name that the processes of this job on this node have in common, and no others. Empty if there is none, for
/// example for spawned processes over MPICH. Under Open MPI's mpirun other users do not know the name.
std::string job_name();

/// This process's rank in MPI_COMM_WORLD; negative: not known.
int rank_by_launcher();

/// How many processes of the job are on this node; negative: not known.
int processes_on_node();

}  // namespace gpudt::interpose
