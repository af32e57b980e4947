#include "device/choice/chooser.hpp"

#include <algorithm>
#include <cstdlib>

#include "datatype/runs.hpp"

namespace gpudt::device {
namespace {

using datatype::Shape;
using datatype::ShapeKind;

/// The copy engine's limit on pitches.
constexpr std::int64_t most_pitch = (std::int64_t{1} << 31) - 1;

double moving_us(const Cost& cost, std::int64_t bytes, std::int64_t rows) {
  return std::max(static_cast<double>(rows) * cost.row_ns * 1e-3, static_cast<double>(bytes) / cost.bytes_per_us);
}

double cost_us(const Cost& cost, std::int64_t bytes, std::int64_t rows) {
  return cost.base_us + moving_us(cost, bytes, rows);
}

char* at(void* base, std::int64_t offset) {
  // By integers: with MPI_BOTTOM the base is null.
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

/// Sectors of memory that have bytes of a strided message or of a list, about. The runs of a list may begin wherever
/// its alignment lets them; if it is dense, runs share sectors.
std::int64_t sectors_of(const Shape& shape, const datatype::Span& span) {
  if (shape.kind == ShapeKind::list) {
    const std::int64_t runs = shape.total / shape.list_size * shape.list_count;
    return std::min(shape.total + runs * (sector_bytes - shape.align), span.bytes()) / sector_bytes;
  }
  const std::int64_t apart = std::abs(shape.dims[shape.ndims - 1].stride);
  const std::int64_t whole = (shape.run + sector_bytes - 1) / sector_bytes * sector_bytes;
  return shape.total / shape.run * std::min(whole, std::max(apart, shape.run)) / sector_bytes;
}

/// Whether rows and the slices that they make up are one box.
bool suits_slices(const datatype::Dim& slices, const datatype::Dim& rows) {
  return slices.stride >= rows.count * rows.stride && slices.stride % rows.stride == 0;
}

bool is_irregular(const Shape& shape) {
  return shape.kind == ShapeKind::list || shape.kind == ShapeKind::general;
}

bool has_few_runs(const Shape& shape, const datatype::Layout& layout, std::int64_t most) {
  return layout.runs() <= most / shape.count;
}

/// In `bytes` bytes of a message of no more than CopyPlan::most_calls runs.
std::int64_t expected_runs(const Shape& shape, const datatype::Layout& layout, std::int64_t bytes) {
  const double part = static_cast<double>(bytes) / static_cast<double>(shape.total);
  return std::max(static_cast<std::int64_t>(static_cast<double>(layout.runs() * shape.count) * part), std::int64_t{1});
}

/// A range of an irregular message: a box for each run.
CopyPlan run_boxes(const Shape& shape, const datatype::Layout& layout, bool unpack, void* user, void* packed,
                   std::int64_t begin, std::int64_t end) {
  CopyPlan copy_plan;
  copy_plan.reserve(expected_runs(shape, layout, end - begin));
  datatype::for_each_run(layout, begin, end, [&](std::int64_t offset, std::int64_t position, std::int64_t bytes) {
    copy_plan.add(box(unpack, at(user, offset), {1, bytes}, bytes, at(packed, position), bytes, 1, 1));
  });
  return copy_plan;
}

/// All of a message of two or more nested strides: the innermost ones, as far as one call goes, again and again.
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

/// The two may lie in different allocations.
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

/// Adds `row` and one of the last few of `alone`, which it takes out, as one box. False if none suits.
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
  if (row.width % 2 != 0) copy_plan.add(halves_from(1));  // all but two bytes once more, which does no harm
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

namespace {

const Cost& kernel_cost(const CostModel& model, const TransferContext& context) {
  return context.peer              ? model.kernel_to_peer
         : !context.packed_is_host ? model.kernel_on_device
         : context.unpack          ? model.kernel_unpack_from_host
                                   : model.kernel_pack_to_host;
}

/// `together`: the rows are runs that go by one call.
const Cost& copy_cost(const CostModel& model, std::int64_t rows, bool together, const TransferContext& context) {
  return context.peer              ? model.copy_to_peer
         : !context.packed_is_host ? model.copy_on_device
         : !context.unpack         ? model.copy_pack_to_host
         : together                ? model.copy_runs_unpack_from_host
         : rows == 1               ? model.copy_unpack_from_host
                                   : model.copy_rows_unpack_from_host;
}

/// What the copies beyond the first take, besides their rows.
double calls_us(const CostModel& model, std::int64_t calls, bool together, const TransferContext& context) {
  const double further_us = !together ? model.per_call_us : context.unpack ? 0 : model.per_run_us;
  return static_cast<double>(calls - 1) * further_us;
}

bool go_together(const CopyPlan& copy_plan, const TransferContext& context) {
  return context.runs_together && copy_plan.are_runs();
}

}  // namespace

double kernel_cost_us(const CostModel& model, std::int64_t bytes, const TransferContext& context) {
  return cost_us(kernel_cost(model, context), bytes, 0);
}

double batch_job_cost_us(const CostModel& model, std::int64_t bytes, const TransferContext& context) {
  return model.batch_job_us + moving_us(kernel_cost(model, context), bytes, 0);
}

double copy_cost_us(const CostModel& model, std::int64_t bytes, const CopyPlan& copy_plan,
                    const TransferContext& context) {
  const std::int64_t rows = copy_plan.rows();
  const bool together = go_together(copy_plan, context);
  return cost_us(copy_cost(model, rows, together, context), bytes, rows) +
         calls_us(model, copy_plan.calls(), together, context);
}

double span_copy_cost_us(const CostModel& model, const datatype::Span& span) {
  return cost_us(model.copy_pack_to_host, span.bytes(), 1);
}

double span_cost_us(const CostModel& model, const datatype::Span& span, const datatype::Layout& layout,
                    const Shape& shape) {
  return span_copy_cost_us(model, span) + cost_us(model.host_pack, shape.total, layout.runs() * shape.count);
}

double least_copy_cost_us(const CostModel& model, const Shape& shape, std::int64_t bytes, std::int64_t calls,
                          const TransferContext& context) {
  const std::int64_t whole_rows = shape.kind == ShapeKind::strided ? bytes / shape.run : 1;
  const std::int64_t rows = std::max(calls, whole_rows);
  const bool in_pairs = context.unpack && context.packed_is_host && rows == calls;  // in_two_rows()
  const auto least_us = [&](std::int64_t most, bool together) {
    return cost_us(copy_cost(model, most, together, context), bytes, rows) +
           calls_us(model, in_pairs && !together ? (calls + 1) / 2 : calls, together, context);
  };
  const double alone_us = rows > 1 ? least_us(rows, false) : std::min(least_us(1, false), least_us(2, false));
  return context.runs_together && is_irregular(shape) ? std::min(alone_us, least_us(rows, true)) : alone_us;
}

double extra_copy_cost_us(const CostModel& model, std::int64_t bytes, const CopyPlan& copy_plan,
                          const TransferContext& context) {
  if (context.peer) return copy_cost_us(model, bytes, copy_plan, context);
  const std::int64_t rows = copy_plan.rows();
  const bool together = go_together(copy_plan, context);
  return model.extra_copy_us + calls_us(model, copy_plan.calls(), together, context) +
         moving_us(copy_cost(model, rows, together, context), bytes, rows);
}

bool copy_is_better(const Estimate& copy, const Estimate& kernel, const Lateness& lateness) {
  const double copy_us = copy.us + copy.late_us, kernel_us = kernel.us + kernel.late_us;
  const bool both_late = copy.late_us != 0 && kernel.late_us != 0;
  const bool alike = std::max(copy_us, kernel_us) < lateness.alike * std::min(copy_us, kernel_us);
  return both_late && alike ? copy.late_seen < kernel.late_seen : copy_us < kernel_us;
}

namespace {

/// Bytes of memory that are read to pack it: whole sectors.
std::int64_t bytes_read(const Shape& shape, const datatype::Layout& layout, std::int64_t count) {
  if (shape.kind == ShapeKind::contiguous) return shape.total;
  const std::int64_t sectors =
      shape.kind == ShapeKind::general ? layout.runs() * count : sectors_of(shape, layout.span(count));
  return std::max(shape.total, sectors * sector_bytes);
}

}  // namespace

double packing_cost_us(const CostModel& model, const datatype::Layout& layout, std::int64_t count) {
  return cost_us(model.kernel_on_device, bytes_read(layout.shape(count), layout, count), 0);
}

bool better_packed_for_peers(const CostModel& model, const Shape& shape, const datatype::Span& span) {
  if (shape.kind != ShapeKind::strided && shape.kind != ShapeKind::list) return false;
  const Cost& fetch = model.kernel_to_peer;
  const double packed_us = cost_us(model.kernel_on_device, shape.total, 0) + cost_us(fetch, shape.total, 0);
  return packed_us * model.packing_gain < cost_us(fetch, shape.total, sectors_of(shape, span));
}

}  // namespace gpudt::device
