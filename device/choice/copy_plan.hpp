// The calls of the copy engine that move a range of a message. Pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "datatype/layout.hpp"
#include "device/runtime/copy_box.hpp"

namespace gpudt::device {

/// The copies that move a range of a message, in the order of the packed stream; empty if the copy engine cannot move
/// it. Each copy is one call, but runs may be given to the runtime most_together at a time. The copies are either
/// listed, or one listed copy is repeated under further strides.
class CopyPlan {
 public:
  /// The rest of a row, whole rows, the beginning of a row: a plan of these three copies needs no heap memory.
  static constexpr std::size_t most_within = 3;
  /// With more calls the host would be busy for more than 3.5 ms, or 10 ms if no two boxes share a call.
  static constexpr std::int64_t most_calls = 4096;
  /// Runs that one call of Runtime::copy_runs_async() is given.
  static constexpr std::int64_t most_together = 64;
  void add(const CopyBox& box);
  /// Allocates memory for `copies` copies.
  void reserve(std::int64_t copies);
  /// Repeats the only box at each place of `dims` (outermost first), which are strides of its side `user`; on the other
  /// side each copy follows the one before. At most most_calls copies result.
  void repeat(std::span<const datatype::Dim> dims, BoxSide CopyBox::*user);

  bool empty() const { return count_ == 0; }
  std::int64_t calls() const { return static_cast<std::int64_t>(count_ + further_.size()) * repetitions_; }
  std::int64_t rows() const;
  /// Whether there are several copies, each of a single row.
  bool are_runs() const { return calls() > 1 && rows() == calls(); }
  /// The first listed box.
  const CopyBox& first() const { return listed_[0]; }
  /// The box of call `index`, 0 <= index < calls().
  CopyBox operator[](std::int64_t index) const;

 private:
  std::array<CopyBox, most_within> listed_ = {};
  std::size_t count_ = 0;         ///< boxes in listed_
  std::vector<CopyBox> further_;  ///< boxes after those of listed_
  std::array<datatype::Dim, datatype::max_dims> dims_ = {};
  std::size_t ndims_ = 0;
  std::int64_t repetitions_ = 1;
  BoxSide CopyBox::*user_ = &CopyBox::from;
};

inline bool is_irregular(const datatype::Shape& shape) {
  return shape.kind == datatype::ShapeKind::list || shape.kind == datatype::ShapeKind::general;
}

/// The plan for packed bytes [begin, end) of the message, whose first byte lies at `packed`. If `layout` is given, an
/// irregular message of at most `most_runs` runs (no more than CopyPlan::most_calls) gets a box for each run in the
/// range.
CopyPlan copy_plan_of(const datatype::Shape& shape, bool unpack, void* user, void* packed, std::int64_t begin,
                      std::int64_t end, const datatype::Layout* layout = nullptr,
                      std::int64_t most_runs = CopyPlan::most_together);

/// A lower bound for the number of copy calls for `bytes` bytes; 0 if the copy engine cannot move the message (a
/// positive result does not promise that it can). It takes less time than copy_plan_of(), and no more for many runs.
/// For an irregular message it is an estimate: neighbours within its list may adjoin, and a part of more than
/// CopyPlan::most_together runs is taken to have runs of average length.
std::int64_t least_calls(const datatype::Shape& shape, std::int64_t bytes, const datatype::Layout* layout = nullptr,
                         std::int64_t most_runs = CopyPlan::most_together);

/// Longer spans are not copied to the host for packing: each needs staging memory of its length.
inline constexpr std::int64_t most_span_bytes = std::int64_t{4} << 20;
/// The span of the whole message if the copy engine may copy it with the gaps between its runs; else empty.
datatype::Span span_to_bring(const datatype::Layout& layout, const datatype::Shape& shape);

/// The copies from where `from` (copies to packed memory) reads to where `to` (copies from packed memory) writes; empty
/// if the two are not divided alike.
CopyPlan copy_plan_between(const CopyPlan& from, const CopyPlan& to);

/// Turns rows shorter than `row_bytes` into 2-row copies, which the copy engine executes: it pairs rows of equal
/// length, or (if `in_pairs` is false or a row has no partner) splits a row in two. Copies of more rows, and rows of
/// one byte, stay as they are. The order of the copies changes.
CopyPlan in_two_rows(const CopyPlan& copy_plan, double row_bytes, bool in_pairs = true);
/// Whether a copy of a single row has less than `row_bytes` bytes.
bool has_short_row(const CopyPlan& copy_plan, double row_bytes);

}  // namespace gpudt::device
