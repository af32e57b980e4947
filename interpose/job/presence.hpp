// Which processes of the job have this library. A rank may lack it: another program of an MPMD job, or a node to which
// LD_PRELOAD was not passed on. Such a rank takes part in nothing, so that no process may wait for it.
//
// Each process with the library announces itself in a file that the processes of its node share
// (shared/job_file.hpp), before it calls PMPI_Init. So when MPI_Init returns, every process of the node that
// has the library has announced itself. Processes of other nodes are unknown here (mpi/modex.hpp may know them).
// Nothing here is collective, and nothing waits.
#pragma once

#include <mpi.h>

#include <string>
#include <vector>

#include "interpose/shared/job_file.hpp"

namespace gpudt::interpose {

/// To be called when the program makes a session. If that is before MPI_Init, MPI_Init may return before other
/// processes have entered it. Then these processes are unknown here, and this process's announcement keeps
/// them from relying on it.
void presence_note_session();
/// To be called before MPI_Init, unless the library is disabled. Announces this process to its node, with the number
/// `what`, 1 to 255. False if that is impossible.
bool presence_announce(int what);
/// To be called in MPI_Init, also if there is no GPU. Finds the processes that have announced themselves. If ranks lack
/// the library, the lowest rank that has it logs one line about them.
void presence_start();
/// To be called at the end of MPI_Init, also if gpudt is off, after presence_announce(). Publishes whether this process
/// has a segment in which it publishes what others wait for.
void presence_tell_started(bool has_segment) noexcept;
/// What the process of this rank in MPI_COMM_WORLD, which must have announced itself, has published at the end of
/// MPI_Init, if it has reached that.
peer::Started presence_started(int world_rank) noexcept;
/// After this, this process takes part in nothing.
void presence_stop();

/// Whether no process of this node has logged `text` before. Also true if that is unknown: then all processes log it.
bool presence_says_first(const std::string& text);

/// Whether this process takes part in what needs all processes with the library: between presence_start() and
/// presence_stop().
bool presence_answers();
/// The number that the process of this rank in MPI_COMM_WORLD has announced; 0: none, or unknown.
int presence_announced(int world_rank);

/// Whether the process of this rank in MPI_COMM_WORLD is known to be on another node, or to lack the library.
bool presence_rules_out(int world_rank);

/// The members of a group that lack the library or may lack it, as ranks in MPI_COMM_WORLD.
struct Absence {
  std::vector<int> lacking;  ///< known to lack it
  std::vector<int> unknown;  ///< members on other nodes, or of other jobs (MPI_UNDEFINED)
};
Absence presence_absence(MPI_Group group);
/// Whether some process of this node is known to lack the library.
bool presence_incomplete();
/// Whether this is the lowest rank that is known to have the library.
bool presence_speaks();
/// "rank 3 runs without gpudt" or "ranks 0, 2-5 run without gpudt", and the remedy.
std::string presence_complaint(const std::vector<int>& lacking);
/// The remedy for missing libraries, a sentence.
std::string presence_remedy();

}  // namespace gpudt::interpose
