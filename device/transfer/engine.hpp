// The engine under device.hpp: one per start(), over one Runtime. A Gpu is created on first use.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "device/choice/chooser.hpp"
#include "device/choice/tuning.hpp"
#include "device/kernels/copy_blocks.hpp"
#include "device/kernels/reduction.hpp"
#include "device/memory/gates.hpp"
#include "device/memory/peer.hpp"
#include "device/memory/pool.hpp"
#include "device/runtime/host_pages.hpp"
#include "device/runtime/runtime.hpp"
#include "device/transfer/channel.hpp"
#include "device/transfer/config.hpp"
#include "device/transfer/default_stream.hpp"
#include "device/transfer/nudge.hpp"

namespace gpudt::device {

class Resident;

struct Gpu {
  Gpu(int its_ordinal, Traits its_traits, Tuning its_tuning, std::shared_ptr<const ContextWatch> its_watch,
      std::unique_ptr<Resident> its_resident);
  ~Gpu();
  const int ordinal;
  const Traits traits;
  const LaunchPolicy& policy;
  const Tuning tuning;
  const std::shared_ptr<const ContextWatch> watch;
  std::shared_ptr<Channel> channels[2];  ///< by Direction
  std::unique_ptr<Resident> resident;    ///< null: not wanted
  Mutex reserve_mutex;
  Staging reserve GUARDED_BY(reserve_mutex);  ///< PageableTransfer's, once the program enqueues in streams
  std::unique_ptr<Nudge> nudge;               ///< does not change once is_prepared
  std::atomic<bool> is_prepared{false};       ///< device::prepare_for_streams()
  Channel& channel(Direction direction) const { return *channels[static_cast<int>(direction)]; }
};

class Engine {
 public:
  Engine(std::unique_ptr<Runtime> runtime, const Config& config);
  ~Engine();

  Runtime& runtime() const { return *runtime_; }
  Pool& staging() const { return *staging_; }
  Pool& uploads() const { return *uploads_; }
  Peers& peers() const { return *peers_; }
  Gates& gates() const { return *gates_; }
  /// Created on first use, and again if its context has been destroyed; everything obtained from the old one fails and
  /// must not be freed.
  Gpu& gpu(int ordinal) {
    Gpu* const known = ordinal >= 0 && ordinal < max_gpus ? gpus_[ordinal].load(std::memory_order_acquire) : nullptr;
    return known != nullptr && !known->watch->ended() ? *known : new_gpu(ordinal);
  }
  /// Whether all transfers that have been started are done, as far as is known without waiting.
  bool at_rest() const;
  /// Gives up the GPUs whose contexts have ended: nothing of them may be passed to the runtime any more.
  void lose_ended() noexcept;

  Transfer start(Direction direction, int ordinal, const datatype::Layout& layout, std::int64_t count, void* user,
                 std::int64_t begin, std::int64_t end, void* packed, MemoryKind packed_kind,
                 const StreamMark& after = {});
  Transfer copy(int ordinal, void* to, const void* from, std::size_t bytes, const StreamMark& after = {});
  Transfer transfer(int ordinal, const Side& from, const Side& to, std::int64_t begin, std::int64_t end,
                    const StreamMark& after = {}, bool within = false, KeptPlan* kept = nullptr);
  // to_host.cpp
  int gpu_to_host(const GpuId& owner) const;
  bool is_pinned(int ordinal, const Side& side, std::int64_t bytes) const;
  bool copies_to_host(int ordinal, const Side& from, const Side& to, std::int64_t bytes);
  Transfer copy_to_host(int ordinal, const Side& from, const Side& to, std::int64_t begin, std::int64_t end);
  Transfer reduce(int ordinal, const Reduction& reduction);
  Transfer copy_blocks(int ordinal, std::span<const BlockCopy> copies);
  std::shared_ptr<PreparedTransfers> prepare(int ordinal, std::span<const SidePair> transfers);
  bool start(PreparedTransfers& prepared, std::vector<Transfer>& started);
  bool keeps_order() const { return order_ != Order::none; }
  /// Null if Config::order is none. Throws std::bad_alloc. In default_stream.cpp.
  DefaultStream* default_stream(int ordinal);
  void* register_host(int ordinal, void* address, std::size_t bytes);
  /// Uploads the layout, if kernels read it, within `time`. Throws Error.
  void prepare_layout(int ordinal, const datatype::Layout& layout, std::chrono::milliseconds time);
  Movements movements() const;
  /// Whether the runtime certainly knows memory of GPU `ordinal` now.
  bool knows_memory_of(int ordinal) const noexcept;
  std::vector<std::string> cost_sources() const;
  std::vector<UsedGpu> used_gpus() const;
  void about_to_wait(WaitKind kind) noexcept;
  void no_more_enqueued() noexcept;
  void shared_with_others(int ordinal, bool yields) noexcept;
  /// Whether processes are known to take turns on the GPU.
  bool is_shared(int ordinal) const { return shared_[ordinal].load(std::memory_order_relaxed); }

  static constexpr int max_gpus = datatype::Layout::gpu_slots;

  /// Launches all that is queued.
  void launch_queued() noexcept;
  /// Launches what one channel has queued.
  void launch_queued(Channel& channel) noexcept REQUIRES(channel.queue_mutex);
  void launch_again(Channel& channel, const TakenBack& job) noexcept REQUIRES(channel.queue_mutex);
  /// Called when work of the GPU has failed.
  void failed(int ordinal) noexcept;

 private:
  // forecast.cpp
  static CopyPlan divided(const Packing& packing, const TransferContext& context);
  TransferContext transfer_context(const Gpu& gpu, const Packing& packing) const;
  TransferContext transfer_context(const Gpu& gpu, const LayoutTransfer& layouts) const;
  static Forecast forecast_of(const Gpu& gpu, const Channel& channel, std::int64_t bytes,
                              const TransferContext& context, CopyPlan copy_plan) REQUIRES(channel.queue_mutex);
  static Forecast forecast_of_runs(const Gpu& gpu, const Channel& channel, std::int64_t bytes,
                                   const TransferContext& context, CopyPlan runs) REQUIRES(channel.queue_mutex);
  void consider_span(const Gpu& gpu, const Channel& channel, const Packing& packing, const TransferContext& context,
                     Forecast& forecast) const REQUIRES(channel.queue_mutex);
  bool may_bring(const Packing& packing, const datatype::Span& span) const;
  bool in_one_allocation(const Packing& packing, const datatype::Span& span) const;
  static void compare(const Gpu& gpu, const Channel& channel, const TransferContext& context, Forecast& forecast)
      REQUIRES(channel.queue_mutex);
  bool surely_a_kernel(const Gpu& gpu, const Channel& channel, const datatype::Shape& shape, std::int64_t bytes,
                       const TransferContext& context, const datatype::Layout* layout = nullptr) const
      REQUIRES(channel.queue_mutex);
  Forecast foresee(const Gpu& gpu, const Channel& channel, const Packing& packing, bool spans = true) const
      REQUIRES(channel.queue_mutex);
  Forecast foresee(const Gpu& gpu, const Channel& channel, const LayoutTransfer& layouts) const
      REQUIRES(channel.queue_mutex);
  const Forecast& foresee(const Gpu& gpu, const Channel& channel, PlannedTransfer& plan) const
      REQUIRES(channel.queue_mutex);
  bool prefers_copy(const Forecast& forecast) const;
  void trace(const Gpu& gpu, const Work& work, const Forecast& forecast, const std::string& mover) const;
  void trace(const Gpu& gpu, const Channel& channel, PlannedTransfer& plan, const std::string& mover) const
      REQUIRES(channel.queue_mutex);

  bool surely_beside_others(const Gpu& gpu, const Channel& channel, std::int64_t bytes, const TransferContext& context,
                            std::size_t jobs) const REQUIRES(channel.queue_mutex);
  bool prefers_copy_beside_others(const Forecast& forecast, std::size_t jobs) const;

  // launch.cpp
  bool worth_a_probe(const Channel& channel, const Forecast& forecast) const;
  void launch(Gpu& gpu, Channel& channel, PlannedTransfer& plan, Transfer::State& state, Way decided = Way::automatic)
      REQUIRES(channel.queue_mutex);
  bool try_copy(Gpu& gpu, Channel& channel, const Work& work, const Forecast& forecast, Transfer::State& state)
      REQUIRES(channel.queue_mutex);
  bool start_copy_engine(Gpu& gpu, Channel& channel, const Packing& packing, const Forecast& forecast,
                         Transfer::State& state) REQUIRES(channel.queue_mutex);
  static bool start_copy_engine(Gpu& gpu, Channel& channel, const LayoutTransfer& layouts, const Forecast& forecast,
                                Transfer::State& state) REQUIRES(channel.queue_mutex);
  bool start_span(Gpu& gpu, Channel& channel, const Packing& packing, const datatype::Span& span,
                  Transfer::State& state) REQUIRES(channel.queue_mutex);
  void start_kernel(Gpu& gpu, Channel& channel, const Packing& packing, const Forecast& forecast,
                    Transfer::State& state) REQUIRES(channel.queue_mutex);
  void start_kernel(Gpu& gpu, Channel& channel, const LayoutTransfer& layouts, const Forecast& forecast,
                    Transfer::State& state) REQUIRES(channel.queue_mutex);

  // resident.cpp
  void note_short(Gpu& gpu);
  bool resident_late(const Gpu& gpu) const;

  // batch.cpp
  static PlannedRef plan_for(const Gpu& gpu, const Work& work);
  Transfer begin(Gpu& gpu, Channel& channel, const PlannedRef& plan, const StreamMark& after);
  /// Launches a kernel of its own, with the arguments plan(), in the channel of unpacks, unless the persistent kernel
  /// takes `job`, which does the same and may be empty.
  template <class Plan, class Job = std::nullopt_t>
  Transfer start_alone(Gpu& gpu, const Plan& plan, Job job = std::nullopt) {
    Channel& channel = gpu.channel(Direction::unpack);
    StateOwner state = channel.take();
    const LockGuard lock(channel.queue_mutex);
    channel.check_context();
    if (!hand_over(gpu, channel, job, *state)) {
      auto&& args = plan();
      channel.start_kernel(*state, args);
    }
    kernels_.fetch_add(1, std::memory_order_relaxed);
    return Transfer(std::move(state));
  }
  void release_held(Gpu& gpu, Channel& channel) noexcept REQUIRES(channel.queue_mutex);
  bool hand_over(Gpu& gpu, Channel& channel, const PlannedRef& plan, Transfer::State& state)
      REQUIRES(channel.queue_mutex);
  template <class Job>
  bool hand_over(Gpu& gpu, Channel& channel, std::optional<Job>& job, Transfer::State& state)
      REQUIRES(channel.queue_mutex);
  static bool hand_over(Gpu&, Channel&, std::nullopt_t, Transfer::State&) { return false; }
  void launch_alone(Gpu& gpu, Channel& channel, const Queued& job, Way decided) noexcept REQUIRES(channel.queue_mutex);
  template <class Args>
  void launch_again_alone(Channel& channel, Args args, Transfer::State& state) noexcept REQUIRES(channel.queue_mutex);
  void launch_batch(Gpu& gpu, Channel& channel, std::span<const Queued> jobs) noexcept REQUIRES(channel.queue_mutex);
  TransferArgs job_of(Gpu& gpu, Channel& channel, const Packing& packing, bool& there) REQUIRES(channel.queue_mutex);
  TransferArgs job_of(Gpu& gpu, Channel& channel, const LayoutTransfer& layouts, bool& there)
      REQUIRES(channel.queue_mutex);
  /// The job of the plan, which is made again until it is final.
  const BatchJob& job_of(Gpu& gpu, Channel& channel, PlannedTransfer& plan) REQUIRES(channel.queue_mutex);

  void lose(Gpu& gpu) noexcept REQUIRES(gpus_mutex_);
  Gpu& new_gpu(int ordinal);
  std::unique_ptr<Gpu> make_gpu(int ordinal);
  std::optional<void*> registered(int ordinal, void* address);
  void register_now(int ordinal, void* address, std::size_t bytes);
  void forget_view(int ordinal, void* view) noexcept;

  const std::unique_ptr<Runtime> runtime_;
  const Way way_;
  const Order order_;
  const bool batches_wanted_;
  const bool staging_limited_;
  const ResidentUse resident_use_;
  const std::string tuning_;
  void (*const warn_)(const std::string&);
  void (*const trace_)(const std::string&);
  // The layouts' device copies have a pool of their own without a limit, since they live as long as the datatypes.
  const Pool::Owner staging_, uploads_;
  const std::unique_ptr<Peers> peers_;
  const std::unique_ptr<Gates> gates_;
  std::atomic<std::int64_t> kernels_{0}, copies_{0}, batches_{0}, batched_{0};
  Mutex registered_mutex_;
  /// Second mappings of the caller's host memory, by GPU and address; null: the runtime refuses. Each GPU has its own,
  /// since registered memory is lost with the context that it was registered for.
  std::map<std::pair<int, void*>, void*> registered_ GUARDED_BY(registered_mutex_);
  HostPages host_views_;
  std::atomic<Gpu*> recent_{nullptr};  ///< the GPU of the latest short transfer
  Mutex gpus_mutex_;
  std::atomic<Gpu*> gpus_[max_gpus] = {};
  std::atomic<DefaultStream*> default_streams_[max_gpus] = {};
  /// GPUs whose contexts have ended; other threads may still use these objects.
  std::vector<std::unique_ptr<Gpu>> lost_ GUARDED_BY(gpus_mutex_);
  std::atomic<bool> shared_[max_gpus] = {};  ///< whether other processes use the GPU, too
  std::atomic<bool> any_queued_{false};      ///< some channel has queued or held transfers
};

/// The process's engine, which start() makes and stop() ends (device.hpp); null: there is none.
extern std::atomic<Engine*> process_engine;
namespace detail {
[[noreturn]] void no_engine();
}
/// Throws Error if there is none.
inline Engine& current_engine() {
  Engine* const engine = process_engine.load(std::memory_order_acquire);
  if (engine == nullptr) detail::no_engine();
  return *engine;
}

}  // namespace gpudt::device
