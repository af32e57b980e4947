// One GPU's stream of one direction, a second stream, and the states of the transfers on them.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/mutex.hpp"
#include "device/choice/copy_plan.hpp"
#include "device/choice/delay.hpp"
#include "device/kernels/kernel_args.hpp"
#include "device/runtime/runtime.hpp"
#include "device/transfer/context_watch.hpp"
#include "device/transfer/points.hpp"
#include "device/transfer/state.hpp"
#include "device/transfer/work.hpp"

namespace gpudt::device {

class Engine;

/// One GPU's work in one direction, in order.
class Channel : public std::enable_shared_from_this<Channel> {
 public:
  Channel(Engine& engine, int ordinal, std::shared_ptr<const ContextWatch> watch, const Lateness& lateness);
  ~Channel() { close(); }
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  /// Makes what the first thousand transfers would make. Throws Error.
  void prepare() EXCLUDES(queue_mutex);
  /// Lends a state to a new transfer. The number of states is limited only by memory.
  StateOwner take();
  /// Null if one cannot be had in `time` (in_time()).
  StateOwner take_within(std::chrono::milliseconds time);
  void put(Transfer::State* state) noexcept;

  void start_kernel(Transfer::State& state, KernelArgs& args, const Lesson& lesson) REQUIRES(queue_mutex);
  void start_kernel(Transfer::State& state, TransferArgs& args, const Lesson& lesson) REQUIRES(queue_mutex);
  /// Launches a kernel whose duration is not used for learning. `args` are complete except for the completion.
  template <class Args>
  void start_kernel(Transfer::State& state, Args& args) REQUIRES(queue_mutex) {
    args.completion = completion_of(state);
    mark(point::kernel_planned);
    runtime_->launch(ordinal_, args, stream_);
    kernel_launched(state);
  }
  /// Copies on this channel's stream, in which copied_for() lets another stream wait for it.
  StateOwner start_copy(void* to, const void* from, std::size_t bytes);
  /// Work given to the stream of `other`, a channel of the same GPU, waits for what start_copy() has copied.
  void copied_for(const Channel& other) const { runtime_->stream_wait_event(ordinal_, other.stream_, uploaded_); }
  /// Gives the copies of `copy_plan` to the stream. False if the runtime refuses a box; then nothing is under way, and
  /// the caller moves all of the data in another way.
  bool start_copies(Transfer::State& state, const CopyPlan& copy_plan, const Lesson& lesson = {}) REQUIRES(queue_mutex);
  /// start_copies() for copies from other GPUs. They alternate between two streams, so that the link does not idle
  /// between two transfers.
  bool start_peer_copies(Transfer::State& state, const CopyPlan& copy_plan) REQUIRES(queue_mutex);
  /// start_copies() beside the channel's other work, which neither waits for the copies nor is judged by them. False
  /// also if there is no second stream, and none can be made without waiting for launches.
  bool start_aside(Transfer::State& state, const CopyPlan& copy_plan) REQUIRES(queue_mutex);
  /// start_copies() for runs, which Runtime::copy_runs_async() takes several at a time.
  bool start_runs(Transfer::State& state, const CopyPlan& runs, const Lesson& lesson) REQUIRES(queue_mutex);

  /// The start delays of this direction. They are tracked per direction: on a time-sliced GPU a pack can start
  /// immediately after an unpack had to wait, because the time slice now belongs to this process.
  Delay kernels, copies;  ///< copies: from or to the host
  /// The start delay of calls that copy several runs from the host, some shorter than CostModel::engine_row_bytes.
  Delay short_runs;
  /// Guards the queue and the order of launches. It is taken before any other lock of device/.
  Mutex queue_mutex ACQUIRED_BEFORE(mutex_);
  std::vector<Queued> queue GUARDED_BY(queue_mutex);
  /// Transfers whose mark the program's default stream has not reached; then they are queued.
  std::vector<Queued> held GUARDED_BY(queue_mutex);
  /// Notes that a running kernel has been given the job that sets the state's flag.
  void handed_over(Transfer::State& state, const Lesson& lesson) REQUIRES(queue_mutex);
  /// Notes that the stream has been given the work that sets the state's flag.
  void launched(Transfer::State& state) REQUIRES(queue_mutex);
  /// Notes that the latest launch also sets the flag of this state.
  void launched_too(Transfer::State& state) REQUIRES(queue_mutex);
  /// Whether the flag of the latest launch is set.
  bool idle() const REQUIRES(queue_mutex) { return latest_.ended(); }
  /// Whether nothing is under way or queued. False also while another thread uses the queue.
  bool at_rest() EXCLUDES(queue_mutex);
  /// Whether the latest two launches are both under way, and have been for a short time only. Then queued transfers
  /// wait until one of them ends, so that the next launch takes more of them.
  bool crowded() REQUIRES(queue_mutex);
  bool may_hold() const REQUIRES(queue_mutex);
  /// Launches what is queued, and held transfers whose mark is reached, unless the channel is crowded(). Returns
  /// whether something remains.
  bool launch_queued() noexcept EXCLUDES(queue_mutex);
  /// launch_queued() even if the channel is crowded(): then each queued transfer is under way or has failed.
  void launch_all_queued() noexcept EXCLUDES(queue_mutex);
  /// Cancels a held transfer.
  void drop_held(Transfer::State& state) noexcept EXCLUDES(queue_mutex);
  /// Launches a job that the persistent kernel had been given and has not done.
  void launch_again(const TakenBack& job) noexcept EXCLUDES(queue_mutex);

  /// Launches a kernel with next to nothing to do, which takes `expected_us` without start delay, to check whether
  /// start delays persist. Nobody waits for it; threads that poll other transfers check it. No-op while the previous
  /// probe is still running.
  void probe(double expected_us) noexcept REQUIRES(queue_mutex);
  static constexpr std::int64_t probe_bytes = 16;  ///< that a probe moves
  void look_after_probe() noexcept {
    if (probing_.load(std::memory_order_relaxed)) poll_probe();
  }
  void poll_probe() noexcept;
  void look_in_time() noexcept REQUIRES(queue_mutex);

  /// Throws if the work has failed.
  void check();
  /// Throws if the context has ended: the stream then no longer exists.
  void check_context() const { watch_->check(); }
  /// Throws if the context had ended when the channel was closed.
  void check_lost() const;
  /// The number of the GPU's context, unique within the process.
  std::uint64_t generation() const { return generation_; }

  /// Waits for the work and frees the runtime's resources. States that are still lent out count as done from then on,
  /// but the host does not pack their spans any more. If the context has ended, nothing is waited for or freed, and
  /// these states fail.
  void close() noexcept;
  bool closed() const { return closed_.load(std::memory_order_acquire); }

  Runtime& runtime() const { return *runtime_; }
  int ordinal() const { return ordinal_; }
  StreamHandle stream() const { return stream_; }
  /// Polls of a waiting thread before it yields; valid after close(), too.
  std::uint32_t polls_before_yield() const { return polls_before_yield_; }

 private:
  template <class Give>
  bool give_copies(Transfer::State& state, const Lesson& lesson, StreamHandle stream, const Give& give)
      REQUIRES(queue_mutex);
  bool give_copies(Transfer::State& state, const CopyPlan& copy_plan, const Lesson& lesson, StreamHandle stream)
      REQUIRES(queue_mutex);
  void do_not_count(Transfer::State& state);
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
  void grow() EXCLUDES(mutex_);
  bool make_second_stream(std::chrono::milliseconds time) REQUIRES(queue_mutex);
  void make_counters(Chunk& chunk);
  void free_of_gpu(const Chunk& chunk) noexcept;

  Engine* const engine_;
  Runtime* const runtime_;
  const int ordinal_;
  std::shared_ptr<const ContextWatch> watch_;  ///< null after close()
  const std::uint64_t generation_;
  const std::uint32_t polls_before_yield_;
  StreamHandle stream_ = nullptr;
  EventHandle uploaded_ = nullptr;  ///< recorded after the latest start_copy()
  /// Created by the first start_peer_copies() that finds the first stream at work, or the first start_aside().
  std::atomic<StreamHandle> second_stream_{nullptr};
  bool on_second_ GUARDED_BY(queue_mutex) = false;  ///< where the latest peer copies went
  /// The flag value that shows the end of a launch. Flags are never freed before the channel is closed.
  struct Launch {
    std::uint32_t* flag = nullptr;
    std::uint32_t sequence = 0;
    /// A later value of the flag is that of a later transfer with the same state: this launch has ended, too.
    bool ended() const {
      return flag == nullptr ||
             static_cast<std::int32_t>(std::atomic_ref(*flag).load(std::memory_order_acquire) - sequence) >= 0;
    }
  };
  Launch latest_ GUARDED_BY(queue_mutex), one_before_ GUARDED_BY(queue_mutex);
  std::chrono::steady_clock::time_point latest_began_ GUARDED_BY(queue_mutex);
  std::uint32_t crowded_polls_ GUARDED_BY(queue_mutex) = 0;  ///< since latest_began_ was looked at
  Mutex probe_mutex_;  // only close() blocks on it: its holder may wait for queue_mutex
  Transfer probe_ GUARDED_BY(probe_mutex_);
  /// Created for the first probe: a late probe must not delay other work.
  StreamHandle probe_stream_ GUARDED_BY(probe_mutex_) = nullptr;
  int slow_probes_ GUARDED_BY(probe_mutex_) = 0;  ///< consecutive launches of probes that took long
  int looks_left_ GUARDED_BY(queue_mutex) = 0;    ///< polls of the probe left while copies are being given
  std::atomic<bool> probing_{false};
  Mutex mutex_;
  Transfer::State* idle_ GUARDED_BY(mutex_) = nullptr;
  std::vector<Chunk> chunks_ GUARDED_BY(mutex_);
  std::atomic<bool> unprepared_{true};  ///< true while freshly allocated states are still being cleared on the stream:
                                        ///< the next launch is slower, so its time is not used for learning
  std::atomic<int> lent_{0};            ///< states lent out, to transfers that messages wait for
  bool lost_ = false;                   ///< the context had ended when the channel was closed
  std::atomic<bool> closed_{false};
};

}  // namespace gpudt::device
