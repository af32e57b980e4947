// The contiguous runs of a message, one after the other, on the host.
#pragma once

#include <algorithm>

#include "datatype/layout.hpp"

namespace gpudt::datatype {

/// for_each_run() for elements [first, last), each of which has the form `shape`, a list. It needs no search.
template <class Act>
void for_each_listed_run(const Layout& layout, const Shape& shape, std::int64_t first, std::int64_t last,
                         const Act& act) {
  const std::int64_t* const displs = layout.program().lookaside + shape.list_displs;
  const std::int64_t* const prefix = layout.program().lookaside + shape.list_prefix;
  const std::int64_t traversals = layout.size() / shape.list_size;
  std::int64_t position = 0;
  for (std::int64_t element = first; element < last; ++element)
    for (std::int64_t traversal = 0; traversal < traversals; ++traversal) {
      std::int64_t offset = shape.offset + element * layout.extent();
      for (std::int64_t d = shape.ndims, left = traversal; d-- > 0; left /= shape.dims[d].count)
        offset += left % shape.dims[d].count * shape.dims[d].stride;
      for (std::int64_t run = 0; run < shape.list_count; ++run) {
        const std::int64_t bytes = shape.run > 0 ? shape.run : prefix[run + 1] - prefix[run];
        act(offset + displs[run], position, bytes);
        position += bytes;
      }
    }
}

/// for_each_run() without joining adjacent runs.
template <class Act>
void for_each_piece(const Layout& layout, const Shape& shape, std::int64_t begin, std::int64_t end, const Act& act) {
  if (shape.kind == ShapeKind::list && begin % layout.size() == 0 && end % layout.size() == 0)
    return for_each_listed_run(layout, shape, begin / layout.size(), end / layout.size(), act);
  const Program program = layout.program();
  for (std::int64_t pos = begin; pos < end;) {
    const std::int64_t element = pos / layout.size();
    const Place place = locate(program, shape.root, pos - element * layout.size());
    const std::int64_t length = std::min(place.length, end - pos);
    act(shape.offset + element * layout.extent() + place.offset, pos - begin, length);
    pos += length;
  }
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

}  // namespace gpudt::datatype
