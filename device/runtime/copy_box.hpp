// What one call of the copy engine moves.
#pragma once

#include <cstddef>

namespace gpudt::device {

/// One side of a box: rows `pitch` bytes apart, slices `slice` bytes apart (a multiple of the pitch).
struct BoxSide {
  void* address;
  std::size_t pitch, slice;
};

/// `depth` slices of `height` rows of `width` bytes.
struct CopyBox {
  BoxSide to, from;
  std::size_t width, height = 1, depth = 1;
};

}  // namespace gpudt::device
