// Chooses the protocol of a buffer: a table of protocols in order of preference, and a function that returns the first
// one without an obstacle. All here is pure: what is known is in the arguments.
//
// It is asked when a buffer has been resolved (device_buffer.cpp: the receiver, if any, is not looked at yet), by the
// sender of a message that MPI cannot have as it is (peer/sender.cpp), and by its receiver (peer/receiver.cpp), which
// alone can tell whether its GPU reaches the sender's memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "interpose/support/protocol.hpp"
#include "interpose/transport/peer/shared_segment.hpp"

namespace gpudt::interpose {

/// What is known of a message, or of another buffer that MPI is to have.
struct Message {
  std::int64_t bytes = 0;
  bool contiguous = false;
  bool divided = false;  ///< among several memories
  /// Estimated time of packing it into device memory, if it is staged there (Protocol::device_staging); negative: it is
  /// staged in host memory, or the time is not known.
  double packing_us = -1;
};

/// What is known of the receiver.
enum class Receiver : std::uint8_t {
  unknown,      ///< not looked at, or there is not one process alone
  unreachable,  ///< it has no gpudt, or is on another node and cannot be told about messages
  sharing,      ///< it looks for RTS messages, and shares memory with this process
  remote,       ///< it shares no memory, and may look for RTS messages
};

/// What is known of the way there.
struct Route {
  Receiver receiver = Receiver::unknown;
  bool mpi_takes_device_memory = false;
  /// MPI is to have host memory: the message may be an RTS of a process of this node, or MPI reads the data on the
  /// host.
  bool host_memory_only = false;
  /// It looks for the RTS of a short message, and uses another GPU, or all is to be offered.
  bool expects_short = false;
  std::size_t forward_max = 0;  ///< bytes of a message that MPI is given in device memory; 0: any
  ForcedProtocol forced{};
  bool backing_off = false;  ///< the receiver could not fetch earlier messages of this kind: none is offered just now
};

struct ProtocolRow {
  Protocol protocol;
  /// Why the message cannot go so, in a few words; null: it can.
  const char* (*obstacle)(const Message&, const Route&);
};
inline constexpr std::size_t protocol_rows = protocol_names.size();
/// The last row has no obstacle.
extern const std::array<ProtocolRow, protocol_rows> protocols;

/// The first of the table that has no obstacle.
Protocol choose(const Message& message, const Route& route);

/// What choose() compares, for the trace: "direct: MPI takes no device pointers; peer: taken; ...".
std::string comparison(const Message& message, const Route& route);

/// Whether the receiver is told where the data are, instead of getting them in MPI's message.
constexpr bool is_offered(Protocol protocol) {
  return protocol == Protocol::peer || protocol == Protocol::shared || protocol == Protocol::pipelined;
}

/// Whether messages so long may be offered at all.
constexpr bool long_enough_to_offer(std::int64_t bytes) {
  return bytes >= peer::least_offered;
}

}  // namespace gpudt::interpose
