// The RTS of a short message (8 to 514 bytes, less than an ordinary RTS has). It is as long as the message, so that
// probes and statuses tell the right length, and names the sender's descriptor in its first 8 bytes.
//
// A process is sent these only if it looks for them in all that it receives. It does so from its first receive into
// device memory on (ShortRts::expected). But a nonblocking or persistent receive of 8 to 514 bytes into host memory
// that has gone to MPI unchanged cannot be looked at any more: if there was one first, the process never looks for them
// (ShortRts::ignored), and short messages to it are staged.
//
// Only blocking sends offer short messages: of nonblocking ones many are under way, which one kernel packs together.
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

/// Whether this process looks for them. Decided once, by what it receives first: into device memory (expected), or into
/// host memory by a receive that cannot be looked at (ignored).
enum class ShortRts : std::uint8_t { undecided, ignored, expected };
extern std::atomic<ShortRts> short_rts;

}  // namespace peer

/// Whether what this process receives may be such an RTS.
inline bool peer_expects_short() {
  return peer::short_rts.load(std::memory_order_relaxed) == peer::ShortRts::expected;
}
/// Before a receive into device memory is given to MPI: from then on this process expects them, and says so in its
/// segment, unless it has been decided that it ignores them.
void peer_receives_on_device();
/// Whether a nonblocking or persistent receive of `bytes` bytes, less than an ordinary RTS has, into host memory may go
/// to MPI unchanged. If that is undecided yet, and it has room for an RTS, it is decided that they are ignored: the
/// caller must then do so.
bool peer_decide_unchecked(std::int64_t bytes);
inline bool peer_may_pass_unchecked(std::int64_t bytes) {
  return peer::short_rts.load(std::memory_order_relaxed) == peer::ShortRts::ignored || peer_decide_unchecked(bytes);
}

/// Whether a message of `bytes` bytes that has come to this process may be an RTS.
inline bool peer_may_be_rts(std::int64_t bytes) {
  return peer::rts_index(bytes) >= 0 || (peer::has_short_length(bytes) && peer_expects_short());
}

}  // namespace gpudt::interpose
