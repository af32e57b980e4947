// The queue of a channel: several transfers are launched together, by one kernel, where that is cheaper.
//
// A transfer that finds its channel idle is launched at once. While the channel works, further short transfers wait in
// the queue: the first poll of one of them launches them all, unless two launches are under way (Channel::crowded()).
// Within a Gathering they always wait. So a transfer waits at most until it is polled or waited for.
#include "device/kernels/batch_body.hpp"

#include <algorithm>
#include <array>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

#include "base/recycled.hpp"
#include "device/transfer/engine.hpp"
#include "device/transfer/points.hpp"
#include "device/transfer/prepared.hpp"
#include "device/transfer/resident.hpp"
#include "device/transfer/start.hpp"
#include "device/transfer/upload.hpp"

namespace gpudt::device {
namespace {

/// Longer transfers are launched even while the channel works: they can move while the program computes.
constexpr std::int64_t most_held_bytes = Gathering::short_bytes;
/// Between GPUs longer transfers also take only microseconds: each kernel moves several messages of a stream.
constexpr std::int64_t most_held_peer_bytes = Gathering::long_bytes;
/// The longest time for which queued transfers wait for those under way, which never end on a GPU that has failed.
constexpr auto longest_hold = std::chrono::microseconds(100);
/// Polls between two reads of the clock.
constexpr std::uint32_t polls_per_look = 64;

bool is_batchable(const Gpu& gpu, const Packing& packing) {
  return kernels_reach(packing) && suits_batch(packing.shape, packing.begin, packing.end, gpu.policy);
}
bool is_batchable(const Gpu& gpu, const LayoutTransfer& layouts) {
  return suits_batch(layouts.from_shape, 0, layouts.bytes(), gpu.policy) &&
         suits_batch(layouts.to_shape, 0, layouts.bytes(), gpu.policy);
}

/// Calls act(from, to) with the sides of the work. A packed side is given by the address at which its position 0 would
/// lie.
template <class Act>
auto with_sides(const Packing& packing, const Act& act) {
  datatype::Shape stream;
  stream.kind = datatype::ShapeKind::contiguous;
  stream.total = stream.run = packing.end;
  const auto position_0 = reinterpret_cast<std::uintptr_t>(packing.packed) - static_cast<std::uintptr_t>(packing.begin);
  const PlanSide user = {packing.shape, packing.user}, packed = {stream, reinterpret_cast<void*>(position_0)};
  return packing.direction == Direction::pack ? act(user, packed) : act(packed, user);
}
template <class Act>
auto with_sides(const LayoutTransfer& layouts, const Act& act) {
  return act(PlanSide{layouts.from_shape, layouts.from.user}, PlanSide{layouts.to_shape, layouts.to.user});
}

/// Thread blocks of a persistent kernel for this work, which is_batchable(); 0 if it is too long for one.
template <class Moved>
int resident_blocks_of(const Gpu& gpu, const Moved& work) {
  if (work.bytes() > gpu.policy.persistent.most_bytes) return 0;
  return with_sides(work, [&](const PlanSide& from, const PlanSide& to) {
    return resident_blocks_for(from, to, work.bytes(), gpu.policy);
  });
}

bool is_peer(const Packing& packing) {
  return packing.peer;
}
bool is_peer(const LayoutTransfer&) {
  return true;
}

bool is_from_peer(const PlannedTransfer& plan) {
  return std::visit([](const auto& it) { return is_peer(it); }, plan.work);
}

/// Whether it may wait in the queue, to be launched with others.
bool may_wait(const PlannedTransfer& plan, const Channel& channel) REQUIRES(channel.queue_mutex) {
  if (!plan.batchable || (Gathering::longest() == 0 && channel.idle())) return false;
  const std::int64_t held = is_from_peer(plan) ? most_held_peer_bytes : most_held_bytes;
  return plan.bytes() <= std::max(held, Gathering::longest());
}

}  // namespace

constinit thread_local std::int64_t Gathering::gathered_bytes = 0;

void Gathering::launch() noexcept {
  if (Engine* const engine = process_engine.load(std::memory_order_acquire)) engine->launch_queued();
}

bool Channel::launch_queued() noexcept {
  const LockGuard lock(queue_mutex);
  if (held.empty() && may_hold() && crowded()) return true;
  engine_->launch_queued(*this);
  return !held.empty();
}

bool Channel::crowded() {
  if (latest_.ended() || one_before_.ended()) return false;
  if (crowded_polls_++ % polls_per_look == 0) {
    crowded_polls_ = 1;
    if (std::chrono::steady_clock::now() - latest_began_ >= longest_hold) crowded_polls_ = 0;
  }
  return crowded_polls_ != 0;
}

/// Whether queued transfers may wait for more: only those from peers, since packed data are waited for to be sent.
bool Channel::may_hold() const {
  return !queue.empty() && queue.size() < batch_jobs && is_from_peer(*queue.front().plan);
}

void Channel::launch_all_queued() noexcept {
  const LockGuard lock(queue_mutex);
  engine_->launch_queued(*this);
}

void Engine::launch_queued() noexcept {
  if (!any_queued_.load(std::memory_order_acquire)) return;
  any_queued_.store(false, std::memory_order_release);
  for (const std::atomic<Gpu*>& slot : gpus_)
    if (const Gpu* gpu = slot.load(std::memory_order_acquire))
      for (const auto& channel : gpu->channels)
        if (channel->launch_queued()) any_queued_.store(true, std::memory_order_release);
}

PlannedRef Engine::plan_for(const Gpu& gpu, const Work& work) {
  const bool batchable = std::visit([&](const auto& it) { return is_batchable(gpu, it); }, work);
  int blocks = 0;
  if (batchable && gpu.resident) blocks = std::visit([&](const auto& it) { return resident_blocks_of(gpu, it); }, work);
  return make_recycled<PlannedTransfer>(work, batchable, blocks);
}

Transfer Engine::begin(Gpu& gpu, Channel& channel, const PlannedRef& plan, const StreamMark& after) {
  mark(point::described);
  StateOwner state = channel.take();
  const bool reached = after.reached();
  const LockGuard lock(channel.queue_mutex);
  if (!reached) {
    channel.held.push_back({plan, state.get(), after});
    state->finished = false;
    state->queued.store(true, std::memory_order_release);
    any_queued_.store(true, std::memory_order_release);
    return Transfer(std::move(state));
  }
  const bool waits = batches_wanted_ && may_wait(*plan, channel);
  const bool residential = (Gathering::longest() == 0 || !waits) && plan->resident_blocks != 0;
  const bool handed = residential && Gathering::longest() == 0 && hand_over(gpu, channel, plan, *state);
  if (residential && (handed || !waits)) note_short(gpu);
  if (handed) return Transfer(std::move(state));
  if (waits) {
    if (channel.queue.capacity() == 0) channel.queue.reserve(batch_jobs);
    channel.queue.push_back({plan, state.get()});
    state->finished = false;
    state->queued.store(true, std::memory_order_release);
    any_queued_.store(true, std::memory_order_release);
    mark(point::queued);
    if (channel.queue.size() >= batch_jobs) launch_queued(channel);
  } else {
    if (!channel.queue.empty()) launch_queued(channel);
    launch(gpu, channel, *plan, *state);
  }
  return Transfer(std::move(state));
}

/// Held transfers whose marks are reached are launched together, like those of a Gathering, up to as many at a time as
/// one kernel takes.
void Engine::release_held(Gpu& gpu, Channel& channel) noexcept {
  std::erase_if(channel.held, [&](const Queued& job) REQUIRES(channel.queue_mutex) {
    try {
      if (channel.queue.size() == batch_jobs || !job.after.reached()) return false;
      if (batches_wanted_ && job.plan->batchable && job.plan->bytes() <= Gathering::long_bytes)
        channel.queue.push_back(job);
      else
        launch_alone(gpu, channel, job, Way::automatic);
    } catch (const std::exception& error) {
      job.state->fail(error);
      job.state->queued.store(false, std::memory_order_release);
    }
    return true;
  });
}

void Channel::drop_held(Transfer::State& state) noexcept {
  const LockGuard lock(queue_mutex);
  const auto dropped = std::erase_if(held, [&state](const Queued& job) { return job.state == &state; });
  if (dropped == 0) return;  // it has begun meanwhile
  state.finished = true;
  state.queued.store(false, std::memory_order_release);
}

/// Gives a residential transfer to the persistent kernel. False if there is none, or it has a job: then the transfer
/// must be launched.
bool Engine::hand_over(Gpu& gpu, Channel& channel, const PlannedRef& plan, Transfer::State& state) {
  if (!gpu.resident->ready() || resident_late(gpu)) return false;
  ResidentJob job(job_of(gpu, channel, *plan), plan->resident_blocks);
  if (!plan->job_is_final) return false;  // the job would not wait for the upload
  job.transfer.completion = completion_of(state);
  mark(point::way_chosen);
  if (!gpu.resident->hand_over(job, plan, state)) return false;
  // A long job takes longer while the other blocks have not begun.
  channel.handed_over(state, {&channel.kernels, gpu.tuning.model.resident_us, plan->resident_blocks > 1});
  mark(point::handed_over);
  kernels_.fetch_add(1, std::memory_order_relaxed);
  if (trace_) trace(gpu, channel, *plan, "the persistent kernel");
  return true;
}

void Engine::trace(const Gpu& gpu, const Channel& channel, PlannedTransfer& plan, const std::string& mover) const {
  trace(gpu, plan.work, foresee(gpu, channel, plan), mover);
}

/// Whether a message is certainly faster as one of `jobs` of a batch than by copies, since a copy adds at least
/// extra_copy_us. This saves dividing it into copies, which takes a third of the launch for short messages.
bool Engine::surely_beside_others(const Gpu& gpu, const Channel& channel, std::int64_t bytes,
                                  const TransferContext& context, std::size_t jobs) const {
  const CostModel& model = gpu.tuning.model;
  const double late_us = channel.kernels.expected_us() / static_cast<double>(jobs);
  return way_ == Way::automatic && batch_job_cost_us(model, bytes, context) + late_us <= model.extra_copy_us;
}

/// Whether a copy is better than being one of `jobs` of a batch, whose launch is paid for anyway, and which all wait
/// for its start delay.
bool Engine::prefers_copy_beside_others(const Forecast& forecast, std::size_t jobs) const {
  if (!forecast.can_copy() || way_ == Way::kernel) return false;
  if (way_ == Way::copy) return true;
  if (forecast.extra_copy_us >= forecast.job_us + forecast.kernel_late_us / static_cast<double>(jobs)) return false;
  return forecast.kernel_late_us + forecast.copy_late_us == 0 || forecast.copy_better;
}

namespace {

void fail_all(std::vector<Queued>& jobs, const std::exception& failure) noexcept {
  for (const Queued& job : jobs) {
    job.state->fail(failure);
    job.state->queued.store(false, std::memory_order_release);
  }
  jobs.clear();
}

}  // namespace

void Engine::launch_queued(Channel& channel) noexcept {
  std::vector<Queued>& queue = channel.queue;
  if (queue.empty() && channel.held.empty()) return;
  try {
    channel.check_context();
  } catch (const std::exception& ended) {
    fail_all(queue, ended);
    fail_all(channel.held, ended);
    return;
  }
  Gpu& here = *gpus_[channel.ordinal()].load(std::memory_order_acquire);
  if (!channel.held.empty()) release_held(here, channel);
  if (queue.empty()) return;
  const auto prefers_copy = [&](PlannedTransfer& plan) {
    channel.queue_mutex.assert_held();
    const auto context = std::visit([&](const auto& it) { return transfer_context(here, it); }, plan.work);
    if (surely_beside_others(here, channel, plan.bytes(), context, queue.size())) return false;
    try {
      return prefers_copy_beside_others(foresee(here, channel, plan), queue.size());
    } catch (const std::bad_alloc&) {  // for the copies
      return false;
    }
  };
  const bool alone = queue.size() == 1 && (channel.idle() || !is_from_peer(*queue.front().plan));
  // The jobs of the batch come first.
  const auto copies =
      alone ? queue.end()
            : std::partition(queue.begin(), queue.end(), [&](const Queued& job) { return !prefers_copy(*job.plan); });
  const auto batched = static_cast<std::size_t>(copies - queue.begin());
  if (batched > 1) {
    launch_batch(here, channel, std::span(queue).first(batched));
  } else if (batched == 1) {
    if (queue.front().plan->resident_blocks != 0) note_short(here);
    launch_alone(here, channel, queue.front(), alone ? Way::automatic : Way::kernel);
  }
  for (const Queued& job : std::span(queue).subspan(batched)) launch_alone(here, channel, job, Way::copy);
  queue.clear();
}

std::shared_ptr<PreparedTransfers> Engine::prepare(int ordinal, std::span<const SidePair> transfers) {
  if (!batches_wanted_ || way_ == Way::copy) return nullptr;
  Gpu& here = gpu(ordinal);
  Channel& channel = here.channel(Direction::unpack);
  const LockGuard lock(channel.queue_mutex);
  channel.check_context();
  auto prepared = std::make_shared<PreparedTransfers>(PreparedTransfers{ordinal, channel.generation()});
  for (const auto& [from, to] : transfers) {
    const datatype::Shape from_shape = from.layout->shape(from.count), to_shape = to.layout->shape(to.count);
    const LayoutTransfer work = {from, to, from_shape, to_shape, from_shape.total, /*within=*/false};
    if (work.bytes() > Gathering::long_bytes || work.bytes() != to_shape.total || !is_batchable(here, work))
      return nullptr;
    bool there = true;
    const TransferArgs args = job_of(here, channel, work, there);
    if (!there) return nullptr;
    std::vector<BatchArgs>& launches = prepared->launches;
    if (launches.empty() || launches.back().jobs == batch_jobs) launches.emplace_back();
    launches.back().add(BatchJob(args), args.to.grid, {});
  }
  return prepared;
}

bool Engine::start(PreparedTransfers& prepared, std::vector<Transfer>& started) {
  Gpu& here = gpu(prepared.ordinal);
  if (here.channel(Direction::unpack).generation() != prepared.generation) return false;
  for (BatchArgs& args : prepared.launches) {
    batches_.fetch_add(1, std::memory_order_relaxed);
    batched_.fetch_add(args.jobs, std::memory_order_relaxed);
    started.push_back(start_alone(here, [&]() -> BatchArgs& { return args; }));
  }
  return true;
}

std::shared_ptr<PreparedTransfers> prepare(int ordinal, std::span<const SidePair> transfers) {
  return current_engine().prepare(ordinal, transfers);
}

bool start(PreparedTransfers& prepared, std::vector<Transfer>& started) {
  return current_engine().start(prepared, started);
}

void Engine::launch_batch(Gpu& gpu, Channel& channel, std::span<const Queued> jobs) noexcept {
  BatchArgs batch;
  std::array<const Queued*, batch_jobs> added = {};
  for (const Queued& job : jobs) try {
      const BatchJob& planned = job_of(gpu, channel, *job.plan);  // what the stream uploads is there before it begins
      batch.add(planned, job.plan->blocks, completion_of(*job.state));
      added[static_cast<std::size_t>(batch.jobs - 1)] = &job;
    } catch (const std::exception& error) {
      job.state->fail(error);
    }
  const auto launched = std::span(added).first(static_cast<std::size_t>(batch.jobs));
  try {
    if (!launched.empty()) {
      mark(point::kernel_planned);
      runtime_->launch(gpu.ordinal, batch, channel.stream());
      mark(point::kernel_launched);
    }
    for (const Queued* const job : launched)
      job == launched.front() ? channel.launched(*job->state) : channel.launched_too(*job->state);
    batches_.fetch_add(1, std::memory_order_relaxed);
    batched_.fetch_add(batch.jobs, std::memory_order_relaxed);
    kernels_.fetch_add(batch.jobs, std::memory_order_relaxed);
    if (trace_)
      for (const Queued* const job : launched)
        trace(gpu, channel, *job->plan, "one kernel for " + std::to_string(batch.jobs));
  } catch (const std::exception& error) {
    for (const Queued* const job : launched) job->state->fail(error);
  }
  for (const Queued& job : jobs) job.state->queued.store(false, std::memory_order_release);
}

namespace {

/// Fills in the program of a side that is traversed. False if the channel's stream is still copying it to the GPU.
bool upload(Engine& engine, const Gpu& gpu, Channel& channel, KernelArgs& side, const datatype::Layout* layout) {
  if (side.shape.kind != datatype::ShapeKind::general) return true;
  Upload& upload = Upload::of(*layout, gpu.ordinal);
  side.program = upload.program(engine, channel, *layout);
  side.program_words = static_cast<std::int64_t>((layout->serialised().size() - sizeof(datatype::SerialisedHeader)) /
                                                 sizeof(std::int64_t));
  side.program_number = upload.number();
  return upload.there();
}

/// Whether the programs of both sides are equal. Both sides must be traversed, or neither.
bool have_one_program(const Gpu& gpu, const LayoutTransfer& layouts) {
  if (batch_kind(layouts.to_shape) != datatype::ShapeKind::general) return true;
  Upload &from = Upload::of(*layouts.from.layout, gpu.ordinal), &to = Upload::of(*layouts.to.layout, gpu.ordinal);
  return from.same_program(*layouts.from.layout, to, *layouts.to.layout);
}

}  // namespace

/// The job without its completion. `there` becomes false if a layout is not on the GPU yet.
TransferArgs Engine::job_of(Gpu& gpu, Channel& channel, const Packing& packing, bool& there) {
  const PlanHints hints = {.multiprocessors = gpu.traits.multiprocessors,
                           .packed_is_host = is_host(packing.packed_kind),
                           .policy = &gpu.policy};
  TransferArgs args = with_sides(packing, [&](const PlanSide& from, const PlanSide& to) {
    return plan_batch_job(from, to, packing.begin, packing.end, hints);
  });
  const bool pack = packing.direction == Direction::pack;
  there = upload(*this, gpu, channel, pack ? args.from : args.to, packing.layout) && there;
  return args;
}

TransferArgs Engine::job_of(Gpu& gpu, Channel& channel, const LayoutTransfer& layouts, bool& there) {
  TransferArgs args = with_sides(layouts, [&](const PlanSide& from, const PlanSide& to) {
    return plan_batch_job(from, to, 0, layouts.bytes(),
                          {.multiprocessors = gpu.traits.multiprocessors, .policy = &gpu.policy});
  });
  there = upload(*this, gpu, channel, args.from, layouts.from.layout) && there;
  there = upload(*this, gpu, channel, args.to, layouts.to.layout) && there;
  args.alike = alike_forms(args.from.shape, args.to.shape) && have_one_program(gpu, layouts) ? 1 : 0;
  return args;
}

const BatchJob& Engine::job_of(Gpu& gpu, Channel& channel, PlannedTransfer& plan) {
  if (plan.job_is_final) return *plan.job;
  bool there = true;
  const TransferArgs args = std::visit(
      [&](const auto& it) {
        channel.queue_mutex.assert_held();
        return job_of(gpu, channel, it, there);
      },
      plan.work);
  plan.job.emplace(args);
  plan.blocks = args.to.grid;
  plan.job_is_final = there;
  return *plan.job;
}

void Channel::launch_again(const TakenBack& job) noexcept {
  const LockGuard lock(queue_mutex);
  engine_->launch_again(*this, job);
}

namespace {

ReduceArgs launch_of(const ShortReduction& job, const Gpu&) {
  return lengthened(job);
}
CopyBlocksArgs launch_of(const ShortCopies& job, const Gpu& gpu) {
  return lengthened(job, gpu.traits.multiprocessors);
}

}  // namespace

void Engine::launch_again(Channel& channel, const TakenBack& job) noexcept {
  kernels_.fetch_sub(1, std::memory_order_relaxed);
  job.state->lesson.delay = nullptr;
  job.state->polls = 0;
  try {
    channel.check_context();
  } catch (const std::exception& ended) {
    return job.state->fail(ended);
  }
  Gpu& here = *gpus_[channel.ordinal()].load(std::memory_order_acquire);
  std::visit(
      [&](const auto& it) {
        channel.queue_mutex.assert_held();
        if constexpr (std::is_same_v<std::remove_cvref_t<decltype(it)>, PlannedRef>)
          launch_alone(here, channel, {it, job.state}, Way::automatic);
        else
          launch_again_alone(channel, launch_of(it, here), *job.state);
      },
      job.work);
}

template <class Args>
void Engine::launch_again_alone(Channel& channel, Args args, Transfer::State& state) noexcept try {
  state.finished = true;
  channel.start_kernel(state, args);
  kernels_.fetch_add(1, std::memory_order_relaxed);
} catch (const std::exception& error) {
  state.finished = false;
  state.fail(error);
}

void Engine::launch_alone(Gpu& gpu, Channel& channel, const Queued& job, Way decided) noexcept {
  job.state->finished = true;
  try {
    if (job.plan->resident_blocks == 0 || !hand_over(gpu, channel, job.plan, *job.state))
      launch(gpu, channel, *job.plan, *job.state, decided);
  } catch (const std::exception& error) {
    job.state->finished = false;
    job.state->fail(error);
  }
  job.state->queued.store(false, std::memory_order_release);
}

}  // namespace gpudt::device
