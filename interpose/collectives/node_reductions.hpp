// Reductions of device memory over several nodes: MPI_Allreduce, MPI_Reduce, MPI_Reduce_scatter and
// MPI_Reduce_scatter_block.
//
// Within each node the processes tell each other what they have by their boards, as for one node (reductions.hpp). Then
// each leader whose fellows are leaders, too (node_groups.hpp), reduces its slice of the elements, in chunks: a kernel
// combines the buffers of the node's processes, in the order of their ranks, and writes to pinned host memory; MPI
// reduces that among the fellows, one process of each node; and kernels write the result to the processes of the node
// that get it. While MPI reduces one chunk, the GPU combines the next one and writes the result of the one before.
//
// So of each node every element goes through the host once, not once for each process. Over nodes it is combined as the
// MPI library does; all processes get the same bits if its own results are the same in all processes, as those of
// Open MPI are.
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

/// Buffers of the processes of this node as a GPU reaches them, by rank on the node.
struct NodeOperands {
  int ordinal;  ///< of that GPU
  const std::vector<void*>& from;
  const std::vector<void*>& to;  ///< null: that process gets nothing
};

class NodeReduction {
 public:
  /// `arguments` as the program gives them; they, and `nodes`, must stay.
  NodeReduction(NodeGroups& nodes, MPI_Comm comm, const ReductionArguments& arguments, const Arithmetic& arithmetic,
                MPI_Datatype type, MPI_Op op);

  /// Whether that can be done so, the same in all processes: not if MPI's host memory has gaps between elements, nor if
  /// a process gets nothing. It need not wait for others then, but would for their agreement.
  static bool is_possible(const ReductionArguments& arguments, const Arithmetic& arithmetic, MPI_Datatype type);

  /// The same as a reduction among the processes of this node alone.
  const ReductionArguments& on_node() const { return on_node_; }
  /// Of a leader, which may have a slice: memory for its chunks. Throws device::Error.
  void reserve(int ordinal);
  /// After the processes of this node have agreed, or not (`ready`): whether those of all nodes have. Collective over
  /// the communicator. `leaders` are this node's.
  bool all_nodes_agree(bool ready, const std::vector<int>& leaders);
  /// Of a leader, after all have agreed; nothing if it has no slice. Returns when the results are where they belong.
  /// Throws device::Error or MpiError, in all fellows, if one has failed.
  void run(const NodeOperands& operands);

 private:
  /// A part of this leader's slice: elements [first, first + count) of the input.
  struct Chunk {
    std::int64_t first = 0, count = 0;
    std::int64_t in_result = 0;  ///< the place of the first one in what a process gets, in elements
    int receiver = -1;           ///< the rank that alone gets it; negative: all that get a result
  };
  class Walk;
  struct Slot {
    Chunk chunk;
    device::Staging memory;
    device::Transfer work;   // after memory
    void* result = nullptr;  ///< where a GPU of this node has the chunk's result first; null: nobody gets it here
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
  bool valid_ = true;            ///< the arguments are
  std::uint64_t leaders_ = 0;    ///< ranks on their nodes that are leaders on every node: a bit for each
  std::array<Slot, 3> slots_{};  ///< one that is combined, one that MPI reduces, one that is written to its receivers
  std::exception_ptr failure_;
};

}  // namespace gpudt::interpose
