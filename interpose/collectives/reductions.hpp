// Reductions of device memory by kernels that read the buffers of all processes, and write the results to the receive
// buffers of all: MPI_Allreduce, MPI_Reduce, MPI_Scan, MPI_Exscan, MPI_Reduce_scatter and MPI_Reduce_scatter_block,
// with predefined operators and datatypes, within one node.
//
// Each process publishes on its board (board_group.hpp) where its data lie, or that they are not for GPUs. From that
// all processes reach the same conclusion. On each GPU the process of lowest rank, the leader, launches kernels: for
// MPI_Reduce_scatter one for the block of each process of its GPU, otherwise one for its slice of the elements.
// A process returns when the kernels of all leaders have ended. Elements are combined in the order of the ranks, so
// that the results have the same bits in all processes and in all runs.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "device/device.hpp"
#include "interpose/collectives/board_call.hpp"
#include "interpose/collectives/persistent_offer.hpp"
#include "interpose/requests/call_buffers.hpp"

namespace gpudt::interpose {

/// Slices begin at multiples of this number of elements, so that words of 16 bytes stay whole.
inline constexpr std::int64_t slice_multiple = 16;

/// The first element of slice number `slice`, if `count` elements are divided into `slices` slices of about one length.
constexpr std::int64_t slice_begin(std::int64_t count, std::int64_t slice, std::int64_t slices) {
  const std::int64_t pieces = (count + slice_multiple - 1) / slice_multiple, begin = pieces * slice / slices;
  return begin == pieces ? count : begin * slice_multiple;
}

/// The arguments of a reduction, without the operator and the datatype.
struct ReductionArguments {
  device::Result result = device::Result::total;
  const void* sendbuf;
  void* recvbuf;
  std::int64_t count;  ///< elements of a process's input
  int root = -1;       ///< the only rank that receives a result; -1: all ranks do
  /// A value of `root`: the root is not among the processes of this group.
  static constexpr int root_elsewhere = std::numeric_limits<int>::max();
  /// Number of elements that each process receives, if each receives another part; empty: all receive everything.
  std::vector<std::int64_t> blocks{};
};

/// Does a blocking call by GPUs and returns its result; no value: nothing has been done. All processes of `comm` get
/// the same answer.
std::optional<int> reduce_on_gpus(const Call& call, MPI_Comm comm, const ReductionArguments& arguments,
                                  MPI_Datatype type, MPI_Op op);

/// What this process publishes about a nonblocking call; null: there is no agreement about it, or this process has
/// declined.
std::unique_ptr<BoardCall> offer_reduction(const Call& call, MPI_Comm comm, const ReductionArguments& arguments,
                                           MPI_Datatype type, MPI_Op op);

/// Whether the processes of `comm` agree by boards about the starts of a persistent call.
bool starts_asked(MPI_Comm comm, const ReductionArguments& arguments, MPI_Datatype type, MPI_Op op);
/// How to publish the starts of such a call; empty: its input is not for GPUs.
PrepareOffer reduction_to_offer(const Call& call, const ReductionArguments& arguments, MPI_Datatype type, MPI_Op op);

/// Does MPI_Reduce_local by the GPU on which both buffers lie; false: nothing has been done. Throws device::Error.
bool reduce_locally(const char* call, const void* inbuf, void* inoutbuf, std::int64_t count, MPI_Datatype type,
                    MPI_Op op);

}  // namespace gpudt::interpose
