// A buffer that the program sends from and receives into in one collective. MPI may refuse that. If the data are
// staged, MPI is given one staged buffer for both arguments, so that it answers as it does on host memory.
#pragma once

#include <mpi.h>

#include <cstdint>

#include "interpose/collectives/block_messages.hpp"
#include "interpose/mpi/workarounds.hpp"
#include "interpose/requests/call_buffers.hpp"

namespace gpudt::interpose {

/// Whether the program gives one address for both. Not MPI_BOTTOM, where each block has an address of its own.
inline bool is_alias(const void* given, const void* taken) {
  return active.load(std::memory_order_acquire) && given == taken && given != MPI_BOTTOM && given != MPI_IN_PLACE;
}

/// Whether `block`, of one argument, is also this process's own block in the other, `elements` elements behind `all`,
/// and MPI refuses that. The caller checks that types and counts (of v and w forms the arrays) are the same in both:
/// MPICH does not detect other aliases, and ends the process.
inline bool is_refused_alias(const void* block, const void* all, std::int64_t elements, MPI_Datatype type) {
  return refuses_all_aliases && active.load(std::memory_order_acquire) && all != MPI_IN_PLACE &&
         is_alias(block, element_of(all, elements, type));
}

/// Where that block is in the staged buffer that MPI is given.
template <class Staged>
void* own_block(const Staged& staged, std::int64_t elements) {
  return const_cast<void*>(element_of(staged.buffer, elements, staged.type));
}

/// Number of elements before a process's own block; 0 where is_refused_alias() does not use it, or there is none:
/// between groups a block with this process's rank is another one's.
inline std::int64_t own_place(MPI_Comm comm, std::int64_t count) {
  return !refuses_all_aliases || comm == MPI_COMM_NULL || is_between_groups(comm) ? 0 : count * CommRank(comm).rank;
}
template <class Displacement>
std::int64_t own_place(MPI_Comm comm, const Displacement* displs) {
  return displs == nullptr || !refuses_all_aliases || comm == MPI_COMM_NULL || is_between_groups(comm)
             ? 0
             : displs[CommRank(comm).rank];
}

}  // namespace gpudt::interpose
