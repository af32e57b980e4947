// Where data lie: how the memory of a buffer is described to other processes, and what they have described is mapped.
#include <string>
#include <utility>

#include "interpose/support/log.hpp"
#include "interpose/transport/peer/state.hpp"

namespace gpudt::interpose::peer {

bool holds(const device::Exported& memory, const DeviceBuffer& operand) {
  const datatype::Span span = operand.info->layout().span(operand.count);
  const auto buffer = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(operand.buffer));
  const auto base = static_cast<std::int64_t>(memory.base);
  return buffer + span.begin >= base && buffer + span.end <= base + static_cast<std::int64_t>(memory.size);
}

namespace {

/// device::export_memory() of all memory from the buffer's lowest byte to its highest.
bool export_operand(const DeviceBuffer& operand, device::Exported& exported, device::Importers by) {
  const datatype::Span span = operand.info->layout().span(operand.count);
  return device::export_memory(operand.ordinal, lowest_of(operand), exported, by,
                               static_cast<std::uint64_t>(span.end - span.begin));
}

}  // namespace

bool describe_operand(const DeviceBuffer& operand, int other, Image& image, Descriptor& descriptor, RemoteBuffer& place,
                      PublishedRef& published) {
  const datatype::Layout& layout = operand.info->layout();
  if (!export_operand(operand, place.memory, importer(other)) || !holds(place.memory, operand)) return false;
  place.count = operand.count;
  place.layout = {};
  place.address = reinterpret_cast<std::uint64_t>(operand.buffer);
  if (layout.is_contiguous(operand.count)) {
    place.address += static_cast<std::uint64_t>(layout.true_lb());
    return true;
  }
  const LockGuard lock(world->mutex);
  const bool on_one_gpu = world->neighbours[static_cast<std::size_t>(other)].shares_gpu;
  return world->layouts.describe(*world->own, descriptor, image.data_of(descriptor), place, operand.info->layout_ref(),
                                 on_one_gpu ? published_by_message_on_one_gpu : published_by_message, published);
}

bool waits_for_unmapping(const DeviceBuffer& operand, int other) {
  device::Exported exported;
  return !export_operand(operand, exported, importer(other)) && export_operand(operand, exported, device::no_importers);
}

bool learn_layout(const Segment& other, Image& image, const Descriptor& descriptor, const RemoteBuffer& place,
                  MappedBuffer& operand) {
  if (operand.layout) return true;
  const bool contiguous = place.layout.bytes == 0;
  operand.count = contiguous ? descriptor.bytes : place.count;
  if (contiguous) {
    operand.layout = datatype::type_info(MPI_BYTE)->layout_ref();
    return true;
  }
  const LockGuard lock(world->mutex);
  operand.layout = world->layouts.find(other, place.layout, image.data_of(descriptor));
  return operand.layout != nullptr;
}

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
