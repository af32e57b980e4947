// Reductions of device memory over several nodes: MPI_Allreduce, MPI_Reduce, MPI_Reduce_scatter and
// MPI_Reduce_scatter_block.
//
// Within each node the processes publish their buffers on boards, as for one node (reductions.hpp). Then each leader
// whose fellows are leaders too (node_groups.hpp) reduces its slice of the elements, in chunks. A kernel combines the
// buffers of the node's processes in the order of their ranks, and writes to pinned host memory. MPI reduces that among
// the fellows, one process of each node. Kernels write the result to the processes of the node that receive it. While
// MPI reduces one chunk, the GPU combines the next chunk and writes the result of the previous one.
//
// Thus each element goes through the host once for each node, not once for each process. The MPI library combines the
// values of the nodes. All processes get the same bits if the MPI library gives all processes the same bits, as Open
// MPI does.
#pragma once

#include <mpi.h>

#include <array>
#include <cstdint>
#include <exception>
#include <vector>

#include "device/device.hpp"
#include "interpose/collectives/node_groups.hpp"
#include "interpose/collectives/reductions.hpp"
#include "interpose/requests/arithmetic.hpp"

namespace gpudt::interpose {

/// Addresses at which a GPU sees the buffers of this node's processes, by rank on the node.
struct NodeOperands {
  int ordinal;  ///< of that GPU
  const std::vector<void*>& from;
  const std::vector<void*>& to;  ///< null: the process receives nothing
};

class NodeReduction {
 public:
  /// `arguments`: the program's. They and `nodes` must outlive this object.
  NodeReduction(NodeGroups& nodes, MPI_Comm comm, const ReductionArguments& arguments, const Arithmetic& arithmetic,
                MPI_Datatype type, MPI_Op op);

  /// Whether a reduction can be done this way; all processes get the same answer. Not if elements have gaps between
  /// them in host memory. Not if a process receives nothing: MPI would let it return early, while here it would wait
  /// for the others.
  static bool is_possible(const ReductionArguments& arguments, const Arithmetic& arithmetic, MPI_Datatype type);

  /// The part that the processes of this node do, as a reduction among them.
  const ReductionArguments& on_node() const { return on_node_; }
  /// Takes memory for the chunks of a leader, which may have a slice. Throws device::Error.
  void reserve(int ordinal);
  /// `ready`: the processes of this node agree. Returns whether those of all nodes do. Collective over the
  /// communicator. `leaders`: those of this node.
  bool all_nodes_agree(bool ready, const std::vector<int>& leaders);
  /// To be called by a leader after all have agreed; does nothing if it has no slice. Returns when the results are in
  /// the receive buffers. If one fellow fails, throws device::Error or MpiError in all fellows.
  void run(const NodeOperands& operands);

 private:
  /// A part of this leader's slice: elements [first, first + count) of the input.
  struct Chunk {
    std::int64_t first = 0, count = 0;
    std::int64_t in_result = 0;  ///< index of the first element in a process's receive buffer
    int receiver = -1;           ///< the only rank that receives it; negative: all ranks that receive a result
  };
  class Walk;
  struct Slot {
    Chunk chunk;
    device::Staging memory;
    device::Transfer work;   // after memory
    void* result = nullptr;  ///< where a GPU of this node first writes the result; null: no process here receives it
  };

  std::int64_t chunk_elements() const;
  int target_node(const Chunk& chunk) const;
  std::uint64_t signature() const;
  void begin(const NodeOperands& operands, Slot& slot, const Chunk& chunk);
  void settle(Slot& slot);
  void exchange(Slot& slot);
  void fetch(const NodeOperands& operands, Slot& slot);
  void spread(const NodeOperands& operands, Slot& slot);
  void agree_on_success();
  template <class Action>
  void attempt(Action action);
  template <class Act>
  void for_each_result(const NodeOperands& operands, const Chunk& chunk, Act act) const;

  NodeGroups& nodes_;
  const MPI_Comm comm_;
  const ReductionArguments& arguments_;
  const Arithmetic arithmetic_;
  const MPI_Datatype type_;
  const MPI_Op op_;
  ReductionArguments on_node_;
  bool valid_ = true;            ///< the arguments are valid
  std::uint64_t leaders_ = 0;    ///< a bit for each rank on a node that is a leader on every node
  std::array<Slot, 3> slots_{};  ///< one is being combined, one reduced by MPI, one written to its receivers
  std::exception_ptr failure_;
};

}  // namespace gpudt::interpose
