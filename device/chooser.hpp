// Whether a kernel or the copy engine moves a message, from a model of what each costs (cost_model.hpp). Pure
// functions.
//
// The copy engine answers sooner than a kernel does, works while kernels of others fill the GPU, and is not shared out
// in time slices among processes as the multiprocessors are; but every row of a noncontiguous message costs it
// nanoseconds, and it knows nothing beyond three nested strides.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "datatype/layout.hpp"
#include "device/cost_model.hpp"

namespace gpudt::device {

/// One side of a box: rows `pitch` bytes apart, slices `slice` bytes apart (a multiple of the pitch).
struct BoxSide {
  void* address;
  std::size_t pitch, slice;
};

/// What one call of the copy engine moves: `depth` slices of `height` rows of `width` bytes.
struct CopyBox {
  BoxSide to, from;
  std::size_t width, height = 1, depth = 1;
};

/// The boxes that make up a range of a message, in the order of the packed stream; none if the copy engine cannot.
class Boxes {
 public:
  static constexpr std::size_t most = 3;  ///< the rest of a row, whole rows, the beginning of a row
  void add(const CopyBox& box) { boxes_[count_++] = box; }
  std::span<const CopyBox> span() const { return {boxes_.data(), count_}; }
  std::int64_t rows() const;

 private:
  std::array<CopyBox, most> boxes_ = {};
  std::size_t count_ = 0;
};

/// Packed bytes [begin, end) of the message, whose first byte lies at `packed`.
Boxes boxes_of(const datatype::Shape& shape, bool unpack, void* user, void* packed, std::int64_t begin,
               std::int64_t end);

/// What moves the data of `from`, boxes to packed memory, to where `to`, boxes from packed memory, lead; none if the
/// two are not divided alike.
Boxes boxes_between(const Boxes& from, const Boxes& to);

/// One row as two, so that the copy engine moves it. Boxes of more rows, and of a single byte, stay as they are.
Boxes in_two_rows(const Boxes& boxes);

/// Where the packed side lies.
struct Situation {
  bool unpack = false;
  bool packed_is_host = false;  ///< else it is memory of the same GPU
  bool peer = false;            ///< ... or one side is memory of another
};

/// Microseconds until the host sees the flag, of a message of `bytes` bytes; of a kernel that begins at once.
double kernel_cost_us(const CostModel& model, std::int64_t bytes, const Situation& situation);
double copy_cost_us(const CostModel& model, std::int64_t bytes, const Boxes& boxes, const Situation& situation);

}  // namespace gpudt::device
