// What GPUDT_REPORT counts: buffers by call, way and layout, time, and what was slow. What rank 0 makes of it at
// MPI_Finalize is in report.cpp. Without a report each function here is one branch.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string_view>

#include "datatype/layout.hpp"

namespace gpudt::interpose {

struct Config;

extern bool report_wanted;
extern bool trace_wanted;
inline bool tracing() {
  return trace_wanted;
}

using ReportClock = std::chrono::steady_clock;
/// Of no meaning if no report is wanted.
inline ReportClock::time_point report_now() {
  return report_wanted ? ReportClock::now() : ReportClock::time_point();
}

/// Names of ways that the report itself knows; the others are those of protocols (transport/protocol.hpp).
inline constexpr const char* went_by_kernels = "kernels";
inline constexpr const char* went_staged = "mapped staging";

/// Counts a buffer of `call` whose data went by `way`. Both must be string literals.
void report_buffer(const char* call, const char* way, datatype::ShapeKind kind, std::int64_t bytes,
                   std::chrono::nanoseconds taken);

/// One buffer in device memory, from the call to which it was passed until it may be used again. All copies of its
/// DeviceBuffer share it; the last one's end is the buffer's, if end() has not been called.
class Reported {
 public:
  /// `call` and `way` must be string literals.
  Reported(const char* call, const char* way, datatype::ShapeKind kind, std::int64_t bytes)
      : call_(call),
        way_(way),
        chosen_(way),
        kind_(kind),
        bytes_(bytes),
        open_(!std::string_view(call).ends_with("_init")) {}
  ~Reported() { end(); }
  Reported(const Reported&) = delete;
  Reported& operator=(const Reported&) = delete;

  /// Of a persistent request, each time.
  void begin() {
    open_ = true;
    way_ = chosen_;
    began_ = ReportClock::now();
  }
  void end() {
    if (!open_) return;
    open_ = false;
    report_buffer(call_, way_, kind_, bytes_, ReportClock::now() - began_);
  }
  /// The data really went by `way`, a string literal.
  void went(const char* way) { way_ = way; }
  /// Of a receive: the length of the message, which may be shorter than the buffer.
  void received(std::int64_t bytes) { bytes_ = bytes; }
  void began(ReportClock::time_point at) { began_ = at; }

 private:
  const char* const call_;
  const char* way_;
  const char* const chosen_;
  const datatype::ShapeKind kind_;
  std::int64_t bytes_;
  bool open_;  ///< a persistent request is but made at first
  ReportClock::time_point began_ = ReportClock::now();
};
using ReportedRef = std::shared_ptr<Reported>;

inline void report_went(const ReportedRef& buffer, const char* way) {
  if (buffer) buffer->went(way);
}
inline void report_begin(const ReportedRef& buffer) {
  if (buffer) buffer->begin();
}
inline void report_end(const ReportedRef& buffer) {
  if (buffer) buffer->end();
}

/// Time inside MPI calls, each moment counted once: what is measured within what is measured is part of that.
enum class Clock {
  transfer,    ///< waiting for packs and unpacks, or for the other process's GPU
  mpi,         ///< inside MPI's own calls with staged buffers; collectives between GPUs
  completion,  ///< inside calls that complete requests, while there are some for device buffers
};
inline constexpr int clocks = 3;

/// Adds the time of its own life to a clock, if a report is wanted.
class Timed {
 public:
  /// `call`: of Clock::completion, whose calls are counted by name; a string literal.
  explicit Timed(Clock clock, const char* call = nullptr) : clock_(clock), call_(call) {
    if (report_wanted) start();
  }
  ~Timed() {
    if (outermost_) stop();
  }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  void start();
  void stop();

  Clock clock_;
  const char* call_;
  bool outermost_ = false;
  ReportClock::time_point begin_;
};

/// `call()`, whose time is spent in MPI.
template <class Call>
int in_mpi(Call call) {
  const Timed timed(Clock::mpi);
  return call();
}

/// What becomes of messages in device memory that are offered to their receivers (transport/peer/peer.hpp).
enum class PeerEvent {
  offered,     ///< the receiver's GPU may fetch it
  buffered,    ///< of these: moved to the segment, since nobody received it for a while
  refused,     ///< of these: sent through the segment, since the receiver could not fetch it
  declined,    ///< ... or since this process, on the receiver's GPU, could not write it
  packed,      ///< of these: packed before it can be fetched
  remote,      ///< of these: to a process that shares no memory with this one
  put,         ///< of these: written to the receiver's memory by this process
  collective,  ///< a collective that went as messages (collectives/peer_exchange.hpp)
};
inline constexpr int peer_events = 8;
void report_peer(PeerEvent event);

/// What was slow and can be avoided; report_hints.cpp says how.
enum class Fallback {
  host_receive,            ///< a message in device memory was received into host memory
  no_room,                 ///< a message was not offered: too many were under way
  operator_of_host,        ///< a reduction whose operator or type GPUs do not reduce
  nonblocking_collective,  ///< a nonblocking or persistent collective that has gone through the host
};
inline constexpr int fallback_kinds = 4;
void report_fallback(Fallback kind);

/// There are no peer transfers in this run; `why` must be a string literal.
void report_no_peers(const char* why);
/// A reason for which the report has a remedy of its own.
inline constexpr const char* no_shared_memory = "/dev/shm has no room";
/// This process's GPU does not reach memory of another process; the first reason is kept.
void report_not_mapped(const std::string& why);

/// Whose counts a rank prints.
enum class Ranks {
  all,   ///< of MPI_COMM_WORLD, gathered by rank 0, which prints its own alone if others do not answer in time
  own,   ///< ranks are known to lack the library, and this is the lowest one that has it
  none,  ///< another rank prints its own
};
/// In MPI_Init, before anything is counted.
void report_start(const Config& config);
/// Prints the report on stderr, or writes it to the file that GPUDT_REPORT names. With Ranks::all collective. MPI must
/// be active, and no user communication may follow.
void report_print(Ranks ranks);

}  // namespace gpudt::interpose
