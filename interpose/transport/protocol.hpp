// The protocols: the ways in which a message, or another buffer in device memory, goes. A protocol is a row of the
// table `protocols`; choose() takes the first one without an obstacle. The choice is a pure function of its arguments.
//
// The choice is made when a buffer has been resolved (device_buffer.cpp; the receiver, if any, is not looked at yet),
// by the sender of a message that MPI cannot have as it is (sender_for()), and by its receiver (peer/receiver.cpp),
// which alone can tell whether its GPU reaches the sender's memory.
#pragma once

#include <mpi.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "interpose/transport/peer/short_rts.hpp"

namespace gpudt::interpose {

/// In order of preference, as in the table below. Buffers in host memory are passed on as they are, and have none.
enum class Protocol : std::uint8_t {
  direct,          ///< a CUDA-aware MPI takes the contiguous device buffer as it is
  peer,            ///< offered: the receiver's GPU fetches the data; if it cannot, they come as by `shared`
  shared,          ///< offered: in fragments through memory that the two processes share
  pipelined,       ///< offered to a process of another node: in fragments, each of them a message
  device_staging,  ///< packed into device staging memory, which a CUDA-aware MPI takes
  mapped_staging,  ///< packed into mapped host memory (zero-copy), which any MPI takes
};

/// The protocol that GPUDT_PROTOCOL forces wherever it can be taken; no value if the choice is free ("auto").
using ForcedProtocol = std::optional<Protocol>;

/// What is known of a message, or of another buffer that MPI is to have.
struct Message {
  std::int64_t bytes = 0;
  bool contiguous = false;
  bool divided = false;   ///< among several memories
  bool buffered = false;  ///< sent by MPI_Bsend or its variants, or short and by a blocking call to the process itself
  bool on_host = false;   ///< all data are in host memory (host_sender_for())
  /// Estimated time of packing it into device memory, if it is staged there (Protocol::device_staging); negative: it is
  /// staged in host memory, or the time is not known.
  double packing_us = -1;
};

enum class Receiver : std::uint8_t {
  none,         ///< the buffer does not go to exactly one process
  unseen,       ///< one process, not looked at yet: the best is assumed
  unreachable,  ///< it has no gpudt, or is on another node and gets no control messages
  sharing,      ///< it looks for RTS messages, and shares memory with this process
  remote,       ///< it shares no memory, and may look for RTS messages
};

struct Route {
  Receiver receiver = Receiver::none;
  bool mpi_takes_device_memory = false;
  /// MPI is to have host memory: the message may be an RTS of a process of this node, or MPI reads the data on the
  /// host.
  bool host_memory_only = false;
  /// The receiver looks for the RTS of short messages.
  bool expects_short = false;
  std::size_t forward_max = 0;  ///< longest message, in bytes, that MPI is given in device memory; 0: any
  ForcedProtocol forced{};
  bool backing_off = false;  ///< the receiver could not fetch earlier messages of this kind: none is offered just now
  /// Why an attempt to offer this message has failed; null if there was none.
  const char* not_offered = nullptr;
  int process = -1;  ///< the receiver's rank in MPI_COMM_WORLD, for the trace; negative: not known
};

// --- obstacles: why a message cannot go by a protocol, in a few words; null if it can --------------------------------

using Obstacle = const char*;

constexpr Obstacle obstacle_to_device_staging(const Message& message, const Route& route) {
  if (!route.mpi_takes_device_memory) return "MPI takes no device pointers";
  if (message.divided) return "the buffer lies in several memories";
  if (route.forward_max != 0 && static_cast<std::size_t>(message.bytes) > route.forward_max)
    return "longer than GPUDT_FORWARD_MAX";
  return route.host_memory_only ? "MPI is to have host memory" : nullptr;
}

constexpr Obstacle obstacle_to_direct(const Message& message, const Route& route) {
  if (const Obstacle obstacle = obstacle_to_device_staging(message, route)) return obstacle;
  return message.contiguous ? nullptr : "not contiguous";
}

constexpr Obstacle obstacle_to_offer(const Message& message, const Route& route) {
  if (route.forced == Protocol::mapped_staging) return "GPUDT_PROTOCOL";
  if (route.receiver == Receiver::none) return "not a message to one process";
  if (route.receiver == Receiver::unreachable) return "the receiver cannot be told about it";
  if (message.buffered) return "the send is buffered, or blocking and to the process itself";
  if (message.divided) return "the buffer lies in several memories";
  if (message.bytes >= peer::least_offered) return nullptr;
  if (message.bytes < peer::least_short) return "too short";
  if (route.expects_short || route.receiver == Receiver::unseen) return nullptr;
  return "too short: the receiver does not look for such messages";
}

constexpr Obstacle obstacle_to_shared(const Message& message, const Route& route) {
  if (const Obstacle obstacle = obstacle_to_offer(message, route)) return obstacle;
  if (route.receiver == Receiver::remote) return "the receiver shares no memory";
  if (obstacle_to_device_staging(message, route) == nullptr)
    return "the receiver may give MPI device memory, where it looks for no RTS of this node";
  return route.backing_off ? "the receiver could not fetch earlier ones" : route.not_offered;
}

constexpr Obstacle obstacle_to_peer(const Message& message, const Route& route) {
  if (route.forced == Protocol::shared) return "GPUDT_PROTOCOL";
  if (message.on_host) return "the data are in host memory";
  return obstacle_to_shared(message, route);
}

constexpr Obstacle obstacle_to_pipelined(const Message& message, const Route& route) {
  /// Shortest message, in bytes, that is offered to a process that shares no memory: others are faster unfragmented.
  constexpr std::int64_t least_remote = std::int64_t{4} << 20;
  /// Shortest one if fragments are forced: programs expect the send of a shorter message to end without a receiver.
  constexpr std::int64_t least_remote_forced = peer::longest_buffered + 1;
  /// Messages that a GPU packs into device memory in less time than this are sent unfragmented: requesting fragments
  /// and sending each by MPI would take longer than the overlap saves.
  constexpr double least_packing_us = 30;
  if (const Obstacle obstacle = obstacle_to_offer(message, route)) return obstacle;
  if (route.receiver == Receiver::sharing) return "the receiver shares memory";
  if (message.on_host) return "the data are in host memory";
  const bool forced = route.forced == Protocol::pipelined;
  if (message.bytes < (forced ? least_remote_forced : least_remote)) return "too short";
  const bool quick = message.packing_us >= 0 && message.packing_us < least_packing_us;
  return quick && !forced ? "packing takes too little time for fragments to pay" : route.not_offered;
}

// --- senders and receivers -------------------------------------------------------------------------------------------

struct DeviceBuffer;
class SendPayload;
class RendezvousReceiver;

struct Destination {
  int rank;
  int tag;
  MPI_Comm comm;
};

/// Makes the payload of a message for one protocol. Null if the message cannot go by it: the reason is then in
/// `message` or `route`, so that sender_for() chooses another one. May throw device::Error.
using MakeSender = std::shared_ptr<SendPayload>(const DeviceBuffer& operand, const Destination& to, Message& message,
                                                Route& route);
/// recognise() for the messages of one protocol.
using Recognise = std::unique_ptr<RendezvousReceiver>(const void* data, std::int64_t bytes);

// Weak, because the unit tests of the choice do not link them.
[[gnu::weak]] MakeSender make_packed;  // staged.cpp
[[gnu::weak]] MakeSender make_offer;   // peer/sender.cpp
[[gnu::weak]] Recognise recognise_offer;

/// The protocol by which such a message would go now, as far as its sender knows. Enters the reasons in `message` and
/// `route`. May throw device::Error.
[[gnu::weak]] Protocol expected_protocol(const DeviceBuffer& operand, const Destination& to, Message& message,
                                         Route& route);  // peer/neighbours.cpp

// --- the table -------------------------------------------------------------------------------------------------------

struct ProtocolRow {
  Protocol protocol;
  const char* name;   ///< in the report and the trace
  const char* value;  ///< the value of GPUDT_PROTOCOL that forces it; null if there is none
  Obstacle (*obstacle)(const Message&, const Route&);
  MakeSender* make_sender;  ///< null: MPI is given the buffer itself
  /// Recognises the RTS that MPI brings in place of the data; null if messages are not offered.
  Recognise* recognise;
  bool through_host;  ///< for GPUDT_REQUIRE
};

inline constexpr auto protocols = std::to_array<ProtocolRow>({
    {Protocol::direct, "direct", nullptr, obstacle_to_direct, nullptr, nullptr, false},
    {Protocol::peer, "peer", "peer", obstacle_to_peer, make_offer, recognise_offer, false},
    {Protocol::shared, "shared", "shared", obstacle_to_shared, make_offer, recognise_offer, true},
    {Protocol::pipelined, "pipelined", "pipelined", obstacle_to_pipelined, make_offer, recognise_offer, true},
    {Protocol::device_staging, "device staging", nullptr, obstacle_to_device_staging, make_packed, nullptr, false},
    {Protocol::mapped_staging, "mapped staging", "staging", [](auto&, auto&) -> Obstacle { return nullptr; },
     make_packed, nullptr, true},
});

constexpr const ProtocolRow& row_of(Protocol protocol) {
  return protocols[static_cast<std::size_t>(protocol)];
}

/// Whether the data of such a buffer go through host memory; that of an offered one may yet turn out to.
constexpr bool goes_through_host(Protocol protocol) {
  return row_of(protocol).through_host;
}

constexpr const char* protocol_name(Protocol protocol) {
  return row_of(protocol).name;
}

namespace detail {
/// Without a loop, so that the compiler sees which functions are called: every message pays for this choice.
template <std::size_t... row>
Protocol first_possible(const Message& message, const Route& route, std::index_sequence<row...>) {
  Protocol taken = Protocol::mapped_staging;
  static_cast<void>(
      ((protocols[row].obstacle(message, route) == nullptr && (taken = protocols[row].protocol, true)) || ...));
  return taken;
}
}  // namespace detail

/// The first of the table that has no obstacle.
inline Protocol choose(const Message& message, const Route& route) {
  return detail::first_possible(message, route, std::make_index_sequence<protocols.size()>());
}

/// What choose() compares, for the trace: "direct: MPI takes no device pointers; peer: taken; ...".
std::string comparison(const Message& message, const Route& route);

struct Sender {
  std::shared_ptr<SendPayload> payload;
  bool offers;  ///< MPI is given an RTS: no plain message is sent, and nothing is packed first
};

/// Chooses the protocol of a message, now that its receiver is known, and makes its payload. `buffered`: as in Message.
/// `packs`: the payload that packs the messages of a persistent request, returned if this one is to be packed. May
/// throw device::Error.
Sender sender_for(const DeviceBuffer& operand, const Destination& to, bool buffered,
                  const std::shared_ptr<SendPayload>& packs = nullptr);

/// The payload of a blocking send whose data are in host memory; null if MPI is to have them as they are. `operand` has
/// ordinal -1 and no division.
std::shared_ptr<SendPayload> host_sender_for(const DeviceBuffer& operand, const Destination& to);

/// The offered message that a received message of `bytes` bytes stands for; null if it is no RTS. Only its first
/// sizeof(peer::RendezvousRequest) bytes need be at `data`. May throw device::Error.
std::unique_ptr<RendezvousReceiver> recognise(const void* data, std::int64_t bytes);

/// No value if `value` is not one of GPUDT_PROTOCOL's.
std::optional<ForcedProtocol> parse_protocol(std::string_view value);

/// The values of GPUDT_PROTOCOL: "auto, peer ... or staging".
std::string protocol_values();

}  // namespace gpudt::interpose
