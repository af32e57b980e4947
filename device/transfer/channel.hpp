// One GPU's stream of one direction, a second stream for probes, and the states of the transfers on them.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/mutex.hpp"
#include "device/choice/chooser.hpp"
#include "device/choice/delay.hpp"
#include "device/kernels/kernel_args.hpp"
#include "device/runtime/runtime.hpp"
#include "device/transfer/points.hpp"
#include "device/transfer/state.hpp"
#include "device/transfer/work.hpp"

namespace gpudt::device {

class ContextWatch;
class Engine;

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
    mark(point::kernel_planned);
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
  /// How often whoever waits asks before it lets other threads work; also after close().
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

}  // namespace gpudt::device
