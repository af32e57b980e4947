// Launches a transfer that is not part of a batch: by a kernel or by the copy engine.
#include <algorithm>
#include <string>

#include "device/transfer/engine.hpp"
#include "device/transfer/points.hpp"
#include "device/transfer/upload.hpp"

namespace gpudt::device {
namespace {

/// Bytes. How long a kernel takes for a longer message depends also on the length of its runs: a run shorter than a
/// sector of memory (sector_bytes) takes as long as a whole sector.
constexpr std::int64_t sized_bytes = 1 << 20;
/// Bytes. From this length on, runs shorter than a sector in another GPU's memory have such an effect, too: if their
/// pages have not been accessed for a while, a message of 1 MiB takes 200 us instead of 30.
constexpr std::int64_t far_apart_bytes = 128 << 10;
/// Bytes. If runs have at least this length, a kernel that reads or writes packed host memory takes as long as the link
/// to the host takes for all bytes, whatever the number of runs.
constexpr std::int64_t least_linked_run = 4;
/// Microseconds. If kernels are expected to start late, and copies to take this much longer than a kernel that starts
/// in time, a probe kernel is launched: it soon shows when kernels start in time again.
constexpr double worth_a_probe_us = 30;

/// A kernel between two layouts in one GPU's memory, launched by itself while other GPUs' data arrive, gets blocks for
/// one in this many multiprocessors: the transfers from other GPUs take several times as long and need the rest.
constexpr int part_for_own = 4;

int multiprocessors_for(const LayoutTransfer& layouts, const Gpu& gpu) {
  return layouts.within ? std::max(gpu.traits.multiprocessors / part_for_own, 1) : gpu.traits.multiprocessors;
}

/// Bytes per run, of an irregular list the average; 0 if it is not known (ShapeKind::general).
std::int64_t run_of(const datatype::Shape& shape) {
  return shape.kind == datatype::ShapeKind::general ? 0 : typical_run(shape);
}

/// What to learn from a kernel's duration. `us`: the estimate by its size alone, in microseconds. `run`: of run_of().
Lesson lesson_of(Delay& kernels, std::int64_t bytes, double us, std::int64_t run, const TransferContext& context) {
  const bool linked = context.packed_is_host && run >= least_linked_run;
  const bool far_apart = context.peer && run > 0 && run < sector_bytes && bytes >= far_apart_bytes;
  if (linked || (bytes <= sized_bytes && !far_apart)) return {&kernels, us};
  if (run == 0) return {};
  const auto sectors = std::max(static_cast<double>(sector_bytes) / static_cast<double>(run), 1.0);
  return {&kernels, us * sectors, /*roughly=*/true};
}

}  // namespace

/// False if nothing has been started: the runtime has refused a copy, or there is no staging memory for the span and a
/// kernel is better than copies without it. The caller then launches a kernel, or throws if kernels cannot do it.
bool Engine::start_copy_engine(Gpu& gpu, Channel& channel, const Packing& packing, const Forecast& forecast,
                               Transfer::State& state) {
  if (forecast.span.bytes() != 0) {
    if (start_span(gpu, channel, packing, forecast.span, state)) return true;
    const Forecast without = foresee(gpu, channel, packing, /*spans=*/false);
    const bool copy = kernels_reach(packing) ? prefers_copy(without) : without.can_copy();
    return copy && start_copy_engine(gpu, channel, packing, without, state);
  }
  const auto bytes = static_cast<double>(packing.bytes());
  const CostModel& model = gpu.tuning.model;
  if (forecast.in_pairs && !in_one_allocation(packing, packing.layout->span(packing.shape.count))) {
    Forecast alone = forecast;
    alone.in_pairs = false;
    alone.copy_plan =
        in_two_rows(divided(packing, transfer_context(gpu, packing)), model.engine_row_bytes, /*in_pairs=*/false);
    return start_copy_engine(gpu, channel, packing, alone, state);
  }
  const CopyPlan& copy_plan = forecast.copy_plan;
  const bool host = is_host(packing.packed_kind);
  const bool unpack = packing.direction == Direction::unpack;
  const bool one_row = unpack && host && copy_plan.rows() == 1 && bytes < model.engine_row_bytes;
  if (one_row && bytes < model.engine_quicker_bytes && forecast.kernel_late_us == 0)
    return channel.start_copies(state, copy_plan, {&channel.kernels, forecast.copy_us});
  if (forecast.together)
    return channel.start_runs(state, copy_plan,
                              {forecast.short_runs ? &channel.short_runs : &channel.copies, forecast.copy_us});
  if (packing.peer) return channel.start_peer_copies(state, copy_plan);
  // If the copy engine moves some rows and multiprocessors the others, the time does not show which start late.
  const bool mixed = unpack && copy_plan.calls() > 1 && has_short_row(copy_plan, model.engine_row_bytes);
  Delay* const learner = host && !mixed ? &channel.copies : nullptr;
  return channel.start_copies(state, one_row ? in_two_rows(copy_plan, model.engine_row_bytes) : copy_plan,
                              {learner, forecast.copy_us});
}

/// Copies the span to the host, which packs it later. False if there is no staging memory or the runtime refuses.
bool Engine::start_span(Gpu& gpu, Channel& channel, const Packing& packing, const datatype::Span& span,
                        Transfer::State& state) {
  void* const first = reinterpret_cast<void*>(first_of(span, packing.user));
  const auto bytes = static_cast<std::size_t>(span.bytes());
  Staging memory = staging_->try_acquire(StagingKind::mapped, gpu.ordinal, bytes);
  if (!memory) return false;
  CopyPlan row;
  row.add({{memory.data(), bytes, bytes}, {first, bytes, bytes}, bytes});
  if (!channel.start_copies(state, row, {&channel.copies, span_copy_cost_us(gpu.tuning.model, span)})) return false;
  state.copied_span = {std::move(memory), packing.layout, packing.bytes(), span.begin, packing.packed};
  return true;
}

bool Engine::start_copy_engine(Gpu&, Channel& channel, const LayoutTransfer&, const Forecast& forecast,
                               Transfer::State& state) {
  return channel.start_peer_copies(state, forecast.copy_plan);
}

void Engine::start_kernel(Gpu& gpu, Channel& channel, const Packing& packing, const Forecast& forecast,
                          Transfer::State& state) {
  const PlanHints hints = {gpu.traits.multiprocessors, is_host(packing.packed_kind),
                           packing.layout ? packing.layout->program().lookaside : nullptr, packing.peer, &gpu.policy};
  KernelArgs args = plan(packing.shape, packing.direction == Direction::unpack, packing.user, packing.packed,
                         packing.begin, packing.end, hints);
  const datatype::ShapeKind kind = packing.shape.kind;
  Lesson lesson = lesson_of(channel.kernels, packing.bytes(), forecast.kernel_us, run_of(packing.shape),
                            {.packed_is_host = is_host(packing.packed_kind), .peer = packing.peer});
  if (kind == datatype::ShapeKind::list || kind == datatype::ShapeKind::general) {
    Upload& upload = Upload::of(*packing.layout, gpu.ordinal);
    args.program = upload.program(*this, channel, *packing.layout);
    if (!upload.there()) lesson = {};  // the kernel waits for it
  }
  if (kind == datatype::ShapeKind::general) {
    args.nodes = packing.layout->program().nodes;
    args.node_count =
        reinterpret_cast<const datatype::SerialisedHeader*>(packing.layout->serialised().data())->node_count;
  }
  channel.start_kernel(state, args, lesson);
}

void Engine::start_kernel(Gpu& gpu, Channel& channel, const LayoutTransfer& layouts, const Forecast& forecast,
                          Transfer::State& state) {
  const auto upload = [&](const Side& side, const datatype::Shape& shape, datatype::Program& program) -> Upload* {
    if (shape.kind == datatype::ShapeKind::strided) return nullptr;
    Upload& its = Upload::of(*side.layout, gpu.ordinal);
    program = its.program(*this, channel, *side.layout);
    return &its;
  };
  datatype::Program from_program, to_program;
  Upload* const from_upload = upload(layouts.from, layouts.from_shape, from_program);
  Upload* const to_upload = upload(layouts.to, layouts.to_shape, to_program);
  const bool alike = alike_forms(layouts.from_shape, layouts.to_shape) &&
                     (!from_upload || from_upload->same_program(*layouts.from.layout, *to_upload, *layouts.to.layout));
  TransferArgs args = plan_transfer(
      {layouts.from_shape, layouts.from.user}, {layouts.to_shape, layouts.to.user}, alike, layouts.bytes(),
      {.multiprocessors = multiprocessors_for(layouts, gpu), .packed_is_peer = true, .policy = &gpu.policy});
  args.from.program = from_program;
  args.to.program = to_program;
  const bool waits = (from_upload && !from_upload->there()) || (to_upload && !to_upload->there());
  const Lesson lesson = lesson_of(channel.kernels, layouts.bytes(), forecast.kernel_us,
                                  std::min(run_of(layouts.from_shape), run_of(layouts.to_shape)), {.peer = true});
  channel.start_kernel(state, args, waits ? Lesson() : lesson);
}

/// Whether a probe kernel is worth its launch while copies move a message. Not if another process has just used the GPU
/// and launches the kernels for both (Delay::yields()).
bool Engine::worth_a_probe(const Channel& channel, const Forecast& forecast) const {
  return way_ == Way::automatic && forecast.kernel_late_us != 0 && !channel.kernels.yields() &&
         forecast.copy_us - forecast.kernel_us > worth_a_probe_us;
}

/// Starts a transfer that is not part of a batch. `decided`: kernel or copy engine; automatic: the estimates decide.
/// Throws Error, also if kernels cannot reach the memory and copies cannot move the message.
void Engine::launch(Gpu& gpu, Channel& channel, PlannedTransfer& plan, Transfer::State& state, Way decided) {
  channel.check_context();
  const Forecast& forecast = foresee(gpu, channel, plan);
  const bool unreachable = !std::visit([](const auto& it) { return kernels_reach(it); }, plan.work);
  const bool preferred = decided == Way::automatic ? prefers_copy(forecast) : decided == Way::copy;
  const bool copy = forecast.can_copy() && (unreachable || preferred);
  mark(point::way_chosen);
  if (copy && !unreachable && worth_a_probe(channel, forecast))
    channel.probe(gpu.tuning.model.kernel_pack_to_host.base_us);
  if (copy && try_copy(gpu, channel, plan.work, forecast, state)) return;
  if (unreachable)
    throw Error(Failure::runtime, "GPU " + std::to_string(gpu.ordinal) + ": its copy engine refuses to move " +
                                      std::to_string(plan.bytes()) +
                                      " bytes to or from memory that kernels cannot reach");
  std::visit(
      [&](const auto& it) {
        channel.queue_mutex.assert_held();
        start_kernel(gpu, channel, it, forecast, state);
      },
      plan.work);
  kernels_.fetch_add(1, std::memory_order_relaxed);
  if (trace_) trace(gpu, plan.work, forecast, "a kernel");
}

/// start_copy_engine(), counted and traced if it returns true.
bool Engine::try_copy(Gpu& gpu, Channel& channel, const Work& work, const Forecast& forecast, Transfer::State& state) {
  return std::visit(
      [&](const auto& it) {
        channel.queue_mutex.assert_held();
        if (!start_copy_engine(gpu, channel, it, forecast, state)) return false;
        copies_.fetch_add(1, std::memory_order_relaxed);
        if (trace_) trace(gpu, work, forecast, "the copy engine");
        return true;
      },
      work);
}

}  // namespace gpudt::device
