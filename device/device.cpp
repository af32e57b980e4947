// device.hpp over the process's engine: made by start(), ended by stop(), and by nothing else, so that no static
// destructor touches a GPU.
#include "device/device.hpp"

#include "device/engine.hpp"

namespace gpudt::device {
namespace {

std::atomic<Engine*> engine{nullptr};

Engine& current() {
  Engine* const now = engine.load(std::memory_order_acquire);
  if (!now) throw Error(Failure::runtime, "no GPU runtime is in use");
  return *now;
}

std::unique_ptr<Runtime> make_runtime(Choice choice) {
  std::unique_ptr<Runtime> runtime;
  if (choice == Choice::sim || choice == Choice::automatic) runtime = make_sim_runtime();
  if (!runtime && (choice == Choice::cuda || choice == Choice::automatic)) runtime = make_cuda_runtime();
  if (!runtime && choice == Choice::sim)
    throw Error(Failure::runtime, "GPUDT_DEVICE=sim: libgpudt-sim.so is not loaded, or has no devices");
  if (!runtime && choice == Choice::cuda)
    throw Error(Failure::runtime, "GPUDT_DEVICE=cuda: built without CUDA, or there is no CUDA driver");
  return runtime;
}

}  // namespace

namespace detail {

std::atomic<bool> active{false};

Location classify_active(const void* address) noexcept {
  const Engine* const now = engine.load(std::memory_order_acquire);
  return now ? now->runtime().classify(address) : Location{};
}

}  // namespace detail

void start(const Config& config) {
  if (engine.load()) throw Error(Failure::runtime, "the GPU runtime is already in use");
  std::unique_ptr<Runtime> runtime = make_runtime(config.choice);
  if (!runtime) return;
  engine.store(new Engine(std::move(runtime), config), std::memory_order_release);
  detail::active.store(true, std::memory_order_release);
}

void stop() noexcept {
  detail::active.store(false);
  delete engine.exchange(nullptr);
}

const char* runtime_name() noexcept {
  const Engine* const now = engine.load(std::memory_order_acquire);
  return now ? now->runtime().name() : "none";
}

Staging acquire(StagingKind kind, int ordinal, std::size_t bytes) {
  return current().staging().acquire(kind, ordinal, bytes);
}

StagingStatistics staging_statistics(StagingKind kind) noexcept {
  const Engine* const now = engine.load(std::memory_order_acquire);
  return now ? now->staging().statistics(kind) : StagingStatistics{};
}

Transfer::Transfer() noexcept = default;
Transfer::Transfer(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
Transfer::Transfer(Transfer&&) noexcept = default;
Transfer& Transfer::operator=(Transfer&&) noexcept = default;
Transfer::~Transfer() = default;

bool Transfer::done() {
  return !state_ || state_->done();
}

void Transfer::wait() {
  if (state_) state_->wait();
}

Transfer start(Direction direction, int ordinal, const datatype::Layout& layout, std::int64_t count, void* user,
               std::int64_t begin, std::int64_t end, void* packed) {
  return current().start(direction, ordinal, layout, count, user, begin, end, packed);
}

Transfer copy(int ordinal, void* to, const void* from, std::size_t bytes) {
  return current().copy(ordinal, to, from, bytes);
}

}  // namespace gpudt::device
