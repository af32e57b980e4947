// How the memory that other processes have described is mapped.
#include <string>
#include <utility>

#include "interpose/support/log.hpp"
#include "interpose/transport/peer/state.hpp"

namespace gpudt::interpose::peer {

namespace {

/// False if there is no mapping.
bool take(device::Mapping mapping, const RemoteBuffer& place, MappedBuffer& operand) {
  operand.mapping = std::move(mapping);
  if (operand.mapping) operand.user = operand.mapping.at(place.address);
  return bool{operand.mapping};
}

/// may_open()
bool pause_is_over() REQUIRES(world->mutex) {
  return SteadyClock::now() >= world->next_opening;
}

}  // namespace

bool map_memory(int ordinal, const Segment& other, const RemoteBuffer& place, MappedBuffer& operand, bool may_wait) {
  std::string why;
  if (take(device::import_memory(ordinal, exporter_of(other), place.memory, &why, may_wait), place, operand))
    return true;
  if (may_wait) report_not_mapped(why);
  if (tracing()) log_trace("no peer transfer: " + why);
  return false;
}

bool map_known(int ordinal, const Segment& other, const RemoteBuffer& place, MappedBuffer& operand) {
  const auto exporter = static_cast<std::uint64_t>(other->rank);
  return take(device::imported_memory(ordinal, exporter, place.memory), place, operand);
}

bool may_open() {
  const LockGuard lock(world->mutex);
  return pause_is_over();
}

bool map_asked(int ordinal, const Segment& other, const RemoteBuffer& place, MappedBuffer& operand, bool may_wait) {
  const auto began = SteadyClock::now();
  const bool mapped = map_memory(ordinal, other, place, operand, may_wait);
  const auto now = SteadyClock::now();
  const LockGuard lock(world->mutex);
  world->next_opening = now + opening_pause * (now - began);
  return mapped;
}

namespace {

/// The count of an allocation, which begins at 0 if another one had the entry.
ReceivedOnHost& received_from(int rank, const device::Exported& memory) REQUIRES(world->mutex) {
  ReceivedOnHost& entry =
      world->received_on_host[(memory.buffer_id + static_cast<std::uint64_t>(rank)) % allocations_counted];
  if (entry.rank != rank || entry.allocation != memory.buffer_id) entry = {rank, memory.buffer_id};
  return entry;
}

/// Counts a message. True if enough bytes were received from its allocation before: much_before_mapping, or
/// least_before_mapping while memory may be opened.
bool pays_to_map(int rank, const device::Exported& memory, std::int64_t bytes) {
  const LockGuard lock(world->mutex);
  std::int64_t& received = received_from(rank, memory).bytes;
  const std::int64_t before = std::exchange(received, received + bytes);
  return before >= much_before_mapping || (before >= least_before_mapping && pause_is_over());
}

}  // namespace

bool map_for_host(int ordinal, const Segment& other, const RemoteBuffer& place, std::int64_t bytes,
                  MappedBuffer& operand) {
  if (map_known(ordinal, other, place, operand)) return true;
  if (!world->unmaps_freed || !pays_to_map(other->rank, place.memory, bytes)) return false;
  if (map_asked(ordinal, other, place, operand, /*may_wait=*/false)) return true;
  const LockGuard lock(world->mutex);
  received_from(other->rank, place.memory).bytes = 0;  // as many bytes again are received before the next try
  return false;
}

}  // namespace gpudt::interpose::peer
