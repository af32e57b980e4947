// Reductions of device memory by kernels that read the buffers of all processes where they lie, and write the
// results where they belong: MPI_Allreduce, MPI_Reduce, MPI_Scan, MPI_Exscan, MPI_Reduce_scatter and
// MPI_Reduce_scatter_block, of predefined operators and datatypes, within one node.
//
// Each process tells the others by its board (board_group.hpp) where its data lie, or that they are not for GPUs;
// all come to the same conclusion from that. Of each GPU the lowest-ranked process, its leader, launches kernels:
// - MPI_Reduce_scatter: one for the block of each process of its GPU,
// - else: one for its slice of the elements, of all processes.
// A process may go on when all leaders' kernels have ended. Elements are combined in the order of the ranks, so that
// the results have the same bits everywhere and always.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "device/kernels/reduction.hpp"
#include "interpose/collectives/board_call.hpp"
#include "interpose/collectives/persistent_offer.hpp"
#include "interpose/requests/call_buffers.hpp"

namespace gpudt::interpose {

/// Slices begin at multiples of so many elements, so that words of 16 bytes stay whole.
inline constexpr std::int64_t slice_multiple = 16;

/// Where slice number `slice` of so many begins: `count` elements are divided into slices of about the same length.
constexpr std::int64_t slice_begin(std::int64_t count, std::int64_t slice, std::int64_t slices) {
  const std::int64_t pieces = (count + slice_multiple - 1) / slice_multiple, begin = pieces * slice / slices;
  return begin == pieces ? count : begin * slice_multiple;
}

/// The arguments of a reduction, but for the operator and the datatype.
struct ReductionArguments {
  device::Result result = device::Result::total;
  const void* sendbuf;
  void* recvbuf;
  std::int64_t count;  ///< elements of a process's input
  int root = -1;       ///< that alone gets a result; -1: all do
  /// As `root`: a process that is not among those that are looked at.
  static constexpr int root_elsewhere = std::numeric_limits<int>::max();
  /// Of what each process gets, if that is another part for each; none: all get everything.
  std::vector<std::int64_t> blocks{};
};

/// What the call returns, if GPUs have done it; else nothing has been done. All processes of `comm` get the same
/// answer.
std::optional<int> reduce_on_gpus(const Call& call, MPI_Comm comm, const ReductionArguments& arguments,
                                  MPI_Datatype type, MPI_Op op);

/// Of a nonblocking call: what this process is to tell of it; null if it is not asked about, or this process has
/// declined.
std::unique_ptr<BoardCall> offer_reduction(const Call& call, MPI_Comm comm, const ReductionArguments& arguments,
                                           MPI_Datatype type, MPI_Op op);

/// Whether all processes of `comm` are asked about the starts of a persistent call.
bool starts_asked(MPI_Comm comm, const ReductionArguments& arguments, MPI_Datatype type, MPI_Op op);
/// Of such a call: how to offer its starts; empty: its input is not for GPUs.
PrepareOffer reduction_to_offer(const Call& call, const ReductionArguments& arguments, MPI_Datatype type, MPI_Op op);

/// MPI_Reduce_local by the GPU that both buffers are on; false: nothing has been done. Throws device::Error.
bool reduce_locally(const char* call, const void* inbuf, void* inoutbuf, std::int64_t count, MPI_Datatype type,
                    MPI_Op op);

}  // namespace gpudt::interpose
