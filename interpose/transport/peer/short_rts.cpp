#include "interpose/transport/peer/short_rts.hpp"

#include <algorithm>
#include <cstring>

#include "device/device.hpp"
#include "interpose/mpi/workarounds.hpp"
#include "interpose/transport/peer/peer.hpp"
#include "interpose/transport/peer/state.hpp"

namespace gpudt::interpose {

namespace peer {

std::atomic<ShortRts> short_rts{ShortRts::undecided};

namespace {

// The name, from the highest bit on: mark, rank, descriptor, key.
constexpr int mark_bits = 16, rank_bits = 20, index_bits = 12;
constexpr int key_bits = 64 - mark_bits - rank_bits - index_bits;
static_assert(descriptor_count <= 1 << index_bits && short_rts_ranks <= 1 << rank_bits);
constexpr std::uint64_t short_mark = 0xb3d1;

constexpr std::uint64_t low_bits(std::uint64_t value, int bits) {
  return value & ((std::uint64_t{1} << bits) - 1);
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators).
std::uint64_t mixed(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

/// Whether there may be memory of a GPU in the process, as there is from the program's first call of CUDA on. To be
/// known only before this process has decided.
bool uses_gpu() {
  static std::atomic<bool> known{false};
  if (!known.load(std::memory_order_relaxed) && device::in_use()) known.store(true, std::memory_order_relaxed);
  return known.load(std::memory_order_relaxed);
}

}  // namespace

ShortRequest short_request(Image& image, int index) {
  const std::uint64_t message =
      (std::uint64_t{image.descriptor(index).generation} << index_bits) + static_cast<std::uint64_t>(index);
  const std::uint64_t key = mixed(image.nonce[0] + mixed(image.nonce[1] + message));
  std::uint64_t name = short_mark;
  name = (name << rank_bits) + low_bits(static_cast<std::uint64_t>(image.rank), rank_bits);
  name = (name << index_bits) + static_cast<std::uint64_t>(index);
  return {(name << key_bits) + low_bits(key, key_bits), key};
}

bool may_name_offer(const void* data) {
  std::uint64_t name;
  std::memcpy(&name, data, sizeof name);
  return name >> (64 - mark_bits) == short_mark;
}

NamedOffer named_offer(const void* data, std::int64_t bytes, std::int64_t there) {
  if (bytes < least_short || bytes > most_short || there < least_short || !may_name_offer(data)) return {};
  ShortRequest request{};
  const std::size_t known = std::min(static_cast<std::size_t>(there), sizeof request);
  std::memcpy(&request, data, known);
  const auto index = static_cast<int>(low_bits(request.name >> key_bits, index_bits));
  const auto rank = static_cast<int>(low_bits(request.name >> (key_bits + index_bits), rank_bits));
  Segment* const segment = segment_of_rts_sender(rank);
  if (segment == nullptr || index >= (*segment)->descriptors_made.load(std::memory_order_acquire)) return {};
  Descriptor& descriptor = (*segment)->descriptor(index);
  if (!descriptor.state.is_open() && descriptor.state.load() != State::failed) return {};
  const ShortRequest offered = short_request(**segment, index);
  const std::int64_t length = length_of_rts(descriptor, index);
  const bool cut_off = cuts_off_own_messages && rank == world->rank && bytes < length;
  const bool meant = descriptor.destination == world->rank && (bytes == length || cut_off) &&
                     std::memcmp(&offered, &request, known) == 0;
  return meant ? NamedOffer{segment, &descriptor, index} : NamedOffer{};
}

}  // namespace peer

using namespace peer;

void peer_decide_checked() {
  if (!peer_checks()) return;
  ShortRts state = ShortRts::undecided;
  if (short_rts.compare_exchange_strong(state, ShortRts::expected))
    (*world->own)->expects_short.store(1, std::memory_order_release);
}

bool peer_decide_unchecked(std::int64_t bytes) {
  if (bytes < least_short || !peer_checks()) return true;
  ShortRts state = short_rts.load(std::memory_order_relaxed);
  if (state == ShortRts::undecided) {
    if (uses_gpu()) return false;
    short_rts.compare_exchange_strong(state, ShortRts::ignored);
  }
  return state != ShortRts::expected;
}

}  // namespace gpudt::interpose
