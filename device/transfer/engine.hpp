// The engine under device.hpp: one per start(), over one Runtime. A Gpu is created on first use. It has one Channel per
// direction: a stream, a second stream for probes, and the states of the transfers on them.
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
#include <variant>
#include <vector>

#include "base/mutex.hpp"
#include "device/choice/chooser.hpp"
#include "device/choice/delay.hpp"
#include "device/choice/tuning.hpp"
#include "device/device.hpp"
#include "device/kernels/kernel_args.hpp"
#include "device/memory/host_pages.hpp"
#include "device/memory/peer.hpp"
#include "device/memory/pool.hpp"
#include "device/runtime.hpp"
#include "device/timeline.hpp"
#include "device/transfer/default_stream.hpp"

namespace gpudt::device {

class Channel;
class ContextWatch;
class Engine;
class Resident;
struct BatchArgs;  // batch_body.hpp
struct BlockCopy;  // copy_blocks.hpp
struct Reduction;  // reduction.hpp

/// What to learn from the duration of a transfer: the expected duration without start delay, and the Delay to update.
struct Lesson {
  Delay* delay = nullptr;  ///< what is to learn; null: nothing
  double expected_us = 0;
  bool roughly = false;  ///< Delay::observe()
};

/// A whole extent that the copy engine copied to the host, to be packed by the host.
struct Brought {
  Staging memory;  ///< what has come, from the message's first byte to its last; empty: nothing is to be packed
  const datatype::Layout* layout;
  std::int64_t bytes;   ///< of the message
  std::int64_t offset;  ///< of its first byte, relative to the user's address
  void* packed;

  void pack();
};

/// What a transfer under way needs. Belongs to its channel for good, with its flag, counter and event; a Transfer only
/// borrows it, and `delete` (the end of Transfer's unique_ptr) gives it back.
struct Transfer::State {
  std::shared_ptr<Channel> channel;  ///< while lent out: keeps the state's own memory
  State* next_idle = nullptr;
  std::uint32_t* flag = nullptr;  ///< mapped memory, on a cache line of its own, to which a probe writes more
  std::uint32_t sequence = 0;     ///< what the kernel sets the flag to; another value each time
  unsigned* counter = nullptr;    ///< device memory
  EventHandle event = nullptr;    ///< made when first needed
  bool by_event = false;          ///< its end is seen by the event
  Way way = Way::kernel;          ///< what moves the data; not known as long as it is queued
  bool finished = false;
  bool is_probe = false;  ///< Channel::probe()
  /// It waits in its channel's queue; what else is here belongs to whoever launches it until this is false again.
  std::atomic<bool> queued{false};
  std::optional<Error> failure;  ///< why it could not be launched when its turn came
  std::uint32_t polls = 0;
  std::chrono::steady_clock::time_point checked;  ///< when the stream was last asked for errors
  Resident* resident = nullptr;                   ///< has the kernel that does it; null: it was launched by itself
  Lesson lesson;
  Brought brought;
  std::chrono::steady_clock::time_point started, unfinished;  ///< unfinished: when it was last seen so

  bool done();
  void wait();
  void fail(const std::exception& why);
  void poll();
  void observe();
  void check_now_and_then();
  static void operator delete(State* state, std::destroying_delete_t) noexcept;
};

using StateOwner = std::unique_ptr<Transfer::State>;

inline Completion completion_of(const Transfer::State& state) {
  return {state.counter, state.flag, state.sequence};
}

/// A message, or the range of it that is to move.
struct Packing {
  Direction direction;
  const datatype::Layout* layout;  ///< null: contiguous
  datatype::Shape shape;
  void* user;
  std::int64_t begin, end;
  void* packed;
  MemoryKind packed_kind;
  bool peer = false;  ///< one side is, or may be, another GPU's or process's

  std::int64_t bytes() const { return end - begin; }
};

/// From layout to layout; neither side is contiguous.
struct LayoutTransfer {
  Side from, to;
  datatype::Shape from_shape, to_shape;
  std::int64_t bytes_;
  bool within;  ///< on one GPU, beside what comes from others

  std::int64_t bytes() const { return bytes_; }
};

using Work = std::variant<Packing, LayoutTransfer>;

inline bool is_host(MemoryKind kind) {
  return kind == MemoryKind::host || kind == MemoryKind::pinned;
}
/// Where a span of the user's buffer begins.
inline std::uintptr_t first_of(const datatype::Span& span, const void* user) {
  return reinterpret_cast<std::uintptr_t>(user) + static_cast<std::uintptr_t>(span.begin);
}
inline bool kernels_reach(const Packing& packing) {
  return packing.packed_kind != MemoryKind::host;
}
inline bool kernels_reach(const LayoutTransfer&) {
  return true;
}

/// Work that is launched later, perhaps with other work. Its state is lent out, and stays so until then.
struct Queued {
  Work work;
  Transfer::State* state;
  StreamMark after{};
};

/// One GPU's work in one direction, in order.
class Channel : public std::enable_shared_from_this<Channel> {
 public:
  Channel(Engine& engine, int ordinal, std::shared_ptr<const ContextWatch> watch, const Lateness& lateness);
  ~Channel() { close(); }
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  /// A state to start a transfer with; number of states is bounded by memory alone.
  StateOwner take();
  void put(Transfer::State* state) noexcept;

  void start_kernel(Transfer::State& state, KernelArgs& args, const Lesson& lesson) REQUIRES(queue_mutex);
  void start_kernel(Transfer::State& state, TransferArgs& args, const Lesson& lesson) REQUIRES(queue_mutex);
  /// Of a kernel that nothing is to be learnt of, with its arguments complete but for the completion.
  template <class Args>
  void start_kernel(Transfer::State& state, Args& args) REQUIRES(queue_mutex) {
    args.completion = completion_of(state);
    mark(Point::kernel_planned);
    runtime_->launch(ordinal_, args, stream_);
    kernel_launched(state);
  }
  /// With an event that other streams can wait for.
  StateOwner start_copy(void* to, const void* from, std::size_t bytes);
  /// The same for the copy engine. False if the runtime refuses a box: nothing is lost by moving all of it again in
  /// another way.
  bool start_copies(Transfer::State& state, const CopyPlan& copy_plan, const Lesson& lesson = {}) REQUIRES(queue_mutex);
  /// The same of copies from other GPUs, which overlap with the one before: between two on one stream the link idles.
  bool start_peer_copies(Transfer::State& state, const CopyPlan& copy_plan) REQUIRES(queue_mutex);
  /// The same of any number of copies for Runtime::copy_runs_async().
  bool start_runs(Transfer::State& state, const CopyPlan& runs, const Lesson& lesson) REQUIRES(queue_mutex);

  /// How late this direction's work begins. Tracked per direction: on a time-sliced GPU a pack can start immediately
  /// after an unpack had to wait, because the time slice now belongs to this process.
  Delay kernels, copies;  ///< copies: from or to the host
  /// Of copies of runs from the host by one call, of which some are shorter than CostModel::engine_row_bytes.
  Delay short_runs;
  /// Of the queue and the order of what is launched. Taken before any other lock of the device layer.
  Mutex queue_mutex ACQUIRED_BEFORE(mutex_);
  std::vector<Queued> queue GUARDED_BY(queue_mutex);
  /// Until the program's default stream has come to their marks; then they are queued.
  std::vector<Queued> held GUARDED_BY(queue_mutex);
  /// What sets the state's flag has been given to a kernel that runs.
  void handed_over(Transfer::State& state, const Lesson& lesson) REQUIRES(queue_mutex);
  /// What sets the state's flag has been given to the stream.
  void launched(Transfer::State& state) REQUIRES(queue_mutex);
  /// The same of a further one that the latest launch is for.
  void launched_too(Transfer::State& state) REQUIRES(queue_mutex);
  /// The latest launch has ended, as far as its flag says.
  bool idle() const REQUIRES(queue_mutex);
  /// Both of the latest two launches are under way, as far as is known, and not for long: what is queued may wait for
  /// one of them to end, so that more goes by the next launch.
  bool crowded() REQUIRES(queue_mutex);
  bool may_hold() const REQUIRES(queue_mutex);
  /// Launches what is queued and not held any more, unless the channel is crowded(). Whether something is left.
  bool launch_queued() noexcept EXCLUDES(queue_mutex);
  /// The same in any case: all of it is then either under way or has failed.
  void launch_all_queued() noexcept EXCLUDES(queue_mutex);
  /// Cancels a held transfer.
  void drop_held(Transfer::State& state) noexcept EXCLUDES(queue_mutex);
  /// Launches one that was under way and is not any more.
  void launch_again(const Queued& job) noexcept EXCLUDES(queue_mutex);

  /// Launches a kernel with next to nothing to do, which takes `expected_us` without start delay, to check whether
  /// start delays persist. Nobody waits for it; threads that poll other transfers check it. No-op while the previous
  /// probe is still running.
  void probe(double expected_us) noexcept REQUIRES(queue_mutex);
  static constexpr std::int64_t probe_bytes = 16;  ///< that it moves
  void look_after_probe() noexcept;
  void look_in_time() noexcept REQUIRES(queue_mutex);

  /// Throws if the work has failed.
  void check();
  /// Throws if the context has ended, so that the stream is none any more.
  void check_context() const;
  /// The same when it is closed.
  void check_lost() const;
  /// That of the context, which no other one of the process has had.
  std::uint64_t generation() const;

  /// Waits for the work and frees what the runtime gave. States still lent out count as done from then on; what the
  /// host would have packed is not. If the context has ended there is nothing to wait for or to free, and they fail.
  void close() noexcept;
  bool closed() const { return closed_.load(std::memory_order_acquire); }

  Runtime& runtime() const { return *runtime_; }
  int ordinal() const { return ordinal_; }
  StreamHandle stream() const { return stream_; }
  /// Number of polls of a waiting thread before it yields to other threads; also after close().
  std::uint32_t polls_before_yield() const { return polls_before_yield_; }

 private:
  template <class Give>
  bool start_copies(Transfer::State& state, const Lesson& lesson, StreamHandle stream, const Give& give)
      REQUIRES(queue_mutex);
  bool start_copies(Transfer::State& state, const CopyPlan& copy_plan, const Lesson& lesson, StreamHandle stream)
      REQUIRES(queue_mutex);
  void learn(Transfer::State& state, const Lesson& lesson);
  void under_way(Transfer::State& state) REQUIRES(queue_mutex);
  void kernel_launched(Transfer::State& state) REQUIRES(queue_mutex);
  void set_flag_behind(const Transfer::State& state, StreamHandle stream);
  void drain(StreamHandle stream) noexcept;  ///< waits for the work
  void close_probe() noexcept;
  static bool allow_for_loading(Transfer::State& state);

  struct Chunk {
    std::unique_ptr<Transfer::State[]> states;
    void* flags;
    void* counters;
    bool counters_on_host;
  };
  void grow() REQUIRES(mutex_);
  void make_counters(Chunk& chunk);
  void free_of_gpu(const Chunk& chunk) noexcept;

  Engine* const engine_;
  Runtime* const runtime_;
  const int ordinal_;
  std::shared_ptr<const ContextWatch> watch_;  ///< until it is closed
  const std::uint32_t polls_before_yield_;
  StreamHandle stream_ = nullptr;
  /// Made by the first start_peer_copies() that finds the other one at work.
  std::atomic<StreamHandle> second_stream_{nullptr};
  bool on_second_ GUARDED_BY(queue_mutex) = false;  ///< the latest of these
  /// By what the end of a launch is seen; flags stay where they are.
  struct Launch {
    std::uint32_t* flag = nullptr;
    std::uint32_t sequence = 0;
    bool ended() const;
  };
  Launch latest_ GUARDED_BY(queue_mutex), one_before_ GUARDED_BY(queue_mutex);
  std::chrono::steady_clock::time_point latest_began_ GUARDED_BY(queue_mutex);
  std::uint32_t crowded_polls_ GUARDED_BY(queue_mutex) = 0;  ///< since latest_began_ was looked at
  Mutex probe_mutex_;  // tried, but in close(), for whoever has it may wait for queue_mutex
  Transfer probe_ GUARDED_BY(probe_mutex_);
  /// Made with the first probe: what is late must hold nothing up.
  StreamHandle probe_stream_ GUARDED_BY(probe_mutex_) = nullptr;
  int slow_probes_ GUARDED_BY(probe_mutex_) = 0;  ///< in a row
  int looks_left_ GUARDED_BY(queue_mutex) = 0;    ///< while whoever started the probe gives its message
  std::atomic<bool> probing_{false};
  Mutex mutex_;
  Transfer::State* idle_ GUARDED_BY(mutex_) = nullptr;
  std::vector<Chunk> chunks_ GUARDED_BY(mutex_);
  std::atomic<bool> unprepared_{true};  ///< true while freshly allocated states are still being cleared on the stream:
                                        ///< the next launch is slower, so its time is not used for learning
  std::atomic<int> lent_{0};            ///< states, but for those of uploads, which are kept long after their end
  bool lost_ = false;                   ///< closed since the context has ended
  std::atomic<bool> closed_{false};
};

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
  /// Recreated if its context has been destroyed; everything obtained from the old one fails and must not be freed.
  Gpu& gpu(int ordinal);

  Transfer start(Direction direction, int ordinal, const datatype::Layout& layout, std::int64_t count, void* user,
                 std::int64_t begin, std::int64_t end, void* packed, std::optional<MemoryKind> packed_kind = {},
                 const StreamMark& after = {});
  Transfer copy(int ordinal, void* to, const void* from, std::size_t bytes, const StreamMark& after = {});
  Transfer transfer(int ordinal, const Side& from, const Side& to, std::int64_t begin, std::int64_t end,
                    const StreamMark& after = {}, bool within = false);
  Transfer reduce(int ordinal, const Reduction& reduction);
  Transfer copy_blocks(int ordinal, std::span<const BlockCopy> copies);
  bool keeps_order() const { return order_ != Order::none; }
  /// Null: the program's work is not waited for. Throws std::bad_alloc.
  DefaultStream* default_stream(int ordinal);
  void* register_host(int ordinal, void* address, std::size_t bytes);
  Movements movements() const;
  std::vector<std::string> cost_sources() const;
  std::vector<UsedGpu> used_gpus() const;
  void about_to_wait(WaitKind kind) noexcept;
  void shared_with_others(int ordinal, bool yields) noexcept;

  static constexpr int max_gpus = datatype::Layout::gpu_slots;

  /// Launches all that is queued.
  void launch_queued() noexcept;
  /// The same for one channel.
  void launch_queued(Channel& channel) noexcept REQUIRES(channel.queue_mutex);
  void launch_again(Channel& channel, const Queued& job) noexcept REQUIRES(channel.queue_mutex);
  /// Work of the GPU has failed.
  void failed(int ordinal) noexcept;

 private:
  /// What the model says of the ways to move one message.
  struct Forecast {
    CopyPlan copy_plan;   ///< for the copy engine; none: it cannot move them one by one
    datatype::Span span;  ///< that it brings for the host to pack, if that is the best way; empty: it is not
    double kernel_us, kernel_late_us, copy_us = 0, copy_late_us = 0;
    bool copy_better = false;
    bool together = false;                 ///< the copies are runs, CopyPlan::most_together of which go by one call
    bool short_runs = false;               ///< ... from the host: Channel::short_runs
    bool in_pairs = false;                 ///< the copies are two runs each, where that can be
    double span_us = 0;                    ///< that a span would take, or does; 0: there is none
    double job_us = 0, extra_copy_us = 0;  ///< what it adds to a batch, and as a copy to other work of the stream

    bool can_copy() const { return !copy_plan.empty() || span.bytes() != 0; }
  };

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
  bool prefers_copy(const Forecast& forecast) const;
  void trace(const Gpu& gpu, const Work& work, const Forecast& forecast, const std::string& mover) const;

  bool resident_late(const Gpu& gpu) const;
  Resident* resident_of(int ordinal) const;
  bool surely_beside_others(const Gpu& gpu, const Channel& channel, std::int64_t bytes, const TransferContext& context,
                            std::size_t jobs) const REQUIRES(channel.queue_mutex);
  bool prefers_copy_beside_others(const Forecast& forecast, std::size_t jobs) const;

  // launch.cpp
  bool worth_a_probe(const Channel& channel, const Forecast& forecast) const;
  void launch(Gpu& gpu, Channel& channel, const Work& work, Transfer::State& state, Way decided = Way::automatic)
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

  // batch.cpp
  Transfer begin(Gpu& gpu, Channel& channel, const Work& work, const StreamMark& after);
  /// A kernel for itself, among what comes from peers.
  template <class Args>
  Transfer start_alone(Gpu& gpu, Args& args) {
    Channel& channel = gpu.channel(Direction::unpack);
    StateOwner state = channel.take();
    const LockGuard lock(channel.queue_mutex);
    channel.check_context();
    channel.start_kernel(*state, args);
    kernels_.fetch_add(1, std::memory_order_relaxed);
    return Transfer(std::move(state));
  }
  void release_held(Gpu& gpu, Channel& channel) noexcept REQUIRES(channel.queue_mutex);
  void note_short(Gpu& gpu);
  bool hand_over(Gpu& gpu, Channel& channel, const Work& work, Transfer::State& state) REQUIRES(channel.queue_mutex);
  void launch_alone(Gpu& gpu, Channel& channel, const Queued& job, bool residential, Way decided) noexcept
      REQUIRES(channel.queue_mutex);
  void launch_batch(Gpu& gpu, Channel& channel, std::span<const Queued> jobs) noexcept REQUIRES(channel.queue_mutex);
  TransferArgs job_of(Gpu& gpu, Channel& channel, const Packing& packing, bool& there) REQUIRES(channel.queue_mutex);
  TransferArgs job_of(Gpu& gpu, Channel& channel, const LayoutTransfer& layouts, bool& there)
      REQUIRES(channel.queue_mutex);

  void lose(Gpu& gpu) noexcept REQUIRES(gpus_mutex_);
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
  // The layouts' device copies have a pool of their own: they count for no limit, since they live as long as the
  // datatypes do.
  const Pool::Owner staging_, uploads_;
  const std::unique_ptr<Peers> peers_;
  std::atomic<std::int64_t> kernels_{0}, copies_{0}, batches_{0}, batched_{0};
  Mutex registered_mutex_;
  /// Host memory of the caller's, mapped again for each GPU: registered memory is lost with the context of the GPU that
  /// it was registered for, and the others go on using theirs. By GPU and address; null: the runtime refuses.
  std::map<std::pair<int, void*>, void*> registered_ GUARDED_BY(registered_mutex_);
  HostPages host_views_;
  std::atomic<Gpu*> recent_{nullptr};  ///< that did a short transfer last
  Mutex gpus_mutex_;
  std::atomic<Gpu*> gpus_[max_gpus] = {};
  std::atomic<DefaultStream*> default_streams_[max_gpus] = {};
  /// Whose contexts have ended; other threads may have hold of them.
  std::vector<std::unique_ptr<Gpu>> lost_ GUARDED_BY(gpus_mutex_);
  std::atomic<bool> shared_[max_gpus] = {};  ///< with other processes
  std::atomic<bool> any_queued_{false};      ///< in some channel, or held there
};

namespace detail {
/// Of the process's engine, if there is one.
void launch_queued() noexcept;
}  // namespace detail

}  // namespace gpudt::device
