// The engine under device.hpp: one per start(), over one Runtime. A Gpu is made at its first use; it has a channel per
// direction, which is a stream and the states of the transfers on it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "device/delay.hpp"
#include "device/device.hpp"
#include "device/peer.hpp"
#include "device/pool.hpp"
#include "device/runtime.hpp"
#include "device/tuning.hpp"

namespace gpudt::device {

class Channel;

/// What a transfer under way needs. Belongs to its channel for good, with its flag, counter and event; a Transfer only
/// borrows it, and `delete` (the end of Transfer's unique_ptr) gives it back.
struct Transfer::State {
  std::shared_ptr<Channel> channel;  ///< while lent out: keeps the state's own memory
  State* next_idle = nullptr;
  std::uint32_t* flag = nullptr;  ///< mapped memory, on a cache line of its own
  std::uint32_t sequence = 0;     ///< what the kernel sets the flag to; another value each time
  unsigned* counter = nullptr;    ///< device memory
  EventHandle event = nullptr;    ///< made when first needed
  bool by_event = false;          ///< its end is seen by the event
  Way way = Way::kernel;          ///< what moves the data
  bool finished = false;
  std::uint32_t polls = 0;
  std::chrono::steady_clock::time_point checked;  ///< when the stream was last asked for errors
  // One whose time tells how late its like begin:
  Delay* delay = nullptr;  ///< else null
  double expected_us = 0;
  std::chrono::steady_clock::time_point started, unfinished;  ///< unfinished: when it was last seen so

  bool done();
  void wait();
  void poll();
  void observe();
  void check_now_and_then();
  static void operator delete(State* state, std::destroying_delete_t) noexcept;
};

using StateOwner = std::unique_ptr<Transfer::State>;

/// One GPU's work in one direction, in order.
class Channel : public std::enable_shared_from_this<Channel> {
 public:
  Channel(Runtime& runtime, int ordinal);
  ~Channel() { close(); }
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  /// A state to start a transfer with; number of states is bounded by memory alone.
  StateOwner take();
  void put(Transfer::State* state) noexcept;

  /// `delay`, if not null, learns from this one, which takes `expected_us` if it begins at once.
  StateOwner start_kernel(KernelArgs& args, Delay* delay = nullptr, double expected_us = 0);
  StateOwner start_kernel(TransferArgs& args);
  /// With an event that other streams can wait for.
  StateOwner start_copy(void* to, const void* from, std::size_t bytes);
  /// The same for the copy engine. Null if the runtime refuses a box: nothing is lost by moving all of it again in
  /// another way.
  StateOwner start_boxes(const Boxes& boxes, Delay* delay = nullptr, double expected_us = 0);

  /// Waits for the work and frees what the runtime gave. States still lent out count as done from then on.
  void close() noexcept;
  bool closed() const { return closed_.load(std::memory_order_acquire); }

  Runtime& runtime() const { return *runtime_; }
  int ordinal() const { return ordinal_; }
  StreamHandle stream() const { return stream_; }

 private:
  void learn(Transfer::State& state, Delay* delay, double expected_us);
  static void set_completion(KernelArgs& args, const Transfer::State& state);
  void drain() noexcept;  ///< waits for the work

  struct Chunk {
    std::unique_ptr<Transfer::State[]> states;
    void* flags;
    void* counters;
  };
  void grow();

  Runtime* const runtime_;
  const int ordinal_;
  StreamHandle stream_ = nullptr;
  std::mutex mutex_;  // of idle_ and chunks_
  Transfer::State* idle_ = nullptr;
  std::vector<Chunk> chunks_;
  std::atomic<int> lent_{0};  ///< states, but for those of uploads, which are kept long after their end
  std::atomic<bool> closed_{false};
};

struct Gpu {
  Gpu(int its_ordinal, Traits its_traits, Tuning its_tuning)
      : ordinal(its_ordinal),
        traits(std::move(its_traits)),
        tuning(std::move(its_tuning)),
        kernels(tuning.model.lateness),
        copies{Delay(tuning.model.lateness), Delay(tuning.model.lateness)} {}
  const int ordinal;
  const Traits traits;
  const Tuning tuning;
  std::shared_ptr<Channel> channels[2];  ///< by Direction
  Delay kernels;
  Delay copies[2];  ///< from and to the host, by Direction
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
  /// Different for every engine of the process, so that what is left of an earlier one is recognised.
  std::uint64_t generation() const { return generation_; }
  Gpu& gpu(int ordinal);

  Transfer start(Direction direction, int ordinal, const datatype::Layout& layout, std::int64_t count, void* user,
                 std::int64_t begin, std::int64_t end, void* packed);
  Transfer copy(int ordinal, void* to, const void* from, std::size_t bytes);
  Transfer transfer(int ordinal, const Side& from, const Side& to, std::int64_t begin, std::int64_t end);
  bool register_host(int ordinal, void* address, std::size_t bytes);
  Movements movements() const;
  std::vector<std::string> cost_sources() const;

  static constexpr int max_gpus = datatype::Layout::attachment_slots;

 private:
  /// A message, or the range of it that is to move.
  struct Message {
    const datatype::Layout* layout;  ///< null: contiguous
    datatype::Shape shape;
    void* user;
    std::int64_t begin, end;
    void* packed;
    MemoryKind packed_kind;
    bool peer = false;  ///< one side is, or may be, another GPU's or process's
  };
  /// What the model says of the ways to move one message.
  struct Forecast {
    Boxes boxes;  ///< for the copy engine; none: it cannot
    double kernel_us, kernel_late_us, copy_us, copy_late_us;
  };
  Forecast foresee(const Gpu& gpu, Direction direction, const Message& message) const;
  bool prefers_copy(const Message& message, const Forecast& forecast) const;
  static Channel& channel_of(const Gpu& gpu, Direction direction, const Message& message);
  StateOwner start_copy_engine(Gpu& gpu, Direction direction, const Message& message, const Forecast& forecast);
  StateOwner start_kernel(Gpu& gpu, Direction direction, const Message& message, const Forecast& forecast);
  StateOwner try_boxes(Gpu& gpu, const Side& from, const datatype::Shape& from_shape, const Side& to,
                       const datatype::Shape& to_shape, std::int64_t bytes);
  Transfer fuse(Gpu& gpu, const Side& from, const datatype::Shape& from_shape, const Side& to,
                const datatype::Shape& to_shape, std::int64_t bytes);
  void trace(const Gpu& gpu, Direction direction, const Message& message, const Forecast& forecast, Way chosen) const;
  Transfer move(Gpu& gpu, Direction direction, const Message& message);

  const std::unique_ptr<Runtime> runtime_;
  const std::uint64_t generation_;
  const Way way_;
  const std::string tuning_;
  void (*const warn_)(const std::string&);
  void (*const trace_)(const std::string&);
  // The layouts' device copies have a pool of their own: they count for no limit, since they live as long as the
  // datatypes do.
  const Pool::Owner staging_, uploads_;
  const std::unique_ptr<Peers> peers_;
  std::atomic<std::int64_t> kernels_{0}, copies_{0};
  std::mutex registered_mutex_;
  std::map<void*, bool> registered_;  ///< host memory: whether the runtime has taken it
  std::mutex gpus_mutex_;
  std::atomic<Gpu*> gpus_[max_gpus] = {};
};

}  // namespace gpudt::device
