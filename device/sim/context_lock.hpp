// The effect of the lock of CUDA's contexts: a launch holds it, shared with others, also while it waits for room in its
// stream's queue; a call that changes the context holds it alone. The simulated device has such queues only if
// GPUDT_SIM_QUEUE says how many operations they hold. GPUDT_SIM_CHANGE_US: how long a change takes.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <random>
#include <thread>
#include <utility>

#include "base/mutex.hpp"
#include "base/numbers.hpp"

namespace gpudt::sim {

/// How much work a stream's queue holds; 0: any amount.
inline std::size_t queue_length() {
  static const std::size_t length = [] {
    const char* const text = std::getenv("GPUDT_SIM_QUEUE");
    return static_cast<std::size_t>(parse_number(text == nullptr ? "" : text, 1024).value_or(0));
  }();
  return length;
}

inline SharedMutex& context_lock() {
  static auto* const lock = new SharedMutex;  // workers may outlive main()
  return *lock;
}

/// Held by what changes a context: its memory, streams and events.
class ContextChange {
 public:
  ContextChange() NO_THREAD_SAFETY_ANALYSIS {  // only if there are queues
    if (held_) context_lock().lock();
    static const std::pair<int, int> takes_us = [] {
      const char* const text = std::getenv("GPUDT_SIM_CHANGE_US");
      return parse_range(text == nullptr ? "" : text).value_or(std::pair(0, 0));
    }();
    if (takes_us.second == 0) return;
    thread_local std::minstd_rand random{std::random_device{}()};
    const int us = std::uniform_int_distribution<int>(takes_us.first, takes_us.second)(random);
    std::this_thread::sleep_for(std::chrono::microseconds(us));
  }
  ~ContextChange() NO_THREAD_SAFETY_ANALYSIS {
    if (held_) context_lock().unlock();
  }
  ContextChange(const ContextChange&) = delete;
  ContextChange& operator=(const ContextChange&) = delete;

 private:
  const bool held_ = queue_length() != 0;
};

}  // namespace gpudt::sim
