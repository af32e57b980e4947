// The point-based traversal (Jenkins et al., section 3.2.2): any byte of the packed stream finds its own place in
// the user's buffer. Host and device inline, written once; O(depth) plus one binary search per irregular node.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define GPUDT_HD __host__ __device__ __forceinline__
#else
#define GPUDT_HD inline
#endif

namespace gpudt::datatype {

enum class NodeKind : std::int32_t {
  run,        ///< leaf: `size` contiguous bytes
  strided,    ///< `count` children, `stride` bytes apart
  indexed,    ///< `count` children, child i at displs[i]
  blocks,     ///< `count` blocks; block i holds children prefix[i] .. prefix[i+1], `stride` bytes apart, from displs[i]
  segments,   ///< leaf: `count` runs; run i holds packed bytes prefix[i] .. prefix[i+1], from displs[i]
  structure,  ///< `count` members; member i holds packed bytes prefix[i] .. prefix[i+1], is node child[i], at displs[i]
};

/// Fixed-length parameters of one node of the serialised tree; preorder, so that a single child is the next node.
struct Node {
  NodeKind kind;
  std::uint32_t child;  ///< index of the (only) child node
  std::int64_t size;    ///< packed bytes of this node
  std::int64_t count;
  std::int64_t stride;
  std::int64_t child_size;  ///< packed bytes of one child
  std::int64_t displs;      ///< index into the lookaside buffer
  std::int64_t prefix;      ///< index into the lookaside buffer of count + 1 prefix sums
  std::int64_t children;    ///< structure: index into the lookaside buffer of `count` node indices
};

/// A serialised layout as a kernel sees it.
struct Program {
  const Node* nodes = nullptr;
  const std::int64_t* lookaside = nullptr;
};

/// A maximal known-contiguous piece: packed bytes [pos, pos + length) lie at `offset` from the user's address.
struct Place {
  std::int64_t offset;
  std::int64_t length;
};

/// The largest i in [0, count) with prefix[i] <= value; needs prefix[0] <= value < prefix[count]. Entries of zero
/// length are skipped.
GPUDT_HD std::int64_t find_block(const std::int64_t* prefix, std::int64_t count, std::int64_t value) {
  std::int64_t low = 0, high = count;
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    if (prefix[middle] <= value)
      low = middle;
    else
      high = middle;
  }
  return low;
}

/// The place of packed byte `pos` of the element that node `root` describes; 0 <= pos < nodes[root].size.
GPUDT_HD Place locate(const Program& program, std::uint32_t root, std::int64_t pos) {
  std::int64_t offset = 0;
  const Node* node = program.nodes + root;
  for (;;) {
    switch (node->kind) {
      case NodeKind::run:
        return {offset + pos, node->size - pos};
      case NodeKind::strided: {
        const std::int64_t index = pos / node->child_size;
        offset += index * node->stride;
        pos -= index * node->child_size;
        node = program.nodes + node->child;
        break;
      }
      case NodeKind::indexed: {
        const std::int64_t index = pos / node->child_size;
        offset += program.lookaside[node->displs + index];
        pos -= index * node->child_size;
        node = program.nodes + node->child;
        break;
      }
      case NodeKind::blocks: {
        const std::int64_t index = pos / node->child_size;
        const std::int64_t* prefix = program.lookaside + node->prefix;
        const std::int64_t block = find_block(prefix, node->count, index);
        offset += program.lookaside[node->displs + block] + (index - prefix[block]) * node->stride;
        pos -= index * node->child_size;
        node = program.nodes + node->child;
        break;
      }
      case NodeKind::segments: {
        const std::int64_t* prefix = program.lookaside + node->prefix;
        const std::int64_t block = find_block(prefix, node->count, pos);
        return {offset + program.lookaside[node->displs + block] + (pos - prefix[block]), prefix[block + 1] - pos};
      }
      default: {  // NodeKind::structure
        const std::int64_t* prefix = program.lookaside + node->prefix;
        const std::int64_t member = find_block(prefix, node->count, pos);
        offset += program.lookaside[node->displs + member];
        pos -= prefix[member];
        node = program.nodes + program.lookaside[node->children + member];
        break;
      }
    }
  }
}

}  // namespace gpudt::datatype
