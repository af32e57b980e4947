#include "interpose/transport/choose.hpp"

#include <utility>

#include "interpose/transport/peer/short_rts.hpp"

namespace gpudt::interpose {
namespace {

/// From here on messages to processes that share no memory with this one are offered: others are quicker unfragmented.
constexpr std::int64_t least_remote = std::int64_t{4} << 20;
/// If all are to go so, those that programs expect to be sent without a receiver still are not.
constexpr std::int64_t least_remote_forced = peer::longest_buffered + 1;
/// Messages that a GPU packs into device memory in less time than this are sent unfragmented: to request fragments, and
/// what each of them costs in MPI, would take longer than the overlap saves.
constexpr double least_packing_us = 30;

const char* obstacle_to_device_staging(const Message& message, const Route& route) {
  if (!route.mpi_takes_device_memory) return "MPI takes no device pointers";
  if (route.host_memory_only) return "MPI is to have host memory";
  if (message.divided) return "the buffer lies in several memories";
  if (route.forward_max != 0 && static_cast<std::size_t>(message.bytes) > route.forward_max)
    return "longer than GPUDT_FORWARD_MAX";
  return nullptr;
}

const char* obstacle_to_direct(const Message& message, const Route& route) {
  if (const char* const obstacle = obstacle_to_device_staging(message, route)) return obstacle;
  return message.contiguous ? nullptr : "not contiguous";
}

const char* obstacle_to_offer(const Message& message, const Route& route) {
  if (route.forced == Protocol::mapped_staging) return "GPUDT_PROTOCOL";
  if (route.receiver == Receiver::unknown) return "not a message to one process";
  if (route.receiver == Receiver::unreachable) return "the receiver cannot be told about it";
  if (message.divided) return "the buffer lies in several memories";
  if (long_enough_to_offer(message.bytes)) return nullptr;
  if (!peer::has_short_length(message.bytes)) return "too short";
  return route.expects_short ? nullptr
                             : "too short: the receiver does not look for such messages, or uses the same GPU";
}

const char* obstacle_to_shared(const Message& message, const Route& route) {
  if (const char* const obstacle = obstacle_to_offer(message, route)) return obstacle;
  if (route.receiver == Receiver::remote) return "the receiver shares no memory";
  return route.backing_off ? "the receiver could not fetch earlier ones" : nullptr;
}

const char* obstacle_to_peer(const Message& message, const Route& route) {
  if (route.forced == Protocol::shared) return "GPUDT_PROTOCOL";
  return obstacle_to_shared(message, route);
}

const char* obstacle_to_pipelined(const Message& message, const Route& route) {
  if (const char* const obstacle = obstacle_to_offer(message, route)) return obstacle;
  if (route.receiver == Receiver::sharing) return "the receiver shares memory";
  const bool forced = route.forced == Protocol::pipelined;
  if (message.bytes < (forced ? least_remote_forced : least_remote)) return "too short";
  const bool quick = message.packing_us >= 0 && message.packing_us < least_packing_us;
  return quick && !forced ? "packing takes too little time for fragments to pay" : nullptr;
}

const char* none(const Message&, const Route&) {
  return nullptr;
}

}  // namespace

constexpr std::array<ProtocolRow, protocol_rows> protocols = {{
    {Protocol::direct, obstacle_to_direct},
    {Protocol::device_staging, obstacle_to_device_staging},
    {Protocol::peer, obstacle_to_peer},
    {Protocol::shared, obstacle_to_shared},
    {Protocol::pipelined, obstacle_to_pipelined},
    {Protocol::mapped_staging, none},
}};

namespace {

/// Without a loop, so that the compiler sees which functions are called: it takes a few nanoseconds of every message.
template <std::size_t... row>
Protocol first_possible(const Message& message, const Route& route, std::index_sequence<row...>) {
  Protocol taken = Protocol::mapped_staging;
  static_cast<void>(
      ((protocols[row].obstacle(message, route) == nullptr && (taken = protocols[row].protocol, true)) || ...));
  return taken;
}

}  // namespace

Protocol choose(const Message& message, const Route& route) {
  return first_possible(message, route, std::make_index_sequence<protocol_rows>());
}

std::string comparison(const Message& message, const Route& route) {
  const Protocol taken = choose(message, route);
  std::string text;
  for (const ProtocolRow& row : protocols) {
    const char* const obstacle = row.obstacle(message, route);
    text += (text.empty() ? "" : "; ") + std::string(protocol_name(row.protocol)) + ": " +
            (row.protocol == taken ? "taken"
             : obstacle != nullptr ? obstacle
                                   : "possible");
  }
  return text;
}

}  // namespace gpudt::interpose
