// What a transfer under way needs: the flag that tells its end, and what is learnt from its duration.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <optional>

#include "datatype/layout.hpp"
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

}  // namespace gpudt::device
