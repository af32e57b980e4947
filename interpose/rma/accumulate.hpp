// Accumulates by the origin's GPU, to memory of other processes that it reaches (direct.hpp).
//
// An accumulate is complete when its call returns, so that the accumulates of one origin keep their order. Each process
// has a lock for its memory, in shared memory, which makes accumulates atomic, also with those that the target serves
// (AtomicTurn).
#pragma once

#include "interpose/rma/access.hpp"
#include "interpose/rma/direct.hpp"
#include "interpose/shared/window_lock.hpp"

namespace gpudt::interpose {

/// The buffers of an accumulate at the origin; null: the call has no such buffer.
struct AccumulateBuffers {
  const Origin* given;
  const Origin* fetched = nullptr;
  const Origin* compared = nullptr;  ///< MPI_Compare_and_swap
};

/// Does an accumulate by a GPU of this process. False if none can: then nothing has been done. `element`: the
/// predefined datatype that the target's datatype consists of. `own_gpu`: the GPU to use if no origin buffer lies in
/// device memory; negative: none. Throws device::Error and std::bad_alloc.
bool accumulate_by_gpu(const char* call, const AccumulateBuffers& buffers, const DirectTarget& target, MPI_Op op,
                       MPI_Datatype element, int own_gpu, peer::WindowLock& turn);

}  // namespace gpudt::interpose
