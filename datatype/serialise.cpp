// Writes a Tree as the position-independent block that kernels, the host reference and other processes read, and
// chooses the form of one element.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "datatype/tree.hpp"

namespace gpudt::datatype {
namespace {

constexpr std::uint32_t unplaced = UINT32_MAX;

constexpr std::size_t words_of(std::size_t bytes) {
  return bytes / sizeof(std::int64_t);
}

static_assert(sizeof(SerialisedHeader) % 16 == 0 && sizeof(Node) % 16 == 0);
static_assert(__STDCPP_DEFAULT_NEW_ALIGNMENT__ >= 16, "std::vector must hand out 16-byte aligned words");

/// Nodes below `root` in preorder, each once.
std::vector<std::uint32_t> preorder(const Tree& tree, std::uint32_t root) {
  std::vector<std::uint32_t> order, pending{root};
  std::vector<bool> seen(root + 1, false);
  while (!pending.empty()) {
    const std::uint32_t index = pending.back();
    pending.pop_back();
    if (index == Tree::empty || seen[index]) continue;
    seen[index] = true;
    order.push_back(index);
    const TreeNode& node = tree[index];
    pending.push_back(node.child);
    pending.insert(pending.end(), node.children.rbegin(), node.children.rend());
  }
  return order;
}

std::int64_t append(Words& lookaside, const Words& list) {
  const auto at = static_cast<std::int64_t>(lookaside.size());
  lookaside.insert(lookaside.end(), list.begin(), list.end());
  return at;
}

Node node_of(const Tree& tree, const TreeNode& from, const std::vector<std::uint32_t>& places, Words& lookaside) {
  Node node = {};
  node.kind = from.kind;
  node.size = from.size;
  node.count = from.count;
  node.stride = from.stride;
  if (from.child != Tree::empty) {
    node.child = places[from.child];
    node.child_size = tree[from.child].size;
  }
  if (!from.displs.empty()) node.displs = append(lookaside, from.displs);
  if (!from.prefix.empty()) node.prefix = append(lookaside, from.prefix);
  if (!from.children.empty()) {
    node.children = static_cast<std::int64_t>(lookaside.size());
    for (const std::uint32_t child : from.children) lookaside.push_back(places[child]);
  }
  return node;
}

std::int64_t longest_run(const Node& segments, const Words& lookaside) {
  const std::int64_t* prefix = lookaside.data() + segments.prefix;
  std::int64_t longest = 0;
  for (std::int64_t i = 0; i < segments.count; ++i) longest = std::max(longest, prefix[i + 1] - prefix[i]);
  return longest;
}

/// The form of the element at nodes[0], which lies at `offset`.
Shape shape_of(const std::vector<Node>& nodes, const Words& lookaside, std::int64_t offset) {
  Shape shape;
  if (nodes.empty()) return shape;
  shape.offset = offset;
  shape.total = nodes[0].size;
  const Node* node = nodes.data();
  for (; node->kind == NodeKind::strided && shape.ndims < max_dims; node = nodes.data() + node->child)
    shape.dims[shape.ndims++] = {node->count, node->stride};
  const bool regular = node->kind == NodeKind::indexed && nodes[node->child].kind == NodeKind::run;
  if (node->kind == NodeKind::run) {
    shape.kind = shape.ndims == 0 ? ShapeKind::contiguous : ShapeKind::strided;
    shape.run = node->size;
  } else if (regular || node->kind == NodeKind::segments) {
    shape.kind = ShapeKind::list;
    shape.run = regular ? node->child_size : 0;
    shape.list_count = node->count;
    shape.list_size = node->size;
    shape.list_displs = node->displs;
    shape.list_prefix = regular ? 0 : node->prefix;
    shape.list_longest = regular ? shape.run : longest_run(*node, lookaside);
  } else {
    shape.kind = ShapeKind::general;
    shape.ndims = 0;
    std::fill(std::begin(shape.dims), std::end(shape.dims), Dim{});
  }
  return shape;
}

/// What a layout knows besides its serialised words.
struct Summary {
  std::int64_t size, lb, extent, true_lb, true_ub, runs, depth;
  std::uint64_t mask;
  Shape element;
};
static_assert(std::is_trivially_copyable_v<Summary>);

}  // namespace

std::size_t Layout::bytes() const {
  return sizeof(Summary) + serialised().size();
}

std::vector<std::byte> Layout::to_bytes() const {
  const Summary summary{size_, lb_, extent_, true_lb_, true_ub_, runs_, depth_, mask_, element_};
  const std::span<const std::byte> words = serialised();
  std::vector<std::byte> bytes(this->bytes());
  std::memcpy(bytes.data(), &summary, sizeof summary);
  std::memcpy(bytes.data() + sizeof summary, words.data(), words.size());
  return bytes;
}

LayoutRef Layout::from_bytes(std::span<const std::byte> bytes) {
  Summary summary;
  SerialisedHeader header;
  if (bytes.size() < sizeof summary + sizeof header || bytes.size() % sizeof(std::int64_t) != 0) return nullptr;
  std::memcpy(&summary, bytes.data(), sizeof summary);
  const std::span<const std::byte> words = bytes.subspan(sizeof summary);
  std::memcpy(&header, words.data(), sizeof header);
  const std::size_t wanted = sizeof header + static_cast<std::size_t>(header.node_count) * sizeof(Node) +
                             static_cast<std::size_t>(header.lookaside_words) * sizeof(std::int64_t);
  if (header.magic != SerialisedHeader().magic || header.version != SerialisedHeader().version ||
      words.size() != wanted)
    return nullptr;
  auto layout = std::make_shared<Layout>();
  layout->size_ = summary.size;
  layout->lb_ = summary.lb;
  layout->extent_ = summary.extent;
  layout->true_lb_ = summary.true_lb;
  layout->true_ub_ = summary.true_ub;
  layout->runs_ = summary.runs;
  layout->depth_ = static_cast<int>(summary.depth);
  layout->mask_ = summary.mask;
  layout->element_ = summary.element;
  layout->words_.resize(words_of(words.size()));
  std::memcpy(layout->words_.data(), words.data(), words.size());
  return layout;
}

LayoutRef Serialiser::serialise(const Tree& tree, Ref root, Bounds bounds) {
  const std::vector<std::uint32_t> order = preorder(tree, root.node);
  std::vector<std::uint32_t> places(root.node + 1, unplaced);
  for (std::uint32_t place = 0; place < order.size(); ++place) places[order[place]] = place;
  std::vector<Node> nodes;
  nodes.reserve(order.size());
  Words lookaside;
  for (const std::uint32_t index : order) nodes.push_back(node_of(tree, tree[index], places, lookaside));

  auto layout = std::make_shared<Layout>();
  const TreeNode& top = tree[root.node];
  layout->size_ = top.size;
  layout->lb_ = bounds.lb;
  layout->extent_ = bounds.extent;
  layout->true_lb_ = top.size == 0 ? 0 : root.offset + top.low;
  layout->true_ub_ = top.size == 0 ? 0 : root.offset + top.high;
  layout->runs_ = top.runs;
  layout->depth_ = top.depth;
  layout->mask_ = top.mask | static_cast<std::uint64_t>(root.offset);
  layout->element_ = shape_of(nodes, lookaside, root.offset);
  layout->element_.extent = bounds.extent;

  SerialisedHeader header;
  header.size = top.size;
  header.node_count = static_cast<std::int64_t>(nodes.size());
  header.lookaside_words = static_cast<std::int64_t>(lookaside.size());
  const std::size_t node_words = words_of(nodes.size() * sizeof(Node));
  layout->words_.resize(words_of(sizeof header) + node_words + lookaside.size());
  std::int64_t* to = layout->words_.data();
  std::memcpy(to, &header, sizeof header);
  to += words_of(sizeof header);
  if (!nodes.empty()) std::memcpy(to, nodes.data(), nodes.size() * sizeof(Node));
  std::copy(lookaside.begin(), lookaside.end(), to + node_words);
  return layout;
}

}  // namespace gpudt::datatype
