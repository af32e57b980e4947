// What GPUDT_REPORT=1 counts, and the table that rank 0 prints at MPI_Finalize.
#pragma once

#include <chrono>
#include <cstdint>

#include "datatype/layout.hpp"
#include "interpose/support/protocol.hpp"

namespace gpudt::interpose {

extern bool report_wanted;
extern bool trace_wanted;
inline bool tracing() {
  return trace_wanted;
}

void report_count(Protocol protocol, datatype::ShapeKind kind, std::int64_t bytes);
/// Counts one buffer argument that goes by `protocol`.
inline void report_call(Protocol protocol, datatype::ShapeKind kind, std::int64_t bytes) {
  if (report_wanted) report_count(protocol, kind, bytes);
}

enum class Clock { transfer, mpi };  ///< time spent waiting for packs and unpacks; inside MPI with staged buffers
void report_time(Clock clock, std::chrono::nanoseconds spent);

/// Adds the time of its own life to a clock, if a report is wanted.
class Timed {
 public:
  explicit Timed(Clock clock) : clock_(clock) {
    if (report_wanted) begin_ = std::chrono::steady_clock::now();
  }
  ~Timed() {
    if (report_wanted) report_time(clock_, std::chrono::steady_clock::now() - begin_);
  }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  Clock clock_;
  std::chrono::steady_clock::time_point begin_;
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
  packed,      ///< of these: packed before it can be fetched
  remote,      ///< of these: to a process that shares no memory with this one
  put,         ///< of these: written to the receiver's memory by this process
  collective,  ///< a collective that went as messages (collectives/peer_exchange.hpp)
};
inline constexpr int peer_events = 7;
void report_peer(PeerEvent event);

/// Counts a message that fell back to a slower protocol. `reason` must be a string literal.
void report_fallback(const char* reason);

/// Whose counts a rank prints.
enum class Ranks {
  all,   ///< of MPI_COMM_WORLD, gathered by rank 0, which prints its own alone if others do not answer in time
  own,   ///< ranks are known to lack the library, and this is the lowest one that has it
  none,  ///< another rank prints its own
};
/// Prints one table on stderr. With Ranks::all collective. MPI must be active, and no user communication may follow.
void report_print(Ranks ranks);

}  // namespace gpudt::interpose
