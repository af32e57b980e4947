// The RTS of a short message: of 8 to 514 bytes, less than an ordinary RTS has, or of an even number up to 768, which
// no ordinary RTS has. It is as long as the message, so that probes and statuses tell the right length, and names the
// sender's descriptor in its first 8 bytes.
//
// A compact RTS has the same contents, but stands for a longer message, from 515 bytes on. It has 33 to 95 bytes, which
// MPI moves in less time than the 515 to 769 of an ordinary one; messages as long as an ordinary one have no other RTS,
// since a receive may have room for no longer one. A probe finds its message as that of an ordinary RTS, by envelope
// and length. Here no messages are counted: once a process has sent another one an ordinary message of such a length,
// or a short one, it sends it no compact RTS of that length any more (plain_messages.cpp).
//
// Both kinds are sent only to processes that check all their receives for them. A process says so at its first receive
// into device memory (ShortRts::expected). But a nonblocking or persistent receive of 8 to 514 bytes into host memory
// that MPI has got unchanged can no longer be checked. Once CUDA is initialised in a process, all of its receives are
// checked. If it has made such a receive before, it never checks (ShortRts::ignored), so that programs without CUDA pay
// nothing: short messages to it are staged, longer ones have an ordinary RTS.
#pragma once

#include <atomic>
#include <cstdint>

#include "interpose/shared/shared_segment.hpp"

namespace gpudt::interpose {

namespace peer {

/// The lengths, in bytes, of messages that such an RTS may stand for.
inline constexpr std::int64_t least_short = sizeof(std::uint64_t);
inline constexpr std::int64_t most_short = longest_rts - 1;
constexpr bool has_short_length(std::int64_t bytes) {
  return bytes >= least_short && bytes <= most_short && rts_index(bytes) < 0;
}

/// Whether the RTS of a message of `bytes` bytes, if it has any, is compact.
constexpr bool must_be_compact(std::int64_t bytes) {
  return rts_index(bytes) >= 0;
}

/// The length of the RTS of the message that descriptor `index` describes.
inline std::int64_t length_of_rts(const Descriptor& descriptor, int index) {
  if (has_short_length(descriptor.bytes)) return descriptor.bytes;
  return descriptor.compact != 0 ? compact_rts.of(index) : rts_bytes(index);
}

/// The RTS of a short message, or a compact one, as MPI sends it: cut off after its length, or followed by any bytes.
struct ShortRequest {
  std::uint64_t name;  ///< mark, sender's rank, descriptor, some bits of the key
  std::uint64_t key;   ///< of the sender's segment and the message
};

/// The RTS of the message that the owner of `image` offers in descriptor `index`.
ShortRequest short_request(Image& image, int index);

/// The offer that a received message of `bytes` bytes stands for, or what MPI has left of an RTS of this process to
/// itself (cuts_off_own_messages); empty if it is no such RTS. `there`: the number of its bytes at `data`.
struct NamedOffer {
  Segment* segment = nullptr;
  Descriptor* descriptor = nullptr;
  int index = 0;
  explicit operator bool() const { return descriptor != nullptr; }
};
NamedOffer named_offer(const void* data, std::int64_t bytes, std::int64_t there);
/// Quick check of the first `least_short` bytes, which must be there: false for nearly all data that are no such RTS.
bool may_name_offer(const void* data);

/// Processes of a higher rank send no such RTS.
inline constexpr int short_rts_ranks = 1 << 20;

/// Whether this process checks for such RTS: decided by its first receive into device memory (expected), or into host
/// memory that cannot be checked (ignored).
enum class ShortRts : std::uint8_t { undecided, ignored, expected };
extern std::atomic<ShortRts> short_rts;

}  // namespace peer

/// Whether messages to this process may be such RTS.
inline bool peer_expects_short() {
  return peer::short_rts.load(std::memory_order_relaxed) == peer::ShortRts::expected;
}
/// To be called before MPI gets a receive into device memory. From then on this process expects such RTS, and publishes
/// that in its segment, unless it ignores them already.
void peer_decide_checked();
inline void peer_receives_on_device() {
  if (peer::short_rts.load(std::memory_order_relaxed) == peer::ShortRts::undecided) peer_decide_checked();
}
/// Whether MPI may get a nonblocking or persistent receive into host memory unchanged; `bytes`: its length, less than
/// that of an ordinary RTS. If this process was undecided and uses no GPU yet, and the receive has room for an RTS, the
/// process ignores such RTS from now on; the caller must then pass the receive to MPI.
bool peer_decide_unchecked(std::int64_t bytes);
inline bool peer_may_pass_unchecked(std::int64_t bytes) {
  return peer::short_rts.load(std::memory_order_relaxed) == peer::ShortRts::ignored || peer_decide_unchecked(bytes);
}

/// Whether a received message of `bytes` bytes may be a compact RTS.
inline bool peer_may_be_compact(std::int64_t bytes) {
  return peer::compact_rts.find(bytes) >= 0 && peer_expects_short();
}
/// Whether a received message of `bytes` bytes may be an RTS.
inline bool peer_may_be_rts(std::int64_t bytes) {
  return peer::rts_index(bytes) >= 0 || (peer::has_short_length(bytes) && peer_expects_short());
}

}  // namespace gpudt::interpose
