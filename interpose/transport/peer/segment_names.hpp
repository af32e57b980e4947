// What the files of shared memory are called by which the processes of one job find each other (shared_segment.hpp).
//
// Other users of the node see the names of such files, and may make files, too. So names are 128 bits of a keyed hash:
// who sees one cannot tell what those of the other processes are or will be. The key is a random number that the job's
// processes share by a file in the launcher's private folder. What is opened is checked all the same (is_private()).
#pragma once

#include <string>

namespace gpudt::interpose::peer {

/// What the processes of this job on this node, and no others, have in common; empty if it cannot be told. Looked up
/// once.
const std::string& job_name();

/// What the names of all files of this user's begin with.
std::string name_prefix();

/// The name of process `rank`'s file for `purpose`, with a slash before it, as shm_open wants it.
std::string name_of(const std::string& job, int rank, const char* purpose);

/// Whether an open file is a regular one of this user's that nobody else may read or write. If it is not, `why`, unless
/// null, says so.
bool is_private(int file, std::string* why = nullptr);

}  // namespace gpudt::interpose::peer
