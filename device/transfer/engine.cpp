#include "device/transfer/engine.hpp"

#include <algorithm>
#include <string>

#include "base/timeline.hpp"
#include "device/choice/host_cpu.hpp"
#include "device/kernels/copy_blocks_body.hpp"
#include "device/kernels/reduce_body.hpp"
#include "device/memory/in_time.hpp"
#include "device/transfer/context_watch.hpp"
#include "device/transfer/pageable_transfer.hpp"
#include "device/transfer/points.hpp"
#include "device/transfer/resident.hpp"
#include "device/transfer/start.hpp"
#include "device/transfer/upload.hpp"

namespace gpudt::device {

std::atomic<Engine*> process_engine{nullptr};

void detail::no_engine() {
  throw Error(Failure::runtime, "no GPU runtime is in use");
}

Gpu::Gpu(int its_ordinal, Traits its_traits, Tuning its_tuning, std::shared_ptr<const ContextWatch> its_watch,
         std::unique_ptr<Resident> its_resident)
    : ordinal(its_ordinal),
      traits(std::move(its_traits)),
      policy(launch_policy(traits.capability)),
      tuning(std::move(its_tuning)),
      watch(std::move(its_watch)),
      resident(std::move(its_resident)) {}
Gpu::~Gpu() = default;

Engine::Engine(std::unique_ptr<Runtime> runtime, const Config& config)
    : runtime_(std::move(runtime)),
      way_(config.way),
      order_(config.order),
      batches_wanted_(config.batches),
      staging_limited_(config.staging_limit != 0),
      resident_use_(config.way == Way::copy ? ResidentUse::never : config.resident),
      tuning_(config.tuning),
      warn_(config.warn),
      trace_(config.trace),
      staging_(Pool::make(*runtime_, {config.staging_limit, config.staging_cache})),
      uploads_(Pool::make(*runtime_, {})),
      peers_(std::make_unique<Peers>(*runtime_)),
      gates_(std::make_unique<Gates>(*runtime_)) {}

Engine::~Engine() {
  end_helper();
  lose_ended();
  for (std::atomic<Gpu*>& slot : gpus_) {
    const std::unique_ptr<Gpu> gpu(slot.load());
    if (!gpu) continue;
    if (gpu->resident)
      if (const std::optional<TakenBack> job = gpu->resident->stop()) job->state->channel->launch_again(*job);
    for (const auto& channel : gpu->channels) {
      channel->launch_all_queued();
      channel->close();
    }
  }
  for (const std::atomic<DefaultStream*>& slot : default_streams_) delete slot.load();
  for (const auto& [place, view] : registered_) forget_view(place.first, view);
}

bool Engine::at_rest() const {
  return std::all_of(std::begin(gpus_), std::end(gpus_), [](const std::atomic<Gpu*>& slot) {
    const Gpu* const gpu = slot.load(std::memory_order_acquire);
    const auto rests = [](const auto& channel) { return channel->at_rest(); };
    return gpu == nullptr || std::all_of(std::begin(gpu->channels), std::end(gpu->channels), rests);
  });
}

void Engine::lose_ended() noexcept {
  for (std::atomic<Gpu*>& slot : gpus_) {
    Gpu* const gpu = slot.load(std::memory_order_acquire);
    if (gpu == nullptr || !gpu->watch->ended()) continue;
    const LockGuard lock(gpus_mutex_);
    if (slot.load(std::memory_order_acquire) == gpu) lose(*gpu);
  }
}

/// Gives up a GPU whose context has ended, and with it its streams, events and device memory, which are not freed.
void Engine::lose(Gpu& gpu) noexcept {
  if (trace_) trace_("GPU " + std::to_string(gpu.ordinal) + ": its context has ended; all begins anew");
  recent_.store(nullptr, std::memory_order_release);
  gpus_[gpu.ordinal].store(nullptr, std::memory_order_release);
  lost_.emplace_back(&gpu);
  for (const auto& channel : gpu.channels) {
    channel->launch_all_queued();  // which fails
    channel->close();
  }
  staging_->lose(gpu.ordinal);
  uploads_->lose(gpu.ordinal);
  peers_->lose(gpu.ordinal);
  if (DefaultStream* const stream = default_streams_[gpu.ordinal].load()) stream->lose();
  const LockGuard lock(registered_mutex_);
  std::erase_if(registered_, [&](const auto& entry) {
    const bool its = entry.first.first == gpu.ordinal;
    if (its) forget_view(gpu.ordinal, entry.second);
    return its;
  });
  runtime_->forget(gpu.ordinal);
}

void* Engine::register_host(int ordinal, void* address, std::size_t bytes) {
  static_cast<void>(gpu(ordinal));
  if (const std::optional<void*> known = registered(ordinal, address)) return *known;
  in_time([=, this] { register_now(ordinal, address, bytes); });
  return registered(ordinal, address).value_or(nullptr);
}

std::optional<void*> Engine::registered(int ordinal, void* address) {
  const LockGuard lock(registered_mutex_);
  const auto at = registered_.find({ordinal, address});
  return at == registered_.end() ? std::nullopt : std::optional<void*>(at->second);
}

/// The mutex is not held while the runtime registers the memory.
void Engine::register_now(int ordinal, void* address, std::size_t bytes) {
  if (registered(ordinal, address)) return;
  void* view = host_views_.map_again(address, bytes);
  bool taken = false;
  try {
    taken = view != nullptr && runtime_->host_register(ordinal, view, bytes);
  } catch (const Error&) {
    // This counts as a refusal: the next use of the GPU reports the error.
  }
  if (!taken && view != nullptr) host_views_.free(std::exchange(view, nullptr));
  const LockGuard lock(registered_mutex_);
  registered_.emplace(std::pair(ordinal, address), view);
}

void Engine::forget_view(int ordinal, void* view) noexcept {
  if (view == nullptr) return;
  runtime_->host_unregister(ordinal, view);
  host_views_.free(view);
}

Gpu& Engine::new_gpu(int ordinal) {
  if (ordinal < 0 || ordinal >= max_gpus)
    throw Error(Failure::runtime, "GPU " + std::to_string(ordinal) + ": only GPUs 0 to " +
                                      std::to_string(max_gpus - 1) + " are supported");
  std::atomic<Gpu*>& slot = gpus_[ordinal];
  const LockGuard lock(gpus_mutex_);
  if (Gpu* gpu = slot.load(std::memory_order_acquire)) {
    if (!gpu->watch->ended()) return *gpu;
    lose(*gpu);
  }
  const auto made = std::make_shared<std::unique_ptr<Gpu>>();
  if (!in_time([=, this] { *made = make_gpu(ordinal); }, long_time))
    throw Error(Failure::out_of_memory, "GPU " + std::to_string(ordinal) +
                                            " cannot be readied in time while operations are enqueued in streams");
  slot.store(made->get(), std::memory_order_release);
  return *made->release();
}

std::unique_ptr<Gpu> Engine::make_gpu(int ordinal) {
  Traits traits = runtime_->traits(ordinal);
  Tuning tuning = read_tuning(tuning_, {traits.name, host_cpu()});
  if (warn_ && !tuning.complaint.empty()) warn_(tuning.complaint);
  const auto watch = std::make_shared<const ContextWatch>(*runtime_, ordinal);
  std::unique_ptr<Resident> resident;
  if (resident_use_ != ResidentUse::never)
    resident = std::make_unique<Resident>(*runtime_, ordinal, resident_use_, watch);
  auto made = std::make_unique<Gpu>(ordinal, std::move(traits), std::move(tuning), watch, std::move(resident));
  for (auto& channel : made->channels)
    channel = std::make_shared<Channel>(*this, ordinal, watch, made->tuning.model.lateness);
  return made;
}

/// Kernels read layouts of these kinds.
void Engine::prepare_layout(int ordinal, const datatype::Layout& layout, std::chrono::milliseconds time) {
  const auto is_read = [&](std::int64_t count) {
    const datatype::ShapeKind kind = layout.shape(count).kind;
    return kind == datatype::ShapeKind::list || kind == datatype::ShapeKind::general;
  };
  Gpu& here = gpu(ordinal);
  if (is_read(1) || is_read(2))
    static_cast<void>(Upload::of(layout, ordinal).program(*this, here.channel(Direction::unpack), layout, time));
}

std::atomic<bool> detail::streams_used{false};

bool detail::upload(int ordinal, const datatype::Layout& layout, std::chrono::milliseconds time) noexcept try {
  current_engine().prepare_layout(ordinal, layout, time);
  return true;
} catch (const std::exception&) {
  return false;
}

Movements Engine::movements() const {
  Movements sum = {kernels_.load(), copies_.load(), batches_.load(), batched_.load()};
  for (const std::atomic<Gpu*>& slot : gpus_)
    if (const Gpu* gpu = slot.load(std::memory_order_acquire)) {
      for (const auto& channel : gpu->channels)
        sum.late += channel->kernels.times() + channel->copies.times() + channel->short_runs.times();
      if (gpu->resident) sum.resident += gpu->resident->jobs();
    }
  return sum;
}

void Engine::shared_with_others(int ordinal, bool yields) noexcept {
  shared_[ordinal].store(true, std::memory_order_relaxed);
  const Gpu* const gpu = gpus_[ordinal].load(std::memory_order_acquire);
  if (gpu == nullptr) return;
  if (gpu->resident) gpu->resident->shared_with_others();
  if (!yields) return;
  for (const auto& channel : gpu->channels) channel->kernels.yield_turns();
}

void shared_with_others(int ordinal, bool yields) noexcept {
  if (Engine* const engine = process_engine.load(std::memory_order_acquire))
    engine->shared_with_others(ordinal, yields);
}

bool Engine::knows_memory_of(int ordinal) const noexcept {
  const Gpu* const gpu = ordinal < max_gpus ? gpus_[ordinal].load(std::memory_order_acquire) : nullptr;
  return gpu != nullptr && gpu->watch->is_known();
}

std::vector<std::string> Engine::cost_sources() const {
  std::vector<std::string> sources;
  for (const std::atomic<Gpu*>& slot : gpus_)
    if (const Gpu* gpu = slot.load(std::memory_order_acquire))
      sources.push_back("GPU " + std::to_string(gpu->ordinal) + ": " + gpu->tuning.source);
  return sources;
}

std::vector<UsedGpu> Engine::used_gpus() const {
  std::vector<UsedGpu> used;
  for (const std::atomic<Gpu*>& slot : gpus_)
    if (const Gpu* gpu = slot.load(std::memory_order_acquire))
      used.push_back({gpu->ordinal, gpu->traits.name, gpu->traits.id});
  return used;
}

// --- the ways to move a message --------------------------------------------------------------------------------------

Transfer Engine::start(Direction direction, int ordinal, const datatype::Layout& layout, std::int64_t count, void* user,
                       std::int64_t begin, std::int64_t end, void* packed, MemoryKind packed_kind,
                       const StreamMark& after) {
  if (begin >= end) return {};
  Gpu& here = gpu(ordinal);
  if (packed_kind == MemoryKind::host)
    return Transfer(Transfer::PageableOwner(
        new PageableTransfer(*this, here, direction, Side{&layout, count, user}, begin, end, packed, after)));
  const Packing packing = {direction, &layout, layout.shape(count), user, begin, end, packed, packed_kind};
  return this->begin(here, here.channel(direction), plan_for(here, packing), after);
}

Transfer start(Direction direction, int ordinal, const datatype::Layout& layout, std::int64_t count, void* user,
               std::int64_t begin, std::int64_t end, void* packed, MemoryKind packed_kind, const StreamMark& after) {
  return current_engine().start(direction, ordinal, layout, count, user, begin, end, packed, packed_kind, after);
}

Transfer Engine::copy(int ordinal, void* to, const void* from, std::size_t bytes, const StreamMark& after) {
  if (bytes == 0) return {};
  const Location to_place = runtime_->classify(to), from_place = runtime_->classify(from);
  const bool pack = from_place.on_device() && from_place.ordinal == ordinal;
  const Location& packed = pack ? to_place : from_place;
  // Kernels reach pinned memory and this GPU's own; another GPU's only where peer access is on, which is not known.
  const bool reachable = packed.kind == MemoryKind::pinned || (packed.on_device() && packed.ordinal == ordinal);
  Packing packing = {pack ? Direction::pack : Direction::unpack, nullptr, {},         nullptr, 0,
                     static_cast<std::int64_t>(bytes),           nullptr, packed.kind};
  if (!reachable) packing.packed_kind = MemoryKind::host;
  packing.shape.kind = datatype::ShapeKind::contiguous;
  packing.shape.total = packing.shape.run = packing.shape.count = packing.end;
  packing.shape.extent = 1;
  packing.user = pack ? const_cast<void*>(from) : to;
  packing.packed = pack ? to : const_cast<void*>(from);
  Gpu& here = gpu(ordinal);
  return begin(here, here.channel(packing.direction), plan_for(here, packing), after);
}

Transfer copy(int ordinal, void* to, const void* from, std::size_t bytes, const StreamMark& after) {
  return current_engine().copy(ordinal, to, from, bytes, after);
}

// --- from layout to layout -------------------------------------------------------------------------------------------

namespace {

/// What is to be done if one side is contiguous, which is then a pack or an unpack, and if none is.
Work work_of(const TransferRequest& asked) {
  const auto& [from, to, begin, end, within, generation] = asked;
  const datatype::Shape from_shape = from.layout->shape(from.count), to_shape = to.layout->shape(to.count);
  if (end > from_shape.total || end > to_shape.total)
    throw Error(Failure::runtime, "a transfer of more bytes than there are");
  using datatype::ShapeKind;
  if (from_shape.kind == ShapeKind::contiguous)
    return Packing{Direction::unpack,  to.layout, to_shape, to.user, begin, end, place_of(from, from_shape, begin),
                   MemoryKind::device, !within};
  if (begin != 0) throw Error(Failure::runtime, "a transfer of the later part of a message that is not packed");
  if (to_shape.kind == ShapeKind::contiguous)
    return Packing{Direction::pack,           from.layout,        from_shape, from.user, 0, end,
                   place_of(to, to_shape, 0), MemoryKind::device, !within};
  return LayoutTransfer{from, to, from_shape, to_shape, end, within};
}

}  // namespace

Transfer Engine::transfer(int ordinal, const Side& from, const Side& to, std::int64_t begin, std::int64_t end,
                          const StreamMark& after, bool within, KeptPlan* kept) {
  if (begin >= end) return {};
  Gpu& here = gpu(ordinal);
  // Transfers from peers share the channel of unpacks, whichever side is the packed one.
  Channel& channel = here.channel(within ? Direction::pack : Direction::unpack);
  const TransferRequest asked = {from, to, begin, end, within, channel.generation()};
  if (kept == nullptr) return this->begin(here, channel, plan_for(here, work_of(asked)), after);
  if (*kept == nullptr || (*kept)->request != asked) {
    *kept = plan_for(here, work_of(asked));
    (*kept)->request = asked;
  }
  return this->begin(here, channel, *kept, after);
}

Transfer transfer(int ordinal, const Side& from, const Side& to, std::int64_t begin, std::int64_t end,
                  const StreamMark& after, bool within, KeptPlan* kept) {
  return current_engine().transfer(ordinal, from, to, begin, end, after, within, kept);
}

// --- collectives -----------------------------------------------------------------------------------------------------

/// Gives the persistent kernel work of a collective, of which no start delay is learnt: how long it takes depends on
/// several GPUs.
template <class Job>
bool Engine::hand_over(Gpu& gpu, Channel& channel, std::optional<Job>& job, Transfer::State& state) {
  if (!job) return false;
  note_short(gpu);
  if (!gpu.resident->ready() || resident_late(gpu)) return false;
  job->completion = completion_of(state);
  if (!gpu.resident->hand_over(ResidentJob(*job), *job, state)) return false;
  channel.handed_over(state, {});
  mark(point::handed_over);
  return true;
}

Transfer Engine::reduce(int ordinal, const Reduction& reduction) {
  const auto is_number_of_ranks = [](std::size_t number) { return number >= 1 && number <= Reduction::most_ranks; };
  if (!is_number_of_ranks(reduction.from.size()) || !is_number_of_ranks(reduction.to.size()) ||
      (reduction.result != Result::total && reduction.from.size() != reduction.to.size()) ||
      !is_defined(reduction.op, reduction.element))
    throw Error(Failure::runtime, "a reduction that no kernel can do");
  if (reduction.count == 0) return {};
  Gpu& here = gpu(ordinal);
  return start_alone(
      here, [&] { return plan_reduction(reduction, here.traits.multiprocessors); },
      here.resident ? shortened(reduction, here.policy) : std::nullopt);
}

Transfer reduce(int ordinal, const Reduction& reduction) {
  return current_engine().reduce(ordinal, reduction);
}

Transfer copy_to_all(int ordinal, const void* from, std::span<void* const> to, std::int64_t bytes) {
  // With one source nothing is combined.
  return reduce(ordinal, {Operator::bor, Element::uint8, Result::total, bytes, {&from, 1}, to});
}

Transfer Engine::copy_blocks(int ordinal, std::span<const BlockCopy> copies) {
  if (copies.empty() || copies.size() > most_block_copies)
    throw Error(Failure::runtime, "more blocks, or less, than a kernel copies");
  Gpu& here = gpu(ordinal);
  return start_alone(
      here, [&] { return plan_block_copies(copies, here.traits.multiprocessors); },
      here.resident ? shortened(copies, resident_warps, here.policy) : std::nullopt);
}

Transfer copy_blocks(int ordinal, std::span<const BlockCopy> copies) {
  return current_engine().copy_blocks(ordinal, copies);
}

}  // namespace gpudt::device
