// device.hpp over the process's engine: made by start(), ended by stop(), and by nothing else, so that no static
// destructor touches a GPU.
#include "device/device.hpp"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "device/cuda/make_runtime.hpp"
#include "device/sim/make_runtime.hpp"
#include "device/transfer/engine.hpp"
#include "device/transfer/pageable_transfer.hpp"
#include "device/transfer/resident.hpp"

namespace gpudt::device {
namespace {

/// Returns ask(engine), or a value-initialised result if there is no engine.
template <class Ask>
auto of_engine(const Ask& ask) {
  Engine* const engine = process_engine.load(std::memory_order_acquire);
  using Answer = decltype(ask(*engine));
  return engine != nullptr ? ask(*engine) : Answer{};
}

/// The engine, with a context of GPU `ordinal`: another one, if the last has ended. Throws Error.
Engine& engine_for(int ordinal) {
  Engine& engine = current_engine();
  static_cast<void>(engine.gpu(ordinal));
  return engine;
}

std::unique_ptr<Runtime> make_runtime(Choice choice) {
  std::unique_ptr<Runtime> runtime;
  std::string why;
  if (choice == Choice::sim || choice == Choice::automatic) runtime = make_sim_runtime(&why);
  if (!runtime && (choice == Choice::cuda || choice == Choice::automatic)) runtime = make_cuda_runtime(&why);
  if (!runtime && choice == Choice::sim) throw Error(Failure::runtime, "GPUDT_DEVICE=sim: " + why);
  if (!runtime && choice == Choice::cuda) throw Error(Failure::runtime, "GPUDT_DEVICE=cuda: " + why);
  return runtime;
}

}  // namespace

void start(const Config& config) {
  if (process_engine.load()) throw Error(Failure::runtime, "the GPU runtime is already in use");
  std::unique_ptr<Runtime> runtime = make_runtime(config.choice);
  if (!runtime) return;
  auto* const engine = new Engine(std::move(runtime), config);
  process_engine.store(engine, std::memory_order_release);
  ask_about_addresses(&engine->runtime());
}

void stop() noexcept {
  ask_about_addresses(nullptr);
  delete process_engine.exchange(nullptr);
}

const char* runtime_name() noexcept {
  const Engine* const engine = process_engine.load(std::memory_order_acquire);
  return engine ? engine->runtime().name() : "none";
}

bool loads_lazily() noexcept {
  const Engine* const engine = process_engine.load(std::memory_order_acquire);
  return engine != nullptr && engine->runtime().loads_lazily();
}

Staging acquire(StagingKind kind, int ordinal, std::size_t bytes) {
  return engine_for(ordinal).staging().acquire(kind, ordinal, bytes);
}

Staging acquire_packed(int ordinal, std::size_t bytes) {
  return engine_for(ordinal).staging().acquire_packed(ordinal, bytes);
}

Staging try_acquire(StagingKind kind, int ordinal, std::size_t bytes) {
  return engine_for(ordinal).staging().try_acquire(kind, ordinal, bytes);
}

void* register_host(int ordinal, void* address, std::size_t bytes) noexcept try {
  return current_engine().register_host(ordinal, address, bytes);
} catch (const std::exception&) {
  return nullptr;
}

StagingStatistics staging_statistics(StagingKind kind) noexcept {
  return of_engine([&](const Engine& engine) { return engine.staging().statistics(kind); });
}

std::size_t staging_room() noexcept {
  return of_engine([&](const Engine& engine) { return engine.staging().room(); });
}

bool keeps_order() noexcept {
  return of_engine([](const Engine& engine) { return engine.keeps_order(); });
}

bool default_stream_idle(int ordinal) {
  return current_engine().runtime().default_stream_idle(ordinal, /*while_capturing=*/true);
}

Movements movements() noexcept {
  return of_engine([&](const Engine& engine) { return engine.movements(); });
}

std::vector<std::string> cost_sources() {
  return of_engine([&](const Engine& engine) { return engine.cost_sources(); });
}

std::vector<UsedGpu> used_gpus() {
  return of_engine([&](const Engine& engine) { return engine.used_gpus(); });
}

std::vector<VisibleGpu> visible_gpus() {
  return of_engine([&](const Engine& engine) { return engine.runtime().visible_gpus(); });
}

int stream_gpu(void* stream) {
  return current_engine().runtime().stream_gpu(stream);
}

void prepare_for_streams(int ordinal) {
  constexpr std::size_t at_first = std::size_t{1} << 20;  // bytes of either kind of staging memory
  Engine& engine = engine_for(ordinal);
  Gpu& gpu = engine.gpu(ordinal);
  if (gpu.is_prepared.load(std::memory_order_acquire)) return;
  engine.gates().prepare(ordinal);
  for (const auto& channel : gpu.channels) channel->prepare();
  if (gpu.resident) gpu.resident->prepare();
  for (const StagingKind kind : {StagingKind::mapped, StagingKind::device})
    static_cast<void>(engine.staging().try_acquire(kind, ordinal, at_first));
  Staging reserve = engine.uploads().acquire(StagingKind::mapped, ordinal, PageableTransfer::shortest_piece);
  auto nudge = std::make_unique<Nudge>(engine.runtime(), ordinal, gpu.watch);
  {
    const LockGuard lock(gpu.reserve_mutex);
    if (!gpu.reserve) gpu.reserve = std::move(reserve);
    if (!gpu.nudge) gpu.nudge = std::move(nudge);
  }
  detail::streams_used.store(true, std::memory_order_release);
  gpu.is_prepared.store(true, std::memory_order_release);
}

bool is_captured(int ordinal, void* stream) {
  return current_engine().runtime().is_captured(ordinal, stream);
}

Gate* take_gate(int ordinal, bool for_graph) {
  return current_engine().gates().take(ordinal, for_graph);
}

void give_gate(Gate* gate, bool for_graph) noexcept {
  if (Engine* const engine = process_engine.load(std::memory_order_acquire)) engine->gates().give(gate, for_graph);
}

void gates_opened(int ordinal) noexcept try {
  Engine& engine = current_engine();
  if (engine.is_shared(ordinal)) return;
  const Gpu& gpu = engine.gpu(ordinal);
  if (gpu.is_prepared.load(std::memory_order_acquire)) gpu.nudge->give();
} catch (const Error&) {
  // The GPU has failed, which its next use reports.
}

void meet(int ordinal, const Meeting& meeting, void* stream) {
  current_engine().runtime().meet(ordinal, meeting, stream);
}

void keep_with_graph(int ordinal, void* stream, void (*released)(void*), void* data) {
  current_engine().runtime().keep_with_graph(ordinal, stream, released, data);
}

void tell_exports(ExportTable& table) noexcept {
  if (Engine* const engine = process_engine.load(std::memory_order_acquire)) engine->peers().exports().tell(table);
}

bool export_memory(int ordinal, const void* address, Exported& exported, Importers by, std::uint64_t bytes) noexcept
    try {
  return current_engine().peers().export_memory(ordinal, current_engine().gpu(ordinal).traits, address, exported, by,
                                                bytes);
} catch (const std::exception&) {
  return false;  // no memory, or the GPU has failed, which its next use reports
}

std::string not_exported_because(const void* address) noexcept try {
  return current_engine().peers().exports().refused(address);
} catch (const std::exception&) {
  return {};
}

ExportedStaging acquire_exported(int ordinal, std::size_t bytes, Importers by) {
  constexpr std::size_t most_rejected = 4;
  constexpr std::size_t least_alone = std::size_t{2} << 20;  // shorter blocks share allocations, and the driver's pages
  ExportedStaging taken{try_acquire(StagingKind::device, ordinal, bytes), {}};
  if (!taken.staging) return taken;
  std::vector<Staging> rejected;  // new memory where `by` still have older memory mapped
  for (;;) {
    Exported exported;
    if (export_memory(ordinal, taken.staging.data(), exported, by)) {
      taken.exported = exported;
      return taken;
    }
    if (rejected.size() == most_rejected || !export_memory(ordinal, taken.staging.data(), exported, no_importers))
      return taken;
    Staging another = try_acquire(StagingKind::device, ordinal, std::max(bytes, least_alone));
    if (!another) return taken;
    rejected.push_back(std::exchange(taken.staging, std::move(another)));
  }
}

Mapping import_memory(int ordinal, const Exporter& exporter, const Exported& exported, std::string* why,
                      bool may_wait) {
  return engine_for(ordinal).peers().import_memory(ordinal, exporter, exported, why, may_wait);
}

Mapping imported_memory(int ordinal, std::uint64_t exporter, const Exported& exported) {
  return engine_for(ordinal).peers().imported_memory(ordinal, exporter, exported);
}

Mapping hold_again(int ordinal, const KnownMapping& known) {
  return engine_for(ordinal).peers().hold_again(known);
}

void give_back_freed() noexcept try {
  Engine* const engine = process_engine.load(std::memory_order_acquire);
  if (engine == nullptr) return;
  constexpr std::size_t looked_at = 2;
  engine->lose_ended();
  engine->peers().exports().look_for_freed(looked_at);
  engine->peers().unmap_freed([engine] { return !engine->at_rest(); });
} catch (const std::exception&) {
  // No memory: another time.
}

PeerStatistics peer_statistics() noexcept {
  return of_engine([&](const Engine& engine) { return engine.peers().statistics(); });
}

}  // namespace gpudt::device
