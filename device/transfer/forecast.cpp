// What the cost model expects of the ways to move a message, and which one is taken.
#include <cstdio>
#include <string>
#include <tuple>
#include <utility>

#include "device/transfer/engine.hpp"
#include "device/transfer/start.hpp"

namespace gpudt::device {
namespace {

/// While more bytes of staging memory are in use, no whole spans are copied to the host (consider_span()).
constexpr std::size_t most_staging_beside_spans = std::size_t{32} << 20;

/// The most runs of an irregular message that the copy engine moves run by run. A message of more may be copied to the
/// host with its gaps (consider_span()); from the host, more take too long one by one.
std::int64_t most_runs(const TransferContext& context) {
  return context.unpack && context.runs_together ? CopyPlan::most_calls : CopyPlan::most_together;
}

/// The layout, or null where copies run by run are slower than kernels.
const datatype::Layout* layout_of_runs(const Packing& packing, const TransferContext& context) {
  return context.packed_is_host ? packing.layout : nullptr;
}

}  // namespace

/// The copies by which the copy engine would move the message: of an irregular one a box for each run.
CopyPlan Engine::divided(const Packing& packing, const TransferContext& context) {
  return copy_plan_of(packing.shape, context.unpack, packing.user, packing.packed, packing.begin, packing.end,
                      layout_of_runs(packing, context), most_runs(context));
}

/// On a GPU that other processes use, too, runs from the host are not copied together: short ones would wait for a time
/// slice.
TransferContext Engine::transfer_context(const Gpu& gpu, const Packing& packing) const {
  const bool unpack = packing.direction == Direction::unpack;
  const bool from_host_together = runtime_->copies_runs_together() && !is_shared(gpu.ordinal);
  return {.unpack = unpack,
          .packed_is_host = is_host(packing.packed_kind),
          .peer = packing.peer,
          .runs_together = packing.packed_kind == MemoryKind::pinned && (!unpack || from_host_together)};
}

Forecast Engine::foresee(const Gpu& gpu, const Channel& channel, const Packing& packing, bool spans) const {
  const TransferContext context = transfer_context(gpu, packing);
  const bool unpack = context.unpack;
  CopyPlan copy_plan;
  if (!kernels_reach(packing) ||
      !surely_a_kernel(gpu, channel, packing.shape, packing.bytes(), context, layout_of_runs(packing, context)))
    copy_plan = divided(packing, context);
  if (unpack && context.packed_is_host && copy_plan.are_runs())
    return forecast_of_runs(gpu, channel, packing.bytes(), context, std::move(copy_plan));
  Forecast forecast = forecast_of(gpu, channel, packing.bytes(), context, std::move(copy_plan));
  if (spans && !unpack && context.packed_is_host) consider_span(gpu, channel, packing, context, forecast);
  return forecast;
}

/// For runs from the host: copied together, or in pairs (in_two_rows()), which the copy engine executes.
Forecast Engine::forecast_of_runs(const Gpu& gpu, const Channel& channel, std::int64_t bytes,
                                  const TransferContext& context, CopyPlan runs) {
  TransferContext alone = context;
  alone.runs_together = false;
  const double row_bytes = gpu.tuning.model.engine_row_bytes;
  const auto one_by_one_of = [&]() REQUIRES(channel.queue_mutex) {
    Forecast forecast = forecast_of(gpu, channel, bytes, alone, in_two_rows(runs, row_bytes));
    forecast.in_pairs = forecast.copy_plan.calls() < runs.calls();
    return forecast;
  };
  if (!context.runs_together) return one_by_one_of();
  // More runs are faster together unless these have a start delay, and to list the pairs takes a while.
  if (runs.calls() > CopyPlan::most_together && channel.short_runs.expected_us() == 0)
    return forecast_of(gpu, channel, bytes, context, std::move(runs));
  Forecast one_by_one = one_by_one_of();
  Forecast together = forecast_of(gpu, channel, bytes, context, std::move(runs));
  const bool sooner = together.copy_us + together.copy_late_us < one_by_one.copy_us + one_by_one.copy_late_us;
  return std::move(sooner ? together : one_by_one);
}

/// Considers copying a whole message to the host with the gaps between its runs, for the host to pack it.
void Engine::consider_span(const Gpu& gpu, const Channel& channel, const Packing& packing,
                           const TransferContext& context, Forecast& forecast) const {
  if (packing.layout == nullptr || packing.begin != 0 || packing.end != packing.shape.total) return;
  const datatype::Span span = span_to_bring(*packing.layout, packing.shape);
  if (span.bytes() == 0) return;
  const CostModel& model = gpu.tuning.model;
  forecast.span_us = span_cost_us(model, span, *packing.layout, packing.shape);
  if (!forecast.copy_plan.empty() && forecast.copy_us <= forecast.span_us) return;
  const std::tuple without = {forecast.copy_us, forecast.extra_copy_us, forecast.copy_better};
  forecast.span = span;
  forecast.copy_us = forecast.span_us;
  forecast.extra_copy_us = forecast.span_us - model.copy_pack_to_host.base_us + model.extra_copy_us;
  compare(gpu, channel, context, forecast);
  if (prefers_copy(forecast) && may_bring(packing, span)) return;
  forecast.span = {};
  std::tie(forecast.copy_us, forecast.extra_copy_us, forecast.copy_better) = without;
}

/// Whether a span may be copied: not if staging memory is scarce, nor if members of a struct were allocated separately.
bool Engine::may_bring(const Packing& packing, const datatype::Span& span) const {
  if (staging_limited_ || staging_->statistics(StagingKind::mapped).in_use > most_staging_beside_spans) return false;
  return in_one_allocation(packing, span);
}

/// If false, the driver may refuse to copy the gaps, or rows of several allocations. Costs one query of the driver.
bool Engine::in_one_allocation(const Packing& packing, const datatype::Span& span) const {
  const std::uintptr_t first = first_of(span, packing.user);
  Allocation allocation;
  return runtime_->allocation_of(reinterpret_cast<const void*>(first), allocation) && first >= allocation.base &&
         first + static_cast<std::uint64_t>(span.bytes()) <= allocation.base + allocation.size;
}

TransferContext Engine::transfer_context(const Gpu&, const LayoutTransfer&) const {
  return {.unpack = true, .packed_is_host = false, .peer = true};
}

Forecast Engine::foresee(const Gpu& gpu, const Channel& channel, const LayoutTransfer& layouts) const {
  const TransferContext context = transfer_context(gpu, layouts);
  CopyPlan copy_plan;
  if (!surely_a_kernel(gpu, channel, layouts.to_shape, layouts.bytes(), context))
    copy_plan = copy_plan_between(
        copy_plan_of(layouts.from_shape, /*unpack=*/false, layouts.from.user, nullptr, 0, layouts.bytes()),
        copy_plan_of(layouts.to_shape, /*unpack=*/true, layouts.to.user, nullptr, 0, layouts.bytes()));
  return forecast_of(gpu, channel, layouts.bytes(), context, std::move(copy_plan));
}

/// That of the plan's work. It is kept if start delays, and staging memory in use, have no part in it.
const Forecast& Engine::foresee(const Gpu& gpu, const Channel& channel, PlannedTransfer& plan) const {
  const auto* const packing = std::get_if<Packing>(&plan.work);
  const bool lasts = channel.kernels.expected_us() == 0 && (packing == nullptr || !is_host(packing->packed_kind));
  if (lasts && plan.forecast_lasts) return *plan.forecast;
  plan.forecast = std::visit(
      [&](const auto& it) {
        channel.queue_mutex.assert_held();
        return std::make_unique<const Forecast>(foresee(gpu, channel, it));
      },
      plan.work);
  plan.forecast_lasts = lasts;
  return *plan.forecast;
}

/// Whether a message is certainly faster by a kernel, alone or with others, than by calls of the copy engine. This
/// saves dividing it into such calls, which takes a fortieth of the time of short messages, and more with many runs.
/// (It does not consider that a further copy costs less than the first, extra_copy_us.)
bool Engine::surely_a_kernel(const Gpu& gpu, const Channel& channel, const datatype::Shape& shape, std::int64_t bytes,
                             const TransferContext& context, const datatype::Layout* layout) const {
  if (way_ != Way::automatic || trace_) return way_ == Way::kernel && !trace_;
  const CostModel& model = gpu.tuning.model;
  const std::int64_t calls = least_calls(shape, bytes, layout, most_runs(context));
  return calls == 0 || least_copy_cost_us(model, shape, bytes, calls, context) >
                           kernel_cost_us(model, bytes, context) + channel.kernels.expected_us();
}

Forecast Engine::forecast_of(const Gpu& gpu, const Channel& channel, std::int64_t bytes, const TransferContext& context,
                             CopyPlan given) {
  const CostModel& model = gpu.tuning.model;
  Forecast forecast = {std::move(given), {}, kernel_cost_us(model, bytes, context), channel.kernels.expected_us()};
  const CopyPlan& copy_plan = forecast.copy_plan;
  forecast.job_us = batch_job_cost_us(model, bytes, context);
  if (copy_plan.empty()) return forecast;
  forecast.copy_us = copy_cost_us(model, bytes, copy_plan, context);
  forecast.extra_copy_us = extra_copy_cost_us(model, bytes, copy_plan, context);
  forecast.together = context.runs_together && copy_plan.are_runs();
  forecast.short_runs = forecast.together && context.unpack && has_short_row(copy_plan, model.engine_row_bytes);
  compare(gpu, channel, context, forecast);
  return forecast;
}

/// Sets copy_late_us and copy_better, by the estimates and the start delays seen.
void Engine::compare(const Gpu& gpu, const Channel& channel, const TransferContext& context, Forecast& forecast) {
  const Delay& copies = forecast.short_runs ? channel.short_runs : channel.copies;
  if (context.packed_is_host) forecast.copy_late_us = copies.expected_us();
  Estimate copy = {forecast.copy_us, forecast.copy_late_us, copies.seen()};
  // Short runs wait for time slices as kernels do, so that trying the two in turn would show nothing.
  if (forecast.short_runs) copy = {copy.us + copy.late_us, 0};
  forecast.copy_better = copy_is_better(copy, {forecast.kernel_us, forecast.kernel_late_us, channel.kernels.seen()},
                                        gpu.tuning.model.lateness);
}

bool Engine::prefers_copy(const Forecast& forecast) const {
  if (!forecast.can_copy()) return false;
  if (way_ != Way::automatic) return way_ == Way::copy;
  return forecast.copy_better;
}

namespace {

const char* name_of(const Packing& packing) {
  return packing.direction == Direction::pack ? "pack" : "unpack";
}
const char* name_of(const LayoutTransfer&) {
  return "transfer from layout to layout";
}

std::int64_t calls_of(const CopyPlan& copy_plan, bool together) {
  return together ? (copy_plan.calls() + CopyPlan::most_together - 1) / CopyPlan::most_together : copy_plan.calls();
}

}  // namespace

void Engine::trace(const Gpu& gpu, const Work& work, const Forecast& forecast, const std::string& mover) const {
  const auto microseconds = [](double us) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f us", us);
    return std::string(text);
  };
  std::visit(
      [&](const auto& it) {
        std::string text = name_of(it);
        text += " of " + std::to_string(it.bytes()) + " B on GPU " + std::to_string(gpu.ordinal) + " by " + mover +
                "; expected: kernel " +
                (kernels_reach(it) ? microseconds(forecast.kernel_us) : "impossible (pageable memory)");
        if (forecast.kernel_late_us != 0) text += " + " + microseconds(forecast.kernel_late_us) + " late";
        text += ", copy engine ";
        if (forecast.span.bytes() != 0)
          text += microseconds(forecast.copy_us) + " (a span of " + std::to_string(forecast.span.bytes()) +
                  " B, which the host packs)";
        else if (forecast.copy_plan.empty())
          text += forecast.span_us == 0 ? "impossible" : microseconds(forecast.span_us) + " by a span";
        else
          text += microseconds(forecast.copy_us) + " (" + std::to_string(forecast.copy_plan.rows()) + " rows, " +
                  std::to_string(calls_of(forecast.copy_plan, forecast.together)) + " calls)";
        if (forecast.copy_late_us != 0) text += " + " + microseconds(forecast.copy_late_us) + " late";
        if (way_ != Way::automatic) text += ", GPUDT_WAY";
        trace_(text);
      },
      work);
}

double expected_packing_us(int ordinal, const datatype::Layout& layout, std::int64_t count) {
  return packing_cost_us(current_engine().gpu(ordinal).tuning.model, layout, count);
}

bool better_fetched_packed(int ordinal, const datatype::Layout& layout, std::int64_t count) {
  return better_packed_for_peers(current_engine().gpu(ordinal).tuning.model, layout.shape(count), layout.span(count));
}

}  // namespace gpudt::device
