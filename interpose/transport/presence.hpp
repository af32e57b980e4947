// Which processes of the job have this library. A rank may lack it: another program of an MPMD job, or a node to which
// LD_PRELOAD was not passed on. Such a rank answers none of gpudt's questions, so that nobody may wait for it.
//
// Each process with the library says so in a file that the processes of its node share
// (transport/peer/job_file.hpp), before it calls PMPI_Init. So when MPI_Init returns, every process of the node
// that has the library has said so; of processes on other nodes it is not known here (mpi/modex.hpp may know it).
// Nothing here is collective, and nobody waits.
#pragma once

#include <mpi.h>

#include <string>
#include <vector>

#include "interpose/transport/peer/job_file.hpp"

namespace gpudt::interpose {

/// The program has made a session. If that is before MPI_Init, this may return before other processes have entered it:
/// then nothing is known of them, and they are told that they cannot ask this one.
void presence_note_session();
/// To be called before MPI_Init, unless the library is disabled. Tells the node that this process is here, and `what`,
/// 1 to 255. False if it cannot.
bool presence_announce(int what);
/// In MPI_Init, whatever has come of the GPU. Looks who is here; if ranks lack the library, the lowest one that has it
/// says so, in one line.
void presence_start();
/// At the end of MPI_Init, whatever has come of it, after presence_announce(): whether this process has a segment, and
/// tells there what others wait for.
void presence_tell_started(bool has_segment) noexcept;
/// What the process of this rank in MPI_COMM_WORLD, which has announced something, has told at the end of MPI_Init; it
/// may still be there.
peer::Started presence_started(int world_rank) noexcept;
/// From now on this process answers no questions.
void presence_stop();

/// Whether no process of this node has said `text` before. True as well where that cannot be told: then all say it.
bool presence_says_first(const std::string& text);

/// Between presence_start() and presence_stop(): this process answers what all processes with the library are asked.
bool presence_answers();
/// What the process of this rank in MPI_COMM_WORLD has announced; 0: nothing, or it is not known.
int presence_announced(int world_rank);

/// Whether the process of this rank in MPI_COMM_WORLD is known to be on another node, or to lack the library.
bool presence_rules_out(int world_rank);

/// Members of a group as far as they lack the library, as ranks in MPI_COMM_WORLD.
struct Absence {
  std::vector<int> lacking;  ///< known to lack it
  std::vector<int> unknown;  ///< members of other nodes, or of other jobs (MPI_UNDEFINED)
};
Absence presence_absence(MPI_Group group);
/// Some process of this node is known to lack it, whichever it is.
bool presence_incomplete();
/// Whether this is the lowest rank of those known to have it.
bool presence_speaks();
/// "rank 3 runs without gpudt" or "ranks 0, 2-5 run without gpudt", and the remedy.
std::string presence_complaint(const std::vector<int>& lacking);
/// A sentence.
std::string presence_remedy();

}  // namespace gpudt::interpose
