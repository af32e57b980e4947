// The contiguous runs of a message, one after the other, on the host.
#pragma once

#include <algorithm>

#include "datatype/layout.hpp"

namespace gpudt::datatype {

/// Calls act(offset from the user's address, position in the range, bytes) for each run of packed bytes [begin, end) of
/// a message, in the order of the packed stream. Runs may adjoin.
template <class Act>
void for_each_run(const Layout& layout, std::int64_t begin, std::int64_t end, const Act& act) {
  if (begin >= end) return;
  const Shape shape = layout.shape(1);
  const Program program = layout.program();
  for (std::int64_t pos = begin; pos < end;) {
    const std::int64_t element = pos / layout.size();
    const Place place = locate(program, shape.root, pos - element * layout.size());
    const std::int64_t length = std::min(place.length, end - pos);
    act(shape.offset + element * layout.extent() + place.offset, pos - begin, length);
    pos += length;
  }
}

}  // namespace gpudt::datatype
