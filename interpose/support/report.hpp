// What GPUDT_REPORT counts: buffers by call, way and layout, time, and what was slow. Rank 0 writes the
// report at MPI_Finalize (report.cpp). Without a report each function here costs one branch.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string_view>

#include "base/function_ref.hpp"
#include "datatype/layout.hpp"

namespace gpudt::interpose {

struct Config;

extern bool report_wanted;
/// Whether each buffer in device memory has a Reported: for the report, or for GPUDT_REQUIRE.
extern bool buffers_followed;
extern bool trace_wanted;
inline bool tracing() {
  return trace_wanted;
}

using ReportClock = std::chrono::steady_clock;
/// The current time; not meaningful if no report is wanted.
inline ReportClock::time_point report_now() {
  return report_wanted ? ReportClock::now() : ReportClock::time_point();
}

/// Ways that are named here; the other ways are protocols (transport/protocol.hpp).
inline constexpr const char* went_by_kernels = "kernels";
inline constexpr const char* went_staged = "mapped staging";

/// The way that data went and, if it led through the host, the reason; else null. String literals.
struct Went {
  const char* way;
  const char* why_through_host = nullptr;
};

/// To be called when `bytes` bytes of a buffer of `call` have gone through the host (require.hpp).
void require_checks(const char* call, const Went& went, std::int64_t bytes);

/// Counts a buffer of `call`, a string literal, whose data went so.
void report_buffer(const char* call, const Went& went, datatype::ShapeKind kind, std::int64_t bytes,
                   std::chrono::nanoseconds taken);
/// Sets `value` to counter number `index` of gpudt_counter() (gpudt.h) and returns its name; null beyond the last.
const char* report_counter(int index, std::int64_t& value);
/// What this counter counts.
const char* report_counter_meaning(int index);

/// One buffer in device memory, from the call to which it was passed until it may be used again. All copies of its
/// DeviceBuffer share it; the destructor calls end(), which also decides whether the way is one that GPUDT_REQUIRE
/// forbids (require.hpp).
class Reported {
 public:
  /// `call` must be a string literal.
  Reported(const char* call, const Went& went, datatype::ShapeKind kind, std::int64_t bytes)
      : call_(call),
        went_(went),
        chosen_(went),
        kind_(kind),
        bytes_(bytes),
        open_(!std::string_view(call).ends_with("_init")) {}
  ~Reported() { end(); }
  Reported(const Reported&) = delete;
  Reported& operator=(const Reported&) = delete;

  /// To be called at each start of a persistent request.
  void begin() {
    open_ = true;
    went_ = chosen_;
    began_ = ReportClock::now();
  }
  void end() {
    if (!open_) return;
    open_ = false;
    report_buffer(call_, went_, kind_, bytes_, ReportClock::now() - began_);
    if (went_.why_through_host != nullptr) require_checks(call_, went_, bytes_);
  }
  /// Records that the data went so instead of the chosen way.
  void went(const Went& went) { went_ = went; }
  const Went& went() const { return went_; }
  /// Records why the chosen way leads through the host, for a persistent request at each start.
  void because(const char* why) { went_.why_through_host = why; }
  /// The buffer is not counted, because the call goes on with another object for it.
  void drop() { open_ = false; }
  /// Sets the bytes of the received message, which may be shorter than the buffer.
  void received(std::int64_t bytes) { bytes_ = bytes; }
  void began(ReportClock::time_point at) { began_ = at; }

 private:
  const char* const call_;
  Went went_;
  const Went chosen_;
  const datatype::ShapeKind kind_;
  std::int64_t bytes_;
  bool open_;  ///< false until a persistent request is started
  ReportClock::time_point began_ = ReportClock::now();
};
using ReportedRef = std::shared_ptr<Reported>;

inline void report_went(const ReportedRef& buffer, const Went& went) {
  if (buffer) buffer->went(went);
}
inline void report_begin(const ReportedRef& buffer) {
  if (buffer) buffer->begin();
}
using VisitReported = FunctionRef<void(Reported&)>;
inline void report_visit(const ReportedRef& buffer, VisitReported visit) {
  if (buffer) visit(*buffer);
}

/// Clocks of the time inside MPI calls. Only the outermost Timed object of a thread counts, so that they do not
/// overlap.
enum class Clock {
  transfer,    ///< waiting for packs and unpacks, or for the other process's GPU
  mpi,         ///< inside MPI's own calls with staged buffers; collectives between GPUs
  completion,  ///< inside calls that complete requests for device buffers
};
inline constexpr int clocks = 3;

/// Adds the lifetime of the object to a clock, if a report is wanted.
class Timed {
 public:
  /// `call`: the name of the MPI call, a string literal, for Clock::completion, which counts calls by name.
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

/// Returns `call()`, and adds its time to Clock::mpi.
template <class Call>
int in_mpi(Call call) {
  const Timed timed(Clock::mpi);
  return call();
}

/// What becomes of messages in device memory that are offered to their receivers (transport/peer/peer.hpp).
enum class PeerEvent {
  offered,     ///< the receiver's GPU may fetch it
  buffered,    ///< of these: copied to the segment, because no receiver claimed it for a while
  refused,     ///< of these: sent through the segment, because the receiver could not fetch it
  declined,    ///< of these: sent so because this process, on the receiver's GPU, could not write it
  packed,      ///< of these: packed by the sender to be fetched
  remote,      ///< of these: to a process that shares no memory with this one
  put,         ///< of these: written to the receiver's memory by this process
  collective,  ///< a collective by GPUs: by kernels on the boards, or as messages
  from_host,   ///< a message from host memory, offered for the receiver's GPU
};
inline constexpr int peer_events = 9;
void report_peer_now(PeerEvent event);
inline void report_peer(PeerEvent event) {
  if (buffers_followed) report_peer_now(event);
}

/// What was slow and can be avoided; report_hints.cpp says how.
enum class Fallback {
  host_receive,            ///< a message in device memory was received into host memory
  no_room,                 ///< a message was not offered: too many were under way
  operator_of_host,        ///< a reduction whose operator or type GPUs do not reduce
  nonblocking_collective,  ///< a nonblocking or persistent collective that has gone through the host
};
inline constexpr int fallback_kinds = 4;
void report_fallback_now(Fallback kind);
inline void report_fallback(Fallback kind) {
  if (report_wanted) report_fallback_now(kind);
}

/// Records why there are no peer transfers in this run; `why` must be a string literal.
void report_no_peers(const char* why);
/// A value of `why` for which report_hints.cpp has a remedy.
inline constexpr const char* no_shared_memory = "/dev/shm has no room";
/// Records why this process's GPU does not reach memory of another process; only the first reason is kept.
void report_not_mapped(const std::string& why);

/// Whose counts a rank prints.
enum class Ranks {
  all,   ///< of MPI_COMM_WORLD: rank 0 gathers them, and prints only its own if the gather times out
  own,   ///< its own: some ranks lack the library, and this is the lowest one that has it
  none,  ///< nothing: another rank prints its own
};
/// To be called in MPI_Init, before anything is counted.
void report_start(const Config& config);
/// Prints the report on stderr, or writes it to the file that GPUDT_REPORT names. Collective with Ranks::all. MPI must
/// be active, and no user communication may follow.
void report_print(Ranks ranks);

}  // namespace gpudt::interpose
