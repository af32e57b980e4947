#include "device/choice/copy_plan.hpp"

#include <algorithm>

#include "datatype/runs.hpp"

namespace gpudt::device {
namespace {

using datatype::Shape;
using datatype::ShapeKind;

/// The copy engine's limit on pitches.
constexpr std::int64_t most_pitch = (std::int64_t{1} << 31) - 1;

char* at(void* base, std::int64_t offset) {
  // Integers, since the base may be null: then the offsets are absolute addresses.
  return reinterpret_cast<char*>(reinterpret_cast<std::uintptr_t>(base) + static_cast<std::uintptr_t>(offset));
}

/// A box between rows of the user's buffer and the packed stream.
CopyBox box(bool unpack, char* user, const datatype::Dim& rows, std::int64_t slice, char* packed, std::int64_t width,
            std::int64_t height, std::int64_t depth) {
  const auto size = [](std::int64_t value) { return static_cast<std::size_t>(value); };
  const BoxSide there = {user, size(rows.stride), size(slice)};
  const BoxSide here = {packed, size(width), size(width * height)};
  return {unpack ? there : here, unpack ? here : there, size(width), size(height), size(depth)};
}

bool suits_rows(const datatype::Dim& dim, std::int64_t run) {
  return dim.stride >= run && dim.stride <= most_pitch;
}

/// Whether one box can hold rows and the slices that they make up.
bool suits_slices(const datatype::Dim& slices, const datatype::Dim& rows) {
  return slices.stride >= rows.count * rows.stride && slices.stride % rows.stride == 0;
}

bool has_few_runs(const Shape& shape, const datatype::Layout& layout, std::int64_t most) {
  return layout.runs() <= most / shape.count;
}

/// The runs expected in `bytes` bytes of a message that has at most CopyPlan::most_calls runs.
std::int64_t expected_runs(const Shape& shape, const datatype::Layout& layout, std::int64_t bytes) {
  const double part = static_cast<double>(bytes) / static_cast<double>(shape.total);
  return std::max(static_cast<std::int64_t>(static_cast<double>(layout.runs() * shape.count) * part), std::int64_t{1});
}

/// The plan for a range of an irregular message: a box for each run.
CopyPlan run_boxes(const Shape& shape, const datatype::Layout& layout, bool unpack, void* user, void* packed,
                   std::int64_t begin, std::int64_t end) {
  CopyPlan copy_plan;
  copy_plan.reserve(expected_runs(shape, layout, end - begin));
  datatype::for_each_run(layout, begin, end, [&](std::int64_t offset, std::int64_t position, std::int64_t bytes) {
    copy_plan.add(box(unpack, at(user, offset), {1, bytes}, bytes, at(packed, position), bytes, 1, 1));
  });
  return copy_plan;
}

/// The plan for a whole message of two or more nested strides: one call copies the innermost two or three dimensions,
/// and is repeated for the others.
CopyPlan nested_boxes(const Shape& shape, bool unpack, void* user, void* packed) {
  const std::span dims(shape.dims, static_cast<std::size_t>(shape.ndims));
  const datatype::Dim& rows = dims[dims.size() - 1];
  const datatype::Dim& slices = dims[dims.size() - 2];
  const bool sliced = suits_slices(slices, rows);
  const auto outer = dims.first(dims.size() - (sliced ? 2 : 1));
  std::int64_t calls = 1;
  CopyPlan copy_plan;
  for (const datatype::Dim& dim : outer) {
    if (dim.count > CopyPlan::most_calls / calls) return copy_plan;
    calls *= dim.count;
  }
  copy_plan.add(box(unpack, at(user, shape.offset), rows, sliced ? slices.stride : 0, at(packed, 0), shape.run,
                    rows.count, sliced ? slices.count : 1));
  copy_plan.repeat(outer, unpack ? &CopyBox::to : &CopyBox::from);
  return copy_plan;
}

}  // namespace

void CopyPlan::add(const CopyBox& box) {
  if (count_ < listed_.size()) {
    listed_[count_++] = box;
    return;
  }
  further_.push_back(box);
}

void CopyPlan::reserve(std::int64_t copies) {
  const auto all = static_cast<std::size_t>(copies);
  if (all > listed_.size()) further_.reserve(all - listed_.size());
}

void CopyPlan::repeat(std::span<const datatype::Dim> dims, BoxSide CopyBox::*user) {
  std::copy(dims.begin(), dims.end(), dims_.begin());
  ndims_ = dims.size();
  user_ = user;
  for (const datatype::Dim& dim : dims) repetitions_ *= dim.count;
}

CopyBox CopyPlan::operator[](std::int64_t index) const {
  if (ndims_ == 0) {
    const auto place = static_cast<std::size_t>(index);
    return place < count_ ? listed_[place] : further_[place - count_];
  }
  CopyBox box = first();
  BoxSide& user = box.*user_;
  BoxSide& packed = user_ == &CopyBox::from ? box.to : box.from;
  packed.address = at(packed.address, index * static_cast<std::int64_t>(box.width * box.height * box.depth));
  std::int64_t offset = 0, left = index;
  for (std::size_t d = ndims_; d-- > 0;) {
    offset += left % dims_[d].count * dims_[d].stride;
    left /= dims_[d].count;
  }
  user.address = at(user.address, offset);
  return box;
}

std::int64_t CopyPlan::rows() const {
  std::size_t rows = 0;
  for (std::size_t i = 0; i < count_; ++i) rows += listed_[i].height * listed_[i].depth;
  for (const CopyBox& box : further_) rows += box.height * box.depth;
  return static_cast<std::int64_t>(rows) * repetitions_;
}

CopyPlan copy_plan_of(const Shape& shape, bool unpack, void* user, void* packed, std::int64_t begin, std::int64_t end,
                      const datatype::Layout* layout, std::int64_t most_runs) {
  if (layout != nullptr && is_irregular(shape) && has_few_runs(shape, *layout, most_runs))
    return run_boxes(shape, *layout, unpack, user, packed, begin, end);
  CopyPlan copy_plan;
  const auto piece = [&](std::int64_t offset, std::int64_t position, std::int64_t bytes) {
    copy_plan.add(
        box(unpack, at(user, shape.offset + offset), {1, bytes}, bytes, at(packed, position - begin), bytes, 1, 1));
  };
  if (shape.kind == ShapeKind::contiguous) {
    piece(begin, begin, end - begin);
    return copy_plan;
  }
  if (shape.kind != ShapeKind::strided) return copy_plan;
  const datatype::Dim& rows = shape.dims[shape.ndims - 1];
  if (!suits_rows(rows, shape.run)) return copy_plan;
  if (shape.ndims >= 2) return begin == 0 && end == shape.total ? nested_boxes(shape, unpack, user, packed) : copy_plan;
  // The rest of a row, whole rows, the beginning of a row.
  const std::int64_t first = (begin + shape.run - 1) / shape.run, last = end / shape.run;
  if (first > last) {  // within one row
    piece(last * rows.stride + begin % shape.run, begin, end - begin);
    return copy_plan;
  }
  if (begin < first * shape.run) piece((first - 1) * rows.stride + begin % shape.run, begin, first * shape.run - begin);
  if (first < last)
    copy_plan.add(box(unpack, at(user, shape.offset + first * rows.stride), rows, 0,
                      at(packed, first * shape.run - begin), shape.run, last - first, 1));
  if (last * shape.run < end) piece(last * rows.stride, last * shape.run, end - last * shape.run);
  return copy_plan;
}

std::int64_t least_calls(const Shape& shape, std::int64_t bytes, const datatype::Layout* layout,
                         std::int64_t most_runs) {
  if (shape.kind == ShapeKind::contiguous) return 1;
  if (is_irregular(shape)) {
    if (layout == nullptr || !has_few_runs(shape, *layout, most_runs)) return 0;
    if (!has_few_runs(shape, *layout, CopyPlan::most_together)) return expected_runs(shape, *layout, bytes);
    if (shape.kind == ShapeKind::general || bytes < shape.total) return 1;
    // The last run of each traversal of the list and the first of the next one may adjoin.
    return shape.total / shape.list_size * (shape.list_count - 1) + 1;
  }
  if (shape.kind != ShapeKind::strided) return 0;
  constexpr int in_one_call = 2;  // rows, and slices of them
  std::int64_t calls = 1;
  for (int d = 0; d + in_one_call < shape.ndims && calls <= CopyPlan::most_calls; ++d) calls *= shape.dims[d].count;
  return calls;
}

datatype::Span span_to_bring(const datatype::Layout& layout, const Shape& shape) {
  if (shape.kind == ShapeKind::contiguous || shape.kind == ShapeKind::empty) return {};
  const datatype::Span span = layout.span(shape.count);
  return span.bytes() <= most_span_bytes ? span : datatype::Span{};
}

CopyPlan copy_plan_between(const CopyPlan& from, const CopyPlan& to) {
  CopyPlan copy_plan;
  if (from.calls() != to.calls() || to.calls() > static_cast<std::int64_t>(CopyPlan::most_within)) return copy_plan;
  for (std::int64_t i = 0; i < to.calls(); ++i) {
    const CopyBox here = to[i], there = from[i];
    if (here.width != there.width || here.height != there.height || here.depth != there.depth) return {};
    copy_plan.add({here.to, there.from, here.width, here.height, here.depth});
  }
  return copy_plan;
}

namespace {

bool is_short_row(const CopyBox& box, double row_bytes) {
  return box.height == 1 && box.depth == 1 && static_cast<double>(box.width) < row_bytes;
}

/// The distance in bytes; the two sides may lie in different allocations.
std::int64_t distance(const BoxSide& from, const BoxSide& to) {
  return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(to.address) -
                                   reinterpret_cast<std::uintptr_t>(from.address));
}

/// Whether one copy can move both, as rows.
bool are_two_rows(const CopyBox& first, const CopyBox& second) {
  const auto is_pitch = [&](std::int64_t pitch) {
    return pitch >= static_cast<std::int64_t>(first.width) && pitch <= most_pitch;
  };
  return first.width == second.width && is_pitch(distance(first.to, second.to)) &&
         is_pitch(distance(first.from, second.from));
}

/// Removes one of the last rows of `alone` and adds it with `row` as one box. False if none suits.
bool take_partner(CopyPlan& copy_plan, std::vector<CopyBox>& alone, const CopyBox& row) {
  constexpr std::ptrdiff_t looked_at = 16;
  const auto last = alone.rbegin() + std::min(std::ssize(alone), looked_at);
  const auto partner = std::find_if(alone.rbegin(), last, [&](const CopyBox& one) { return are_two_rows(one, row); });
  if (partner == last) return false;
  const auto side = [](const BoxSide& first, const BoxSide& second) -> BoxSide {
    return {first.address, static_cast<std::size_t>(distance(first, second)), 0};
  };
  copy_plan.add({side(partner->to, row.to), side(partner->from, row.from), row.width, 2});
  *partner = alone.back();
  alone.pop_back();
  return true;
}

void add_in_two_rows(CopyPlan& copy_plan, const CopyBox& row) {
  const std::size_t half = row.width / 2;
  const auto halves_from = [&](std::size_t byte) -> CopyBox {
    const auto side = [&](const BoxSide& of) -> BoxSide { return {static_cast<char*>(of.address) + byte, half, 0}; };
    return {side(row.to), side(row.from), half, 2};
  };
  copy_plan.add(halves_from(0));
  if (row.width % 2 != 0) copy_plan.add(halves_from(1));  // copies all but two bytes a second time, which is harmless
}

}  // namespace

CopyPlan in_two_rows(const CopyPlan& copy_plan, double row_bytes, bool in_pairs) {
  CopyPlan rows;
  rows.reserve(copy_plan.calls());
  std::vector<CopyBox> alone;
  for (std::int64_t call = 0; call < copy_plan.calls(); ++call) {
    const CopyBox box = copy_plan[call];
    if (!is_short_row(box, row_bytes))
      rows.add(box);
    else if (!in_pairs || !take_partner(rows, alone, box))
      alone.push_back(box);
  }
  for (const CopyBox& row : alone)
    if (row.width > 1)
      add_in_two_rows(rows, row);
    else
      rows.add(row);
  return rows;
}

bool has_short_row(const CopyPlan& copy_plan, double row_bytes) {
  for (std::int64_t call = 0; call < copy_plan.calls(); ++call)
    if (is_short_row(copy_plan[call], row_bytes)) return true;
  return false;
}

}  // namespace gpudt::device
