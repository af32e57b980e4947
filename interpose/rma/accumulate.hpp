// Accumulates by the origin's GPU, to memory of other processes that it reaches (direct.hpp).
//
// Each is over when its call returns, so that those of one origin are in order. A lock for each process's memory, which
// the node shares, makes them atomic to each other, and to those that the target serves (AtomicTurn).
#pragma once

#include "interpose/rma/access.hpp"
#include "interpose/rma/direct.hpp"
#include "interpose/transport/peer/window_lock.hpp"

namespace gpudt::interpose {

/// What an accumulate has at the origin; null: it has no such buffer.
struct AccumulateBuffers {
  const Origin* given;
  const Origin* fetched = nullptr;
  const Origin* compared = nullptr;  ///< MPI_Compare_and_swap
};

/// False if no GPU of this process can do it: then nothing has been done. `element` is what the target's datatype is
/// made of; `own_gpu` does what has no device memory at the origin, if it is not negative. Throws device::Error and
/// std::bad_alloc.
bool accumulate_by_gpu(const char* call, const AccumulateBuffers& buffers, const DirectTarget& target, MPI_Op op,
                       MPI_Datatype element, int own_gpu, peer::WindowLock& turn);

}  // namespace gpudt::interpose
