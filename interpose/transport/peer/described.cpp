#include "interpose/transport/peer/described.hpp"

#include <cstring>
#include <new>
#include <utility>

namespace gpudt::interpose::peer {

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
