#include "interpose/transport/peer/descriptors.hpp"

#include <algorithm>
#include <bitset>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

namespace gpudt::interpose::peer {

namespace {

/// Number of descriptors, with the lowest indices, that messages within the node leave free.
constexpr int kept_for_remote = 32;
/// Number of abandoned descriptors that are checked for each message.
constexpr std::size_t few_abandoned = 32;

}  // namespace

void reclaim_descriptors() {
  auto& abandoned = world->abandoned;
  // Where many wait for their receivers, looking at all of them for each message would take too long.
  if (abandoned.size() < world->reclaim_at && world->idle.count() != 0) return;
  const auto still = std::partition(abandoned.begin(), abandoned.end(), [](const AbandonedDescriptor& descriptor) {
    return (*world->own)->descriptor(descriptor.index).state.load() != State::done;
  });
  std::for_each(still, abandoned.end(), [](const AbandonedDescriptor& descriptor) REQUIRES(world->mutex) {
    world->idle.put(descriptor.index);
  });
  abandoned.erase(still, abandoned.end());
  world->reclaim_at = abandoned.size() <= few_abandoned ? 0 : 2 * abandoned.size();
}

namespace {

/// Not while another thread has an RTS of this length that it has not given to MPI: this message's could reach MPI
/// before, and a probe would confuse the two.
bool is_usable(int index, int rank, const Envelope& envelope, bool compact) REQUIRES(world->mutex) {
  if (compact ? !may_be_compact(rank, index) : plain_under_way(rank, index)) return false;
  if (!peer_has_threads()) return true;
  const Segment* const receiver = reach(rank);
  const int lengths = receiver != nullptr && expects_short(*receiver) ? compact_rts.number : rts_lengths;
  return !is_being_issued(rank, index % lengths, lengths, envelope);
}

/// The index of a usable one in [begin, end), or -1.
int idle_descriptor(int rank, const Envelope& envelope, bool compact, int begin, int end) REQUIRES(world->mutex) {
  std::bitset<rts_lengths> unusable;
  for (int index = world->idle.next(begin); index < end; index = world->idle.next(index + 1)) {
    const auto length = static_cast<std::size_t>(index % rts_lengths);
    if (unusable.test(length)) continue;
    if (is_usable(index, rank, envelope, compact)) return index;
    unusable.set(length);
  }
  return -1;
}

/// idle_descriptor() in [begin, end). Prefers the first descriptors_at_a_time, and takes them round-robin, so that each
/// keeps its description as long as possible.
int idle_in_turn(int rank, const Envelope& envelope, bool compact, int begin, int end) REQUIRES(world->mutex) {
  int index = idle_descriptor(rank, envelope, compact, std::max(begin, world->search_from),
                              std::min(end, descriptors_at_a_time));
  if (index < 0) index = idle_descriptor(rank, envelope, compact, begin, end);
  if (index >= 0) world->search_from = (index + 1) % descriptors_at_a_time;
  return index;
}

/// Gives memory to further descriptors. False if there is none.
bool make_descriptors() REQUIRES(world->mutex) {
  Segment& own = *world->own;
  const int made = own->descriptors_made.load(std::memory_order_relaxed);
  world->can_make_descriptors = world->can_make_descriptors && own.make_descriptors();
  if (!world->can_make_descriptors) return false;
  for (int index = made; index < made + descriptors_at_a_time; ++index) world->idle.put(index);
  return true;
}

}  // namespace

std::size_t free_descriptors() {
  const int made = (*world->own)->descriptors_made.load(std::memory_order_relaxed);
  const int to_be_made = world->can_make_descriptors ? descriptor_count - made : 0;
  return world->idle.count() + static_cast<std::size_t>(to_be_made);
}

int take_descriptor(int rank, const Envelope& envelope, bool remote, bool compact, int preferred) {
  reclaim_descriptors();
  // Some of the descriptors that images have are left for messages to other nodes.
  const int begin = world->remote && !remote ? kept_for_remote : 0;
  const int end = remote ? descriptors_at_a_time : descriptor_count;
  const bool prefers = preferred >= begin && preferred < end && world->idle.has(preferred);
  int index = prefers && is_usable(preferred, rank, envelope, compact)
                  ? preferred
                  : idle_in_turn(rank, envelope, compact, begin, end);
  if (index < 0 && !remote && make_descriptors()) index = idle_descriptor(rank, envelope, compact, begin, end);
  if (index < 0) return -1;
  world->idle.take(index);
  Descriptor& descriptor = (*world->own)->descriptor(index);
  ++descriptor.generation;
  descriptor.number = ++world->offers;
  descriptor.destination = rank;
  descriptor.envelope = envelope;
  descriptor.issue.store(Issue::not_yet, std::memory_order_relaxed);
  descriptor.matched.store(0, std::memory_order_relaxed);
  return index;
}

void put_descriptor(int index, bool done, device::Staging packed, PublishedRef published) {
  const LockGuard lock(world->mutex);
  if (done)
    world->idle.put(index);
  else
    world->abandoned.push_back({index, std::move(packed), std::move(published)});
}

namespace {

/// Whether the descriptor is of a message with this envelope whose RTS this process may have, and has not received.
bool is_unreceived(const Descriptor& descriptor, const Envelope& envelope) {
  return descriptor.destination == world->rank && descriptor.envelope == envelope &&
         descriptor.issue.load() != Issue::not_yet && descriptor.matched.load() == 0;
}

/// is_unreceived() for a message with an ordinary RTS, or a compact one.
bool is_meant(const Descriptor& descriptor, const Envelope& envelope, bool compact) {
  return is_unreceived(descriptor, envelope) && !has_short_length(descriptor.bytes) &&
         (descriptor.compact != 0) == compact;
}

/// Calls `act(descriptor, index)` for the descriptors `first`, first + step, ... of a segment, or the image of one; not
/// at all if there is none.
template <class Act>
void for_each_descriptor(Segment* segment, int first, int step, Act act) {
  if (segment == nullptr) return;
  const int made = (*segment)->descriptors_made.load(std::memory_order_acquire);
  for (int index = first; index < made; index += step) act((*segment)->descriptor(index), index);
}

/// The oldest open offer that `suits(descriptor)`.
template <class Suits>
Offered oldest_of(Segment* segment, int first, int step, Suits suits) {
  Offered oldest;
  std::uint64_t number = 0;
  for_each_descriptor(segment, first, step, [&](Descriptor& descriptor, int index) {
    // The rest is read once the state shows that it has been written.
    if (!descriptor.state.is_open() || !suits(descriptor) || (oldest && descriptor.number > number)) return;
    oldest = {&descriptor, index};
    number = descriptor.number;
  });
  return oldest;
}

Offered open_offer(Segment* segment, const Envelope& envelope, std::int64_t rts_length) {
  const int ordinary = rts_index(rts_length);
  const bool compact = ordinary < 0;
  return oldest_of(segment, compact ? compact_rts.find(rts_length) : ordinary,
                   compact ? compact_rts.number : rts_lengths,
                   [&](const Descriptor& descriptor) { return is_meant(descriptor, envelope, compact); });
}

}  // namespace

Offered open_offer(int sender, const Envelope& envelope, std::int64_t rts_length) {
  Segment* const image = world->remote ? world->remote->image(sender) : nullptr;
  if (const Offered noticed = open_offer(image, envelope, rts_length))
    return {noticed.descriptor, noticed.index, sender};
  return open_offer(reach_sender(sender), envelope, rts_length);
}

Offered open_offer(const Envelope& envelope, std::int64_t rts_length) {
  Offered found;
  for (int rank = 0; !found && rank < world->ranks; ++rank) found = open_offer(rank, envelope, rts_length);
  return found;
}

Offered oldest_offer(int sender, const Envelope& envelope) {
  return oldest_of(reach_sender(sender), 0, 1,
                   [&](const Descriptor& descriptor) { return is_unreceived(descriptor, envelope); });
}

Offered next_offer(Segment* segment, const Envelope& envelope, std::int64_t rts_length) {
  return oldest_of(segment, 0, 1, [&](const Descriptor& descriptor) {
    return is_unreceived(descriptor, envelope) &&
           length_of_rts(descriptor, (*segment)->index_of(descriptor)) == rts_length;
  });
}

bool is_rts_of_open_offer(int sender, const Envelope& envelope, std::int64_t bytes) {
  bool found = false;
  for_each_descriptor(reach_sender(sender), 0, 1, [&](const Descriptor& descriptor, int index) {
    found = found || (bytes == length_of_rts(descriptor, index) && descriptor.state.is_open() &&
                      is_unreceived(descriptor, envelope));
  });
  return found;
}

bool may_have_issued(int sender, const Envelope& envelope, int rts_index) {
  Segment* const segment = reach_sender(sender);
  if (segment == nullptr) return world->remote && world->remote->greeted(sender);
  bool found = false;
  for_each_descriptor(segment, rts_index, rts_lengths, [&](const Descriptor& descriptor, int) {
    found = found || is_meant(descriptor, envelope, /*compact=*/false);
  });
  return found;
}

// --- what they describe ----------------------------------------------------------------------------------------------

namespace {

bool are_equal(const RemoteBuffer& a, const RemoteBuffer& b) {
  return a.count == b.count && a.address == b.address && a.layout == b.layout &&
         std::memcmp(&a.memory, &b.memory, sizeof a.memory) == 0;
}

/// The entry of a descriptor; null if nothing has been remembered of it.
template <class Entry>
Entry* entry_of(std::vector<Entry>& entries, int index) {
  const auto at = static_cast<std::size_t>(index);
  return at < entries.size() ? &entries[at] : nullptr;
}

/// Without memory for the list nothing is remembered.
template <class Entry>
void set_entry(std::vector<Entry>& entries, int index, Entry entry) noexcept try {
  const auto at = static_cast<std::size_t>(index);
  if (entries.size() <= at) entries.resize(at + 1);
  entries[at] = std::move(entry);
} catch (const std::bad_alloc&) {
}

std::uint16_t& hash_entry(const DeviceBuffer& operand, int other) REQUIRES(world->mutex) {
  static_assert(descriptor_count < UINT16_MAX && (buffer_hashes & (buffer_hashes - 1)) == 0);
  const auto key = reinterpret_cast<std::uintptr_t>(operand.buffer) + static_cast<std::uintptr_t>(other);
  const std::uint64_t hash = key * std::uint64_t{0x9e3779b97f4a7c15};
  return world->descriptor_by_buffer[(hash >> 32) % buffer_hashes];
}

}  // namespace

int descriptor_for(const DeviceBuffer& operand, int other) {
  return hash_entry(operand, other) - 1;
}

void note_index(int index, const DeviceBuffer& operand, int other) {
  hash_entry(operand, other) = static_cast<std::uint16_t>(index + 1);
}

bool is_described(int index, const DeviceBuffer& operand, int other) {
  {
    const LockGuard lock(world->mutex);
    const SentDescription* const known = entry_of(world->sent_descriptions, index);
    if (known == nullptr || known->buffer != operand.buffer || known->count != operand.count || known->other != other ||
        !is_same(known->layout, operand.info->layout_ref()))
      return false;
  }
  const Descriptor& descriptor = (*world->own)->descriptor(index);
  const LayoutName& layout = descriptor.from.layout;
  const bool has_layout =
      layout.bytes == 0 || (descriptor.data_layout == layout.number && descriptor.data_owner == world->rank);
  if (!has_layout) return false;
  const std::uint64_t now = operand.allocation != 0 ? operand.allocation : device::allocation_id(lowest_of(operand));
  return now == descriptor.from.memory.buffer_id;
}

void update_description(int index, const RemoteBuffer& from) {
  const LockGuard lock(world->mutex);
  if (SentDescription* const known = entry_of(world->sent_descriptions, index)) *known = {};
  Descriptor& descriptor = (*world->own)->descriptor(index);
  if (are_equal(descriptor.from, from)) return;
  descriptor.from = from;
  ++descriptor.from_version;
}

void note_source(int index, const DeviceBuffer& operand, int other) {
  const LockGuard lock(world->mutex);
  const RemoteBuffer& from = (*world->own)->descriptor(index).from;
  // Not kept: a long layout, whose slot is held during the message only; memory of which receivers are not told when it
  // is freed; memory in pieces, which one allocation id does not identify.
  if (from.layout.slot >= 0 || from.memory.slot < 0 || from.memory.pieces != 0) return;
  set_entry(world->sent_descriptions, index, {operand.buffer, operand.count, operand.info->layout_ref(), other});
}

MappedBuffer recall(int rank, int index, const Descriptor& descriptor, int gpu, const datatype::LayoutRef& into,
                    device::KeptPlan& plan) {
  MappedBuffer found;
  device::KnownMapping mapping;
  {
    const LockGuard lock(world->mutex);
    const ReceivedDescription* const known =
        entry_of(world->neighbours[static_cast<std::size_t>(rank)].received_descriptions, index);
    if (known == nullptr || known->version != descriptor.from_version || known->gpu != gpu) return {};
    mapping = known->mapping;
    found = {known->layout.lock(), known->count, {}, known->user};
    if (found.layout != nullptr && is_same(known->into, into)) plan = known->plan;
  }
  if (found.layout == nullptr) return {};
  // Contiguous data of different lengths have the same description.
  if (descriptor.from.layout.bytes == 0) found.count = descriptor.bytes;
  found.mapping = device::hold_again(gpu, mapping);  // without the mutex: it may wait for a mapping to be closed
  return found;
}

void remember(int rank, int index, const Descriptor& descriptor, int gpu, const MappedBuffer& derived) {
  const LockGuard lock(world->mutex);
  set_entry(world->neighbours[static_cast<std::size_t>(rank)].received_descriptions, index,
            {descriptor.from_version, gpu, derived.layout, derived.count, device::KnownMapping(derived.mapping),
             derived.user});
}

void remember_plan(int rank, int index, const Descriptor& descriptor, const datatype::LayoutRef& into,
                   const device::KeptPlan& plan) {
  const LockGuard lock(world->mutex);
  ReceivedDescription* const known =
      entry_of(world->neighbours[static_cast<std::size_t>(rank)].received_descriptions, index);
  if (known == nullptr || known->version != descriptor.from_version) return;
  known->plan = plan;
  known->into = into;
}

}  // namespace gpudt::interpose::peer
