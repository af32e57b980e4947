#include "device/choice/chooser.hpp"

#include <algorithm>
#include <cstdlib>

namespace gpudt::device {
namespace {

using datatype::Shape;
using datatype::ShapeKind;

double moving_us(const Cost& cost, std::int64_t bytes, std::int64_t rows) {
  return std::max(static_cast<double>(rows) * cost.row_ns * 1e-3, static_cast<double>(bytes) / cost.bytes_per_us);
}

double cost_us(const Cost& cost, std::int64_t bytes, std::int64_t rows) {
  return cost.base_us + moving_us(cost, bytes, rows);
}

/// An estimate of the sectors of memory that hold bytes of a strided message or of a list. The runs of a list may begin
/// anywhere that its alignment permits; in a dense list runs share sectors.
std::int64_t sectors_of(const Shape& shape, const datatype::Span& span) {
  if (shape.kind == ShapeKind::list) {
    const std::int64_t runs = shape.total / shape.list_size * shape.list_count;
    return std::min(shape.total + runs * (sector_bytes - shape.align), span.bytes()) / sector_bytes;
  }
  const std::int64_t apart = std::abs(shape.dims[shape.ndims - 1].stride);
  const std::int64_t whole = (shape.run + sector_bytes - 1) / sector_bytes * sector_bytes;
  return shape.total / shape.run * std::min(whole, std::max(apart, shape.run)) / sector_bytes;
}

const Cost& kernel_cost(const CostModel& model, const TransferContext& context) {
  return context.peer              ? model.kernel_to_peer
         : !context.packed_is_host ? model.kernel_on_device
         : context.unpack          ? model.kernel_unpack_from_host
                                   : model.kernel_pack_to_host;
}

/// `together`: the rows are runs that one call moves.
const Cost& copy_cost(const CostModel& model, std::int64_t rows, bool together, const TransferContext& context) {
  return context.peer              ? model.copy_to_peer
         : !context.packed_is_host ? model.copy_on_device
         : !context.unpack         ? model.copy_pack_to_host
         : together                ? model.copy_runs_unpack_from_host
         : rows == 1               ? model.copy_unpack_from_host
                                   : model.copy_rows_unpack_from_host;
}

/// Microseconds that the calls after the first take, without the time for their rows.
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

/// Bytes of memory that are read to pack a message: whole sectors.
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
