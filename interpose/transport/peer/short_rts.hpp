// RTS messages for messages that are shorter than other RTS messages are. Such a one is as long as the message, so that
// probes and statuses tell the right length, and begins with the name of its offer.
//
// Who receives into device memory looks for them in all that it receives. Of its nonblocking receives into host memory,
// which MPI would otherwise have as they are, it can do so only if none has been given to MPI before that was decided:
// a process where one has been is not sent any.
//
// Blocking sends alone offer short messages: of several that are under way, kernels move many at a time anyhow.
#pragma once

#include <atomic>
#include <cstdint>

#include "interpose/transport/peer/shared_segment.hpp"

namespace gpudt::interpose {

namespace peer {

/// Bytes of a message that such an RTS may stand for.
inline constexpr std::int64_t least_short = sizeof(std::uint64_t);
inline constexpr std::int64_t most_short = shortest_rts - 1;
constexpr bool has_short_length(std::int64_t bytes) {
  return bytes >= least_short && bytes <= most_short;
}

/// The RTS as MPI sends it, in as many bytes as there are; what follows is of no matter.
struct ShortRequest {
  std::uint64_t name;  ///< mark, sender's rank, descriptor, some bits of the key
  std::uint64_t key;   ///< of the sender's segment and the message
};

/// Of message `index` that the owner of `image` offers.
ShortRequest short_request(const Image& image, int index);

/// The offer that a message of `bytes` bytes to this process stands for if it is such an RTS, by the first `there`
/// bytes of it; else null.
struct NamedOffer {
  Segment* segment = nullptr;
  Descriptor* descriptor = nullptr;
  int index = 0;
  explicit operator bool() const { return descriptor != nullptr; }
};
NamedOffer named_offer(const void* data, std::int64_t bytes, std::int64_t there);
/// False of nearly all other data: a look at the first `least_short` bytes, which must be there.
bool may_name_offer(const void* data);

/// Whether the owner of a segment may be sent one.
bool expects_short(const Segment& receiver);

enum class ShortRts : std::uint8_t { undecided, ignored, expected };
extern std::atomic<ShortRts> short_rts;

}  // namespace peer

/// Whether what this process receives may be such an RTS.
inline bool peer_expects_short() {
  return peer::short_rts.load(std::memory_order_relaxed) == peer::ShortRts::expected;
}
/// A receive into device memory is about to be given to MPI.
void peer_receives_on_device();
/// Whether MPI may have a nonblocking receive of at most `bytes` bytes into host memory that no other RTS has room in.
/// Then it is as good as given to MPI.
bool peer_decides_short_pass(std::int64_t bytes);
inline bool peer_lets_short_pass(std::int64_t bytes) {
  return peer::short_rts.load(std::memory_order_relaxed) == peer::ShortRts::ignored || peer_decides_short_pass(bytes);
}

/// Whether a message of `bytes` bytes that has come to this process may be an RTS.
inline bool peer_may_be_rts(std::int64_t bytes) {
  return peer::rts_index(bytes) >= 0 || (peer::has_short_length(bytes) && peer_expects_short());
}

}  // namespace gpudt::interpose
