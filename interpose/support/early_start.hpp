// Operations in streams that are started before their streams have come to them, so that their messages are matched
// meanwhile (streams/service.hpp).
#pragma once

#include <atomic>
#include <utility>

#include "device/device.hpp"

namespace gpudt::interpose {

/// While it lives, the calling thread starts a send or a receive that does not touch its buffer before `mark`. One that
/// cannot wait like this is refused: then nothing is started, and the start returns MPI_SUCCESS without a request.
class EarlyStart {
 public:
  explicit EarlyStart(const device::StreamMark& mark)
      : ordered_(/*ordered=*/true, mark), outer_(std::exchange(current, this)) {
    any.store(true, std::memory_order_relaxed);
  }
  ~EarlyStart() { current = outer_; }
  EarlyStart(const EarlyStart&) = delete;
  EarlyStart& operator=(const EarlyStart&) = delete;

  bool refused() const { return refused_; }

  /// Whether the calling thread starts an operation early.
  static bool is_active() { return any.load(std::memory_order_relaxed) && current != nullptr; }
  /// Refuses that operation; false if there is none.
  static bool refuse() {
    if (!is_active()) return false;
    return current->refused_ = true;
  }

 private:
  /// Whether there has been one, so that programs without streams do not look for the thread's.
  static inline constinit std::atomic<bool> any{false};
  static inline constinit thread_local EarlyStart* current = nullptr;

  const device::OrderedByStream ordered_;
  EarlyStart* const outer_;
  bool refused_ = false;
};

}  // namespace gpudt::interpose
