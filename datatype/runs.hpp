// The contiguous runs of a message, one after the other, on the host.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "datatype/layout.hpp"

namespace gpudt::datatype {

/// Deeper layouts are not walked: a walk takes room on the stack for each level, and threads may have 16 KiB.
inline constexpr int most_walked_depth = 16;

/// Walks through the data of one element in packed order: `leaf(offset, bytes)` for each run, and before that
/// `whole(node, count, offset)` for `count` children at a node's stride, which are walked unless it returns true.
template <class Leaf, class Whole>
class NodeWalk {
 public:
  NodeWalk(const Program& program, const Leaf& leaf, const Whole& whole)
      : program_(program), leaf_(leaf), whole_(whole) {}

  /// The data of a node whose first byte lies at `offset`.
  void walk(std::int64_t index, std::int64_t offset) const {
    const Node& node = program_.nodes[index];
    const std::int64_t* const displs = program_.lookaside + node.displs;
    const std::int64_t* const prefix = program_.lookaside + node.prefix;
    switch (node.kind) {
      case NodeKind::run:
        return leaf_(offset, node.size);
      case NodeKind::strided:
        return walk_children(node, node.count, offset);
      case NodeKind::indexed:
        return walk_each(node, node.count, [&](std::int64_t i) { return offset + displs[i]; });
      case NodeKind::blocks:
        for (std::int64_t i = 0; i < node.count; ++i)
          walk_children(node, prefix[i + 1] - prefix[i], offset + displs[i]);
        return;
      case NodeKind::segments:
        for (std::int64_t i = 0; i < node.count; ++i) leaf_(offset + displs[i], prefix[i + 1] - prefix[i]);
        return;
      default:  // NodeKind::structure
        for (std::int64_t i = 0; i < node.count; ++i) walk(program_.lookaside[node.children + i], offset + displs[i]);
        return;
    }
  }

 private:
  void walk_children(const Node& node, std::int64_t count, std::int64_t offset) const {
    if (!whole_(node, count, offset)) walk_each(node, count, [&](std::int64_t i) { return offset + i * node.stride; });
  }

  /// `place(i)`: where child i lies.
  template <class Place>
  void walk_each(const Node& node, std::int64_t count, const Place& place) const {
    const Node& child = program_.nodes[node.child];
    for (std::int64_t i = 0; i < count; ++i)
      if (child.kind == NodeKind::run)
        leaf_(place(i), child.size);
      else
        walk(node.child, place(i));
  }

  const Program& program_;
  const Leaf& leaf_;
  const Whole& whole_;
};

/// for_each_run() without joining adjacent runs: whole elements by a walk; parts of elements, and deep ones, by a
/// search for each run.
template <class Act>
void for_each_piece(const Layout& layout, const Shape& shape, std::int64_t begin, std::int64_t end, const Act& act) {
  const Program program = layout.program();
  const std::int64_t size = layout.size();
  std::int64_t pos = begin;
  const auto search_until = [&](std::int64_t last) {
    while (pos < last) {
      const std::int64_t element = pos / size;
      const Place place = locate(program, shape.root, pos - element * size);
      const std::int64_t length = std::min(place.length, last - pos);
      act(shape.offset + element * layout.extent() + place.offset, pos - begin, length);
      pos += length;
    }
  };
  const auto leaf = [&](std::int64_t offset, std::int64_t length) {
    act(offset, pos - begin, length);
    pos += length;
  };
  const auto none_whole = [](const Node&, std::int64_t, std::int64_t) { return false; };
  const NodeWalk elements(program, leaf, none_whole);
  if (layout.depth() > most_walked_depth) return search_until(end);
  if (pos % size != 0) search_until(std::min(end, pos - pos % size + size));
  for (std::int64_t element = pos / size; element < end / size; ++element)
    elements.walk(shape.root, shape.offset + element * layout.extent());
  search_until(end);
}

/// Calls act(offset from the user's address, position in the range, bytes) for each run of packed bytes [begin, end) of
/// a message, in the order of the packed stream. Adjacent runs are joined. Adjacent elements are one run, at a cost
/// that does not depend on their number.
template <class Act>
void for_each_run(const Layout& layout, std::int64_t begin, std::int64_t end, const Act& act) {
  if (begin >= end) return;
  const Shape shape = layout.shape(1);
  if (shape.kind == ShapeKind::contiguous && layout.extent() == layout.size())
    return act(shape.offset + begin, 0, end - begin);
  std::int64_t offset = 0, position = 0, bytes = 0;
  for_each_piece(layout, shape, begin, end, [&](std::int64_t next, std::int64_t place, std::int64_t length) {
    if (bytes != 0 && next == offset + bytes) {
      bytes += length;
      return;
    }
    if (bytes != 0) act(offset, position, bytes);
    offset = next;
    position = place;
    bytes = length;
  });
  act(offset, position, bytes);
}

/// From the first byte of `count` children at a node's stride to the last, relative to the first child, unless there
/// are gaps of more than `most_gap` bytes between them.
inline std::optional<Span> span_without_gaps(const Program& program, const Node& node, std::int64_t count,
                                             std::int64_t most_gap) {
  if (count == 0) return std::nullopt;
  const Node& child = program.nodes[node.child];
  std::optional<Span> span;
  if (child.kind == NodeKind::run) span = Span{0, child.size};
  if (child.kind == NodeKind::strided) span = span_without_gaps(program, child, child.count, most_gap);
  if (!span || std::abs(node.stride) - span->bytes() > most_gap) return std::nullopt;
  const std::int64_t last = (count - 1) * node.stride;
  return Span{span->begin + std::min<std::int64_t>(last, 0), span->end + std::max<std::int64_t>(last, 0)};
}

/// Calls act(span) for spans that together hold all data of one element, in the order of the packed stream. Runs at
/// regular strides, also nested ones, with gaps of at most `most_gap` bytes are one span, at a cost that does not
/// depend on their number; all others are spans of their own.
template <class Act>
void for_each_stretch(const Layout& layout, std::int64_t most_gap, const Act& act) {
  if (layout.size() == 0) return;
  const Shape shape = layout.shape(1);
  const Program program = layout.program();
  const auto leaf = [&](std::int64_t offset, std::int64_t bytes) { act(Span{offset, offset + bytes}); };
  if (layout.depth() > most_walked_depth)
    return for_each_piece(layout, shape, 0, layout.size(),
                          [&](std::int64_t offset, std::int64_t, std::int64_t bytes) { leaf(offset, bytes); });
  const auto whole = [&](const Node& node, std::int64_t count, std::int64_t offset) {
    const std::optional<Span> span = span_without_gaps(program, node, count, most_gap);
    if (span) act(Span{offset + span->begin, offset + span->end});
    return span.has_value();
  };
  NodeWalk(program, leaf, whole).walk(shape.root, shape.offset);
}

}  // namespace gpudt::datatype
