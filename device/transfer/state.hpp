// What a transfer under way needs: the flag that shows its end, and what is learnt from its duration.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>

#include "datatype/layout.hpp"
#include "device/choice/clock.hpp"
#include "device/choice/delay.hpp"
#include "device/kernels/kernel_args.hpp"
#include "device/memory/staging.hpp"
#include "device/runtime/error.hpp"
#include "device/runtime/runtime.hpp"
#include "device/transfer/transfer.hpp"

namespace gpudt::device {

class Channel;
class Resident;

/// What to learn from the duration of a transfer: the expected duration without start delay, and the Delay to update.
struct Lesson {
  Delay* delay = nullptr;  ///< null: nothing is learnt
  double expected_us = 0;
  bool roughly = false;  ///< Delay::observe()
};

/// A whole extent that the copy engine copied to the host, to be packed by the host.
struct CopiedSpan {
  Staging memory;  ///< the span; empty: nothing is to be packed
  const datatype::Layout* layout;
  std::int64_t bytes;   ///< of the message
  std::int64_t offset;  ///< of its first byte, relative to the user's address
  void* packed;

  void pack();
};

/// What a transfer under way needs. The channel owns it with its flag and counter; a Transfer borrows it, and its End
/// gives it back to the channel.
struct Transfer::State {
  std::shared_ptr<Channel> channel;  ///< while lent out: keeps the memory of the state alive
  State* next_idle = nullptr;
  std::uint32_t* flag = nullptr;  ///< mapped memory on a cache line of its own; a probe also writes behind it
  std::uint32_t sequence = 0;     ///< the value that the kernel sets the flag to, different for each transfer
  unsigned* counter = nullptr;    ///< device memory
  Way way = Way::kernel;          ///< what moves the data; undefined while queued
  bool finished = false;
  bool is_probe = false;  ///< Channel::probe()
  bool counted = true;    ///< in Channel::lent_: a message waits for its end
  /// The transfer waits in its channel's queue. Only the thread that launches it touches the other members until this
  /// is false again.
  std::atomic<bool> queued{false};
  std::optional<Error> failure;  ///< why the launch failed
  std::uint32_t polls = 0;
  std::chrono::steady_clock::time_point checked;  ///< when the stream was last checked for errors
  Resident* resident = nullptr;                   ///< whose persistent kernel does it; null: a launch of its own
  Lesson lesson;
  CopiedSpan copied_span;
  Clock::time_point started, unfinished;  ///< unfinished: time of the latest poll before its end

  bool done();
  /// done() for a copy that nothing is learnt from, without a look for errors: queue_mutex may be locked.
  bool landed() const;
  bool flag_is_set() const;
  void wait();
  void fail(const std::exception& why);
  void poll();
  void observe();
  void check_now_and_then();
};

using StateOwner = Transfer::StateOwner;

inline Completion completion_of(const Transfer::State& state) {
  return {state.counter, state.flag, state.sequence};
}

}  // namespace gpudt::device
