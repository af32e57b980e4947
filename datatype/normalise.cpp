// The constructors of Tree: each makes the simplest node that describes the same bytes in the same order.
#include <algorithm>
#include <iterator>
#include <utility>

#include "datatype/tree.hpp"

namespace gpudt::datatype {
namespace {

std::size_t hash_words(std::size_t seed, const std::int64_t* words, std::size_t count) {
  std::uint64_t hash = seed;
  for (std::size_t i = 0; i < count; ++i) {
    hash = (hash ^ static_cast<std::uint64_t>(words[i])) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
  }
  return hash;
}

std::size_t hash_of(const TreeNode& node) {
  const std::int64_t fixed[] = {static_cast<std::int64_t>(node.kind), node.child, node.size, node.count, node.stride};
  std::size_t hash = hash_words(hash_words(0, fixed, std::size(fixed)), node.displs.data(), node.displs.size());
  hash = hash_words(hash, node.prefix.data(), node.prefix.size());
  for (const std::int64_t child : node.children) hash = hash_words(hash, &child, 1);
  return hash;
}

bool same(const TreeNode& a, const TreeNode& b) {
  return a.kind == b.kind && a.child == b.child && a.size == b.size && a.count == b.count && a.stride == b.stride &&
         a.displs == b.displs && a.prefix == b.prefix && a.children == b.children;
}

Words prefix_sums(const Words& values) {
  Words sums;
  sums.reserve(values.size() + 1);
  sums.push_back(0);
  for (const std::int64_t value : values) sums.push_back(sums.back() + value);
  return sums;
}

bool all_equal(const Words& values) {
  return std::all_of(values.begin(), values.end(), [&](std::int64_t value) { return value == values.front(); });
}

/// Makes the first displacement zero; returns what it was.
std::int64_t rebase(Words& displs) {
  const std::int64_t base = displs.front();
  if (base != 0)
    for (std::int64_t& displ : displs) displ -= base;
  return base;
}

/// The length of the shortest initial part of which the list is an integral number of copies, each displaced from
/// the one before by the same distance; displs.size() if there is none but the whole. Items i and j are alike where
/// alike(i, j). Linear: the failure function of Knuth, Morris and Pratt over the steps between neighbours.
template <class Alike>
std::size_t period(const Words& displs, Alike alike) {
  const std::size_t count = displs.size();
  if (count < 2) return count;
  const std::size_t steps = count - 1;
  auto matches = [&](std::size_t i, std::size_t j) {
    return displs[i + 1] - displs[i] == displs[j + 1] - displs[j] && alike(i, j);
  };
  std::vector<std::size_t> border(steps, 0);
  for (std::size_t i = 1, k = 0; i < steps; ++i) {
    while (k > 0 && !matches(i, k)) k = border[k - 1];
    if (matches(i, k)) ++k;
    border[i] = k;
  }
  const std::size_t shortest = steps - border[steps - 1];
  if (count % shortest != 0 || shortest == count || !alike(count - 1, count - 1 - shortest)) return count;
  return shortest;
}

/// Drops the blocks without content and joins those that start where the one before ends; `stride` is the distance
/// that one unit of a block's content covers.
void join_adjacent(Words& displs, Words& contents, std::int64_t stride) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < displs.size(); ++i) {
    if (contents[i] == 0) continue;
    if (kept > 0 && displs[i] == displs[kept - 1] + contents[kept - 1] * stride) {
      contents[kept - 1] += contents[i];
      continue;
    }
    displs[kept] = displs[i];
    contents[kept] = contents[i];
    ++kept;
  }
  displs.resize(kept);
  contents.resize(kept);
}

/// Equal blocks of which only a few could be joined are better left equal: a regular list needs no prefix sums and no
/// search. True if joining neighbours would save less than one block in `regular_worth`.
constexpr std::size_t regular_worth = 8;

bool stays_regular(const Words& displs, const Words& lengths) {
  if (displs.empty() || lengths.front() == 0 || !all_equal(lengths)) return false;
  std::size_t joined = 0;
  for (std::size_t i = 1; i < displs.size(); ++i)
    if (displs[i] == displs[i - 1] + lengths.front()) ++joined;
  return joined * regular_worth < displs.size();
}

void append_run(Words& displs, Words& lengths, std::int64_t displ, std::int64_t length) {
  if (!displs.empty() && displs.back() + lengths.back() == displ) {
    lengths.back() += length;
  } else {
    displs.push_back(displ);
    lengths.push_back(length);
  }
}

}  // namespace

Tree::Tree(const ListLimits& limits) : limits_(limits) {
  TreeNode nothing;
  nothing.depth = 0;
  nodes_.push_back(std::move(nothing));
}

/// Fills the derived fields from the others and from the children.
void Tree::derive(TreeNode& node) const {
  auto extend = [&](std::int64_t low, std::int64_t high) {
    node.low = std::min(node.low, low);
    node.high = std::max(node.high, high);
  };
  const TreeNode& child = nodes_[node.child];
  for (const std::int64_t displ : node.displs) node.mask |= static_cast<std::uint64_t>(displ);
  node.low = INT64_MAX;
  node.high = INT64_MIN;
  switch (node.kind) {
    case NodeKind::run:
      node.runs = 1;
      node.mask = static_cast<std::uint64_t>(node.size);
      extend(0, node.size);
      return;
    case NodeKind::strided: {
      node.mask |= static_cast<std::uint64_t>(node.stride);
      node.runs = node.count * child.runs;
      const std::int64_t last = (node.count - 1) * node.stride;
      extend(std::min<std::int64_t>(0, last) + child.low, std::max<std::int64_t>(0, last) + child.high);
      break;
    }
    case NodeKind::indexed:
      node.runs = node.count * child.runs;
      for (const std::int64_t displ : node.displs) extend(displ + child.low, displ + child.high);
      break;
    case NodeKind::blocks:
      node.mask |= static_cast<std::uint64_t>(node.stride);
      node.runs = node.prefix.back() * child.runs;
      for (std::size_t i = 0; i < node.displs.size(); ++i) {
        const std::int64_t last = (node.prefix[i + 1] - node.prefix[i] - 1) * node.stride;
        extend(node.displs[i] + std::min<std::int64_t>(0, last) + child.low,
               node.displs[i] + std::max<std::int64_t>(0, last) + child.high);
      }
      break;
    case NodeKind::segments:
      node.runs = node.count;
      for (std::size_t i = 0; i < node.displs.size(); ++i) {
        const std::int64_t length = node.prefix[i + 1] - node.prefix[i];
        node.mask |= static_cast<std::uint64_t>(length);
        extend(node.displs[i], node.displs[i] + length);
      }
      return;
    case NodeKind::structure:
      for (std::size_t i = 0; i < node.displs.size(); ++i) {
        const TreeNode& member = nodes_[node.children[i]];
        node.mask |= member.mask;
        node.runs += member.runs;
        node.depth = std::max(node.depth, member.depth + 1);
        extend(node.displs[i] + member.low, node.displs[i] + member.high);
      }
      return;
  }
  node.mask |= child.mask;
  node.depth = child.depth + 1;
}

std::uint32_t Tree::intern(TreeNode&& node) {
  const std::size_t hash = hash_of(node);
  const auto [first, last] = by_hash_.equal_range(hash);
  for (auto entry = first; entry != last; ++entry)
    if (same(nodes_[entry->second], node)) return entry->second;
  derive(node);
  nodes_.push_back(std::move(node));
  const auto index = static_cast<std::uint32_t>(nodes_.size() - 1);
  by_hash_.emplace(hash, index);
  return index;
}

std::uint32_t Tree::strided_node(std::int64_t count, std::int64_t stride, std::uint32_t child) {
  TreeNode node;
  node.kind = NodeKind::strided;
  node.child = child;
  node.size = count * nodes_[child].size;
  node.count = count;
  node.stride = stride;
  return intern(std::move(node));
}

std::uint32_t Tree::indexed_node(Words&& displs, std::uint32_t child) {
  TreeNode node;
  node.kind = NodeKind::indexed;
  node.child = child;
  node.count = std::ssize(displs);
  node.size = node.count * nodes_[child].size;
  node.displs = std::move(displs);
  return intern(std::move(node));
}

std::uint32_t Tree::segments_node(Words&& displs, const Words& lengths) {
  TreeNode node;
  node.kind = NodeKind::segments;
  node.count = std::ssize(displs);
  node.displs = std::move(displs);
  node.prefix = prefix_sums(lengths);
  node.size = node.prefix.back();
  return intern(std::move(node));
}

Ref Tree::run(std::int64_t size) {
  if (size == 0) return {};
  TreeNode node;
  node.kind = NodeKind::run;
  node.size = size;
  node.count = 1;
  return {intern(std::move(node)), 0};
}

Ref Tree::strided(std::int64_t count, std::int64_t stride, Ref child) {
  if (count == 0 || child.node == empty) return {};
  if (count == 1) return child;
  const TreeNode& inner = nodes_[child.node];
  if (inner.kind == NodeKind::run && stride == inner.size) return shifted(run(count * stride), child.offset);
  if (inner.kind == NodeKind::strided && stride == inner.count * inner.stride)
    return {strided_node(count * inner.count, inner.stride, inner.child), child.offset};
  return {strided_node(count, stride, child.node), child.offset};
}

Ref Tree::indexed(Words displs, Ref child) {
  if (displs.empty() || child.node == empty) return {};
  const TreeNode& inner = nodes_[child.node];
  if (inner.kind == NodeKind::run) {
    Words lengths(displs.size(), inner.size);
    return shifted(segments(std::move(displs), std::move(lengths)), child.offset);
  }
  if (inner.kind == NodeKind::strided) {
    const std::int64_t span = inner.count * inner.stride;
    const auto adjacent =
        std::adjacent_find(displs.begin(), displs.end(), [&](std::int64_t a, std::int64_t b) { return b - a == span; });
    if (adjacent != displs.end()) {
      Words counts(displs.size(), inner.count);
      return shifted(blocks(std::move(displs), std::move(counts), inner.stride, {inner.child, 0}), child.offset);
    }
  }
  return indexed_unmerged(std::move(displs), child);
}

/// indexed(), when no two neighbours can be joined, or too few to be worth it.
Ref Tree::indexed_unmerged(Words displs, Ref child) {
  const std::int64_t offset = rebase(displs) + child.offset;
  if (displs.size() == 1) return {child.node, offset};
  const std::size_t repeated = period(displs, [](std::size_t, std::size_t) { return true; });
  if (repeated < displs.size()) {
    const std::int64_t copies = std::ssize(displs) / static_cast<std::int64_t>(repeated);
    const std::int64_t stride = displs[repeated];
    displs.resize(repeated);
    return shifted(strided(copies, stride, indexed_unmerged(std::move(displs), {child.node, 0})), offset);
  }
  const TreeNode& inner = nodes_[child.node];
  const bool small = inner.kind != NodeKind::run && std::ssize(displs) * inner.runs <= limits_.runs;
  const Ref made{indexed_node(std::move(displs), child.node), offset};
  return small ? flatten(made) : made;
}

Ref Tree::blocks(Words displs, Words counts, std::int64_t stride, Ref child) {
  if (child.node == empty) return {};
  const TreeNode& inner = nodes_[child.node];
  if (inner.kind == NodeKind::run && stride == inner.size) {
    for (std::int64_t& count : counts) count *= stride;
    return shifted(segments(std::move(displs), std::move(counts)), child.offset);
  }
  if (inner.kind == NodeKind::strided && stride == inner.count * inner.stride) {
    for (std::int64_t& count : counts) count *= inner.count;
    return blocks(std::move(displs), std::move(counts), inner.stride, {inner.child, child.offset});
  }
  join_adjacent(displs, counts, stride);
  if (displs.empty()) return {};
  if (all_equal(counts)) return indexed(std::move(displs), strided(counts.front(), stride, child));
  const std::int64_t offset = rebase(displs) + child.offset;
  const std::size_t repeated = period(displs, [&](std::size_t i, std::size_t j) { return counts[i] == counts[j]; });
  if (repeated < displs.size()) {
    const std::int64_t copies = std::ssize(displs) / static_cast<std::int64_t>(repeated);
    const std::int64_t distance = displs[repeated];
    displs.resize(repeated);
    counts.resize(repeated);
    const Ref part = blocks(std::move(displs), std::move(counts), stride, {child.node, 0});
    return shifted(strided(copies, distance, part), offset);
  }
  TreeNode node;
  node.kind = NodeKind::blocks;
  node.child = child.node;
  node.count = std::ssize(displs);
  node.stride = stride;
  node.displs = std::move(displs);
  node.prefix = prefix_sums(counts);
  node.size = node.prefix.back() * inner.size;
  const std::int64_t runs = node.prefix.back() * inner.runs;
  const bool small =
      runs <= limits_.runs || (inner.kind == NodeKind::run && runs <= limits_.factor * node.list_words());
  const Ref made{intern(std::move(node)), offset};
  return small ? flatten(made) : made;
}

Ref Tree::segments(Words displs, Words lengths) {
  if (stays_regular(displs, lengths)) {
    const std::int64_t length = lengths.front();
    return indexed_unmerged(std::move(displs), run(length));
  }
  join_adjacent(displs, lengths, 1);
  if (displs.empty()) return {};
  if (all_equal(lengths)) return indexed_unmerged(std::move(displs), run(lengths.front()));
  const std::int64_t offset = rebase(displs);
  const std::size_t repeated = period(displs, [&](std::size_t i, std::size_t j) { return lengths[i] == lengths[j]; });
  if (repeated == displs.size()) return {segments_node(std::move(displs), lengths), offset};
  const std::int64_t copies = std::ssize(displs) / static_cast<std::int64_t>(repeated);
  const std::int64_t stride = displs[repeated];
  displs.resize(repeated);
  lengths.resize(repeated);
  return shifted(strided(copies, stride, segments(std::move(displs), std::move(lengths))), offset);
}

Ref Tree::structure(const std::vector<Ref>& members) {
  std::vector<Ref> kept;
  kept.reserve(members.size());
  std::int64_t runs = 0;
  for (const Ref& member : members) {
    if (member.node == empty) continue;
    runs += nodes_[member.node].runs;
    kept.push_back(member);
  }
  if (kept.empty()) return {};
  if (kept.size() == 1) return kept.front();
  if (runs <= limits_.runs) {
    Words displs, lengths;
    for (const Ref& member : kept) collect_runs(member, displs, lengths);
    return segments(std::move(displs), std::move(lengths));
  }
  return grouped(kept);
}

/// structure() of more runs than go into one list: equal neighbours become one list, and so do small ones.
Ref Tree::grouped(const std::vector<Ref>& members) {
  std::vector<Ref> groups;
  for (std::size_t first = 0, last = 0; first < members.size(); first = last) {
    Words displs;
    for (; last < members.size() && members[last].node == members[first].node; ++last)
      displs.push_back(members[last].offset);
    groups.push_back(indexed(std::move(displs), {members[first].node, 0}));
  }
  std::vector<Ref> joined;
  Words displs, lengths;
  auto close_list = [&] {
    if (!displs.empty()) joined.push_back(segments(std::exchange(displs, {}), std::exchange(lengths, {})));
  };
  for (const Ref& group : groups) {
    if (nodes_[group.node].runs <= limits_.member_runs) {
      collect_runs(group, displs, lengths);
    } else {
      close_list();
      joined.push_back(group);
    }
  }
  close_list();
  if (joined.size() == 1) return joined.front();

  TreeNode node;
  node.kind = NodeKind::structure;
  for (const Ref& member : joined) {
    node.displs.push_back(member.offset);
    node.children.push_back(member.node);
  }
  const std::int64_t offset = rebase(node.displs);
  const std::size_t repeated =
      period(node.displs, [&](std::size_t i, std::size_t j) { return node.children[i] == node.children[j]; });
  const std::int64_t copies = std::ssize(node.displs) / static_cast<std::int64_t>(repeated);
  const std::int64_t stride = copies > 1 ? node.displs[repeated] : 0;
  node.displs.resize(repeated);
  node.children.resize(repeated);
  node.count = static_cast<std::int64_t>(repeated);
  node.prefix.push_back(0);
  for (const std::uint32_t child : node.children) node.prefix.push_back(node.prefix.back() + nodes_[child].size);
  node.size = node.prefix.back();
  return shifted(strided(copies, stride, {intern(std::move(node)), 0}), offset);
}

/// Appends the runs of `ref` in packing order, joining neighbours. Iterative: trees may be deep.
void Tree::collect_runs(Ref ref, Words& displs, Words& lengths) const {
  struct Frame {
    const TreeNode* node;
    std::int64_t offset;
    std::int64_t next = 0;  ///< the child to be visited
    std::size_t block = 0;  ///< blocks: the one that holds it
  };
  std::vector<Frame> stack{{&nodes_[ref.node], ref.offset}};
  while (!stack.empty()) {
    Frame& frame = stack.back();
    const TreeNode& node = *frame.node;
    if (node.kind == NodeKind::run || node.kind == NodeKind::segments) {
      if (node.kind == NodeKind::run) append_run(displs, lengths, frame.offset, node.size);
      for (std::size_t i = 0; i < node.displs.size(); ++i)
        append_run(displs, lengths, frame.offset + node.displs[i], node.prefix[i + 1] - node.prefix[i]);
      stack.pop_back();
      continue;
    }
    const std::int64_t children = node.kind == NodeKind::blocks ? node.prefix.back() : node.count;
    if (frame.next == children) {
      stack.pop_back();
      continue;
    }
    const std::int64_t index = frame.next++;
    const auto entry = static_cast<std::size_t>(index);
    std::uint32_t child = node.child;
    std::int64_t offset = frame.offset;
    if (node.kind == NodeKind::strided) {
      offset += index * node.stride;
    } else if (node.kind == NodeKind::blocks) {
      if (index == node.prefix[frame.block + 1]) ++frame.block;
      offset += node.displs[frame.block] + (index - node.prefix[frame.block]) * node.stride;
    } else {
      offset += node.displs[entry];
      if (node.kind == NodeKind::structure) child = node.children[entry];
    }
    const TreeNode& inner = nodes_[child];
    if (inner.kind == NodeKind::run)
      append_run(displs, lengths, offset, inner.size);
    else
      stack.push_back({&inner, offset});
  }
}

Ref Tree::flatten(Ref ref) {
  Words displs, lengths;
  collect_runs(ref, displs, lengths);
  return segments(std::move(displs), std::move(lengths));
}

/// Words of the lists below `root`, each counted once.
std::int64_t Tree::reachable_words(std::uint32_t root) const {
  std::vector<bool> reached(root + 1, false);
  reached[root] = true;
  std::int64_t words = 0;
  for (std::uint32_t index = root; index > 0; --index) {
    if (!reached[index]) continue;
    const TreeNode& node = nodes_[index];
    words += node.list_words();
    reached[node.child] = true;
    for (const std::uint32_t child : node.children) reached[child] = true;
  }
  return words;
}

Ref Tree::finish(Ref root) {
  const std::int64_t limit = std::max(limits_.root_runs, limits_.factor * reachable_words(root.node));
  std::vector<std::uint32_t> outer;
  std::uint32_t index = root.node;
  for (; nodes_[index].kind == NodeKind::strided; index = nodes_[index].child) outer.push_back(index);
  const TreeNode& rest = nodes_[index];
  const bool is_list = rest.kind == NodeKind::indexed && nodes_[rest.child].kind == NodeKind::run;
  if (rest.kind == NodeKind::run || rest.kind == NodeKind::segments || is_list) return limit_dims(root, limit);
  if (rest.runs > limit) return root;
  Ref made = flatten({index, 0});
  for (; !outer.empty(); outer.pop_back()) {
    const TreeNode& node = nodes_[outer.back()];
    made = strided(node.count, node.stride, made);
  }
  return limit_dims(shifted(made, root.offset), limit);
}

/// Turns the innermost strides into a list where there are more than max_dims.
Ref Tree::limit_dims(Ref root, std::int64_t limit) {
  std::vector<std::uint32_t> outer;
  std::uint32_t index = root.node;
  for (; nodes_[index].kind == NodeKind::strided && outer.size() < max_dims; index = nodes_[index].child)
    outer.push_back(index);
  const bool fits = nodes_[index].kind != NodeKind::strided;
  if (fits || nodes_[index].runs > limit) return root;
  Words displs, lengths;
  collect_runs({index, 0}, displs, lengths);
  const std::int64_t offset = rebase(displs);
  std::uint32_t made = all_equal(lengths) ? indexed_node(std::move(displs), run(lengths.front()).node)
                                          : segments_node(std::move(displs), lengths);
  for (; !outer.empty(); outer.pop_back())
    made = strided_node(nodes_[outer.back()].count, nodes_[outer.back()].stride, made);
  return {made, root.offset + offset};
}

}  // namespace gpudt::datatype
