// The tree that decode builds and serialise writes out: an arena of immutable nodes, normalised as they are made.
//
// A node describes bytes relative to an origin that is its first byte; a Ref places a node. Offsets so float up to
// the root, equal sub-trees are one node (interned), and every node but `empty` holds at least one byte. Children
// are made before their parents: a child's index is smaller. A node with more than one run has at least two parts,
// so that a tree is never deeper than it has runs.
#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "datatype/decode.hpp"
#include "datatype/layout.hpp"

namespace gpudt::datatype {

/// A sub-tree at an offset.
struct Ref {
  std::uint32_t node = 0;
  std::int64_t offset = 0;
};

inline Ref shifted(Ref ref, std::int64_t by) {
  return {ref.node, ref.offset + by};
}

using Words = std::vector<std::int64_t>;

struct TreeNode {
  NodeKind kind = NodeKind::run;
  std::uint32_t child = 0;
  std::int64_t size = 0;   ///< packed bytes; 0 only in the empty node
  std::int64_t count = 0;  ///< as in Node
  std::int64_t stride = 0;
  Words displs;  ///< the first is 0
  Words prefix;
  std::vector<std::uint32_t> children;  ///< structure
  // Derived from the above.
  std::int64_t runs = 0;   ///< contiguous runs
  std::int64_t low = 0;    ///< first byte touched, relative to the origin
  std::int64_t high = 0;   ///< one past the last
  std::uint64_t mask = 0;  ///< bitwise or of all run lengths, strides and displacements
  int depth = 1;

  std::int64_t list_words() const { return static_cast<std::int64_t>(displs.size() + prefix.size() + children.size()); }
};

class Tree {
 public:
  explicit Tree(const ListLimits& limits);

  static constexpr std::uint32_t empty = 0;
  const TreeNode& operator[](std::uint32_t node) const { return nodes_[node]; }

  // What follows normalises. Counts may be zero or one, children empty, lists empty; order is kept.

  /// `size` contiguous bytes.
  Ref run(std::int64_t size);
  /// `count` children, `stride` bytes apart.
  Ref strided(std::int64_t count, std::int64_t stride, Ref child);
  /// Children at `displs`.
  Ref indexed(Words displs, Ref child);
  /// Blocks at `displs` of counts[i] children that are `stride` bytes apart.
  Ref blocks(Words displs, Words counts, std::int64_t stride, Ref child);
  /// Runs of lengths[i] bytes at `displs`.
  Ref segments(Words displs, Words lengths);
  /// One member after the other.
  Ref structure(const std::vector<Ref>& members);

  /// The last step, at the root: irregular rests become lists as far as the limits allow, and strides beyond
  /// max_dims too.
  Ref finish(Ref root);

 private:
  std::uint32_t intern(TreeNode&& node);
  void derive(TreeNode& node) const;
  std::uint32_t strided_node(std::int64_t count, std::int64_t stride, std::uint32_t child);
  std::uint32_t indexed_node(Words&& displs, std::uint32_t child);
  std::uint32_t segments_node(Words&& displs, const Words& lengths);
  Ref indexed_unmerged(Words displs, Ref child);
  Ref grouped(const std::vector<Ref>& members);
  void collect_runs(Ref ref, Words& displs, Words& lengths) const;
  Ref flatten(Ref ref);
  std::int64_t reachable_words(std::uint32_t root) const;
  Ref limit_dims(Ref root, std::int64_t limit);

  const ListLimits limits_;
  std::deque<TreeNode> nodes_;  ///< a deque: references stay valid while nodes are added
  std::unordered_multimap<std::size_t, std::uint32_t> by_hash_;
};

/// Writes the tree below `root` as a Layout.
class Serialiser {
 public:
  struct Bounds {
    std::int64_t lb, extent;
  };
  static LayoutRef serialise(const Tree& tree, Ref root, Bounds bounds);
};

}  // namespace gpudt::datatype
