// The simulated device's streams and events. Each stream has a worker thread that runs its work in order; streams are
// independent but for the legacy default stream, which synchronises with all blocking streams of its device, in both
// directions. Work takes a little while (GPUDT_SIM_DELAY_US, by default 10; "0-500": at random), so that code that
// does not wait for it finds it not done.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "base/mutex.hpp"
#include "device/sim/include/cuda_runtime_api.h"

namespace gpudt::sim {

class Stream;
using StreamRef = std::shared_ptr<Stream>;

/// A point in a stream: reached when that much of its work has ended.
struct Point {
  StreamRef stream;
  std::uint64_t ticket = 0;
};

enum class Effort {
  device_work,  ///< takes the delay, is skipped after an error, and may fault
  bookkeeping,  ///< events, host functions: no delay, always runs
};

struct Operation {
  Effort effort;
  std::function<void()> work;
};

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  Stream(int device, unsigned flags, int priority, bool legacy);

  /// Queues work, once there is room for it (context_lock.hpp); returns the point that its end reaches. If the stream
  /// is being captured, the work goes into the graph (capture.hpp), and the point is reached.
  Point submit(Effort effort, std::function<void()> work);
  /// Queues work at once.
  Point put(Effort effort, std::function<void()> work);
  /// Does on the calling thread, a worker, what a stream of the device does.
  static void perform(int device, const Operation& operation);
  Point last();
  bool idle();
  const int device;
  const unsigned flags;
  const int priority;
  const bool legacy;

 private:
  friend class Executor;
  struct Item {
    Operation operation;
    std::vector<Point> after;
  };
  void work();

  std::deque<Item> queue_;
  std::uint64_t submitted_ = 0, completed_ = 0;
  bool started_ = false, closing_ = false;
  std::condition_variable_any wake_;
};

/// What an event holds; the words of an interprocess event lie in memory that both processes map.
struct EventWords {
  std::atomic<std::uint64_t> recorded{0};
  std::atomic<std::uint64_t> completed{0};
};

class Event {
 public:
  /// `words` may lie in memory shared with other processes: then changes are found by polling.
  Event(int device, unsigned flags, std::shared_ptr<EventWords> words, bool shared);
  void record(const StreamRef& stream);
  bool done() const { return words_->completed.load() >= words_->recorded.load(); }
  void wait() const { wait_for(*words_, words_->recorded.load(), shared_); }
  /// Work submitted to `stream` later waits for what has been recorded so far.
  void hold(const StreamRef& stream);
  bool recorded() const { return words_->recorded.load() > 0; }
  EventWords* words() const { return words_.get(); }
  std::chrono::steady_clock::time_point time() const;

  const int device;
  const unsigned flags;

 private:
  struct Timed {
    mutable Mutex mutex;
    std::chrono::steady_clock::time_point at GUARDED_BY(mutex);
  };
  static void wait_for(const EventWords& words, std::uint64_t count, bool shared);

  std::shared_ptr<EventWords> words_;
  std::shared_ptr<Timed> timed_ = std::make_shared<Timed>();
  bool shared_;
};
using EventRef = std::shared_ptr<Event>;

/// The process's streams. Made at first use, never destroyed: detached workers may outlive main().
class Executor {
 public:
  static Executor& instance();

  StreamRef create(int device, unsigned flags, int priority);
  /// What is queued is still done, and counts as the device's work until then.
  void destroy(const StreamRef& stream);
  StreamRef legacy(int device);
  /// Whether nothing is under way in the blocking streams that the legacy default stream waits for.
  bool default_idle(int device);  ///< needs an earlier legacy()

  void wait(const Point& point);
  void wait_device(int device);
  void destroy_device_streams(int device);

  /// cudaSuccess, or the error that device work has left behind (cudaErrorIllegalAddress).
  cudaError_t sticky(int device) const { return static_cast<cudaError_t>(sticky_[device].load()); }
  void set_sticky(int device, cudaError_t error) { sticky_[device].store(error); }

  static constexpr int max_devices = 16;

 private:
  friend class Stream;
  friend class Event;
  Executor();
  std::vector<Point> before(const Stream& stream) REQUIRES(mutex_);
  void wait(const Point& point, UniqueLock& lock);
  void delay() const;

  Mutex mutex_;                                        // also guards all streams' queues and tickets
  std::condition_variable_any completed_;              // notified when some work has ended
  std::vector<StreamRef> streams_ GUARDED_BY(mutex_);  // also destroyed ones, until their work has ended
  StreamRef legacy_[max_devices] GUARDED_BY(mutex_);
  std::atomic<int> sticky_[max_devices] = {};
  int least_delay_us_ = 2, most_delay_us_ = 2;
};

}  // namespace gpudt::sim
