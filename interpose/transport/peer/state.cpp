#include "interpose/transport/peer/state.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "datatype/basic.hpp"
#include "interpose/engine/engine.hpp"
#include "interpose/mpi/workarounds.hpp"
#include "interpose/support/errors.hpp"
#include "interpose/support/log.hpp"
#include "interpose/support/report.hpp"

namespace gpudt::interpose::peer {
namespace {

/// Number of descriptors, with the lowest indices, that messages within the node leave free.
constexpr int kept_for_remote = 32;
/// Number of abandoned descriptors that are checked for each message.
constexpr std::size_t few_abandoned = 32;

}  // namespace

World* world = nullptr;

// --- processes -------------------------------------------------------------------------------------------------------

int drop_ranks(MPI_Comm, int, void* value, void*) {
  delete static_cast<std::vector<int>*>(value);
  return MPI_SUCCESS;
}

std::vector<int> world_ranks(MPI_Comm comm) {
  int inter = 0, size = 0;
  MPI_Group group = MPI_GROUP_NULL, all = MPI_GROUP_NULL;
  PMPI_Comm_test_inter(comm, &inter);
  inter != 0 ? PMPI_Comm_remote_group(comm, &group) : PMPI_Comm_group(comm, &group);
  PMPI_Comm_group(MPI_COMM_WORLD, &all);
  PMPI_Group_size(group, &size);
  std::vector<int> ranks(static_cast<std::size_t>(size)), translated(ranks.size());
  for (int i = 0; i < size; ++i) ranks[static_cast<std::size_t>(i)] = i;
  PMPI_Group_translate_ranks(group, size, ranks.data(), all, translated.data());
  PMPI_Group_free(&group);
  PMPI_Group_free(&all);
  return translated;
}

int world_rank_of(MPI_Comm comm, int peer) {
  if (comm == MPI_COMM_WORLD || comm == MPI_COMM_NULL || peer < 0) return comm == MPI_COMM_NULL ? -1 : peer;
  const LockGuard lock(world->ranks_mutex);
  void* value = nullptr;
  int found = 0;
  PMPI_Comm_get_attr(comm, world->keyval, static_cast<void*>(&value), &found);
  if (found == 0) {
    auto ranks = std::make_unique<std::vector<int>>();
    if (has_common_context(comm)) *ranks = world_ranks(comm);  // else its messages could not be told from others
    if (PMPI_Comm_set_attr(comm, world->keyval, ranks.get()) != MPI_SUCCESS) return -1;
    value = ranks.release();
  }
  const auto& ranks = *static_cast<const std::vector<int>*>(value);
  return static_cast<std::size_t>(peer) < ranks.size() ? ranks[static_cast<std::size_t>(peer)] : -1;
}

bool is_process(int rank) {
  return rank >= 0 && rank < world->ranks;
}

Envelope envelope_of(int tag, MPI_Comm comm) {
  int source = 0;
  PMPI_Comm_rank(comm, &source);
  return {context_of(comm), source, tag};
}

namespace {

Segment* segment_of(int rank) REQUIRES(world->mutex) {
  if (rank == world->rank) return world->own.get();
  if (!is_process(rank)) return nullptr;
  PeerProcess& neighbour = world->neighbours[static_cast<std::size_t>(rank)];
  if (!neighbour.segment && !neighbour.opening.passes()) {
    neighbour.segment = Segment::open(world->job, rank);
    if (!neighbour.segment) neighbour.opening.failed();
  }
  return neighbour.segment.get();
}

}  // namespace

Segment* reach(int rank) {
  return rank == world->rank || world->forced != Protocol::pipelined ? segment_of(rank) : nullptr;
}

bool checks(const Segment* segment) {
  return segment != nullptr && (*segment)->checking.load(std::memory_order_acquire) != 0;
}

Segment* reach_remote(int rank) {
  Segment* const image = world->remote ? world->remote->image(rank) : nullptr;
  return checks(image) ? image : nullptr;
}

Segment* reach_sender(int rank) {
  const LockGuard lock(world->mutex);
  if (is_process(rank)) world->neighbours[static_cast<std::size_t>(rank)].opening.worked();
  return reach(rank);
}

Segment* segment_of_rts_sender(int rank) {
  UniqueLock lock(world->mutex);
  if (is_process(rank)) world->neighbours[static_cast<std::size_t>(rank)].opening.worked();
  Segment* const segment = segment_of(rank);
  lock.unlock();
  if (segment == nullptr && is_process(rank) && Segment::is_there(world->job, rank))
    lost("the shared memory of process " + std::to_string(rank) + " cannot be opened");
  return segment;
}

std::vector<Segment*> segments_of(const std::vector<int>& world_ranks) {
  std::vector<Segment*> segments;
  for (const int rank : world_ranks) {
    Segment* const segment = world == nullptr ? nullptr : reach_sender(rank);
    if (segment == nullptr) return {};
    segments.push_back(segment);
  }
  return segments;
}

[[noreturn]] void lost(const std::string& what) {
  throw MpiError(MPI_ERR_OTHER, "peer transfer: " + what);
}

std::int64_t bytes_in(int count, MPI_Datatype type) {
  return count * datatype::size_of(type);
}

Refusals& PeerProcess::refusals_of(const Traffic& traffic) {
  if (!refusals) refusals = std::make_unique<std::array<Refusals, backoffs_of_tag * backoffs_by_tag>>();
  // Short messages have a back-off of their own: a late receiver counts as a refusal of these, since staging would have
  // been faster. So have long ones, which alone are copied into pinned host memory.
  const std::size_t by_length = has_short_length(traffic.bytes) ? 1 : traffic.bytes >= least_through_segment ? 2 : 0;
  return (*refusals)[backoffs_of_tag * (static_cast<std::size_t>(traffic.tag) % backoffs_by_tag) + by_length];
}

void note_taken(int rank) {
  world->taken[static_cast<std::size_t>(rank)].store(engine_time().time_since_epoch().count(),
                                                     std::memory_order_relaxed);
}

void note_away(int rank) {
  world->taken[static_cast<std::size_t>(rank)].store(0, std::memory_order_relaxed);
}

bool is_known_away(int rank) {
  return world->taken[static_cast<std::size_t>(rank)].load(std::memory_order_relaxed) == 0;
}

SteadyClock::time_point taken_at(int rank) {
  const auto& taken = world->taken[static_cast<std::size_t>(rank)];
  return SteadyClock::time_point(SteadyClock::duration(taken.load(std::memory_order_relaxed)));
}

namespace {

/// Whether refusals keep this process from offering messages.
bool heeds_refusals(int rank, const Traffic& traffic) REQUIRES(world->mutex) {
  if (rank == world->rank || world->forced) return false;
  return traffic.bytes < least_through_segment || !world->chunks->usable();
}

}  // namespace

bool abstains(int rank, const Traffic& traffic) {
  return heeds_refusals(rank, traffic) &&
         world->neighbours[static_cast<std::size_t>(rank)].refusals_of(traffic).passes();
}

bool would_abstain(int rank, const Traffic& traffic) {
  return heeds_refusals(rank, traffic) &&
         world->neighbours[static_cast<std::size_t>(rank)].refusals_of(traffic).waits();
}

bool has_refused(int rank, const Traffic& traffic) {
  return world->neighbours[static_cast<std::size_t>(rank)].refusals_of(traffic).failing();
}

void note_outcome(int rank, const Traffic& traffic, bool refused) {
  const LockGuard lock(world->mutex);
  Refusals& refusals = world->neighbours[static_cast<std::size_t>(rank)].refusals_of(traffic);
  refused ? refusals.failed() : refusals.worked();
}

void note_unpacked_in_vain(int rank) {
  const LockGuard lock(world->mutex);
  world->neighbours[static_cast<std::size_t>(rank)].packs_next = true;
}

bool on_one_gpu(const device::Exported& memory, const DeviceBuffer& operand) {
  const LockGuard lock(world->mutex);
  auto at = world->gpus.find(operand.ordinal);
  if (at == world->gpus.end()) {
    device::Exported own;
    const auto* const first = static_cast<const char*>(operand.buffer) + operand.info->layout().true_lb();
    if (!device::export_memory(operand.ordinal, first, own, device::no_importers)) return false;
    at = world->gpus.emplace(operand.ordinal, own).first;
  }
  return std::equal(std::begin(memory.gpu), std::end(memory.gpu), std::begin(at->second.gpu));
}

void note_shared_gpu(int rank, int ordinal) {
  device::shared_with_others(ordinal, /*yields=*/world->rank > rank);
  const LockGuard lock(world->mutex);
  world->neighbours[static_cast<std::size_t>(rank)].shares_gpu = true;
}

// --- where data lie --------------------------------------------------------------------------------------------------

bool holds(const device::Exported& memory, const DeviceBuffer& operand) {
  const datatype::Span span = operand.info->layout().span(operand.count);
  const auto buffer = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(operand.buffer));
  const auto base = static_cast<std::int64_t>(memory.base);
  return buffer + span.begin >= base && buffer + span.end <= base + static_cast<std::int64_t>(memory.size);
}

const void* lowest_of(const DeviceBuffer& operand) {
  const datatype::Span span = operand.info->layout().span(operand.count);
  return reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(operand.buffer) +
                                       static_cast<std::uintptr_t>(span.begin));
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

device::Importers importer(int rank) {
  if (rank == world->rank) return device::no_importers;
  const LockGuard lock(world->mutex);
  const Segment* const segment = segment_of(rank);
  return segment == nullptr ? device::all_importers : device::Importers::process((*segment)->number);
}

device::Exporter exporter_of(const Segment& segment) {
  return {static_cast<std::uint64_t>(segment->rank), &segment->exports, (*world->own)->number};
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

// --- descriptors -----------------------------------------------------------------------------------------------------

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
bool is_usable(int index, int rank, const Envelope& envelope) REQUIRES(world->mutex) {
  return !plain_under_way(rank, index) && !(peer_has_threads() && is_being_issued(rank, index % rts_lengths, envelope));
}

/// The index of a usable one in [begin, end), or -1.
int idle_descriptor(int rank, const Envelope& envelope, int begin, int end) REQUIRES(world->mutex) {
  std::bitset<rts_lengths> unusable;
  for (int index = world->idle.next(begin); index < end; index = world->idle.next(index + 1)) {
    const auto length = static_cast<std::size_t>(index % rts_lengths);
    if (unusable.test(length)) continue;
    if (is_usable(index, rank, envelope)) return index;
    unusable.set(length);
  }
  return -1;
}

/// idle_descriptor() in [begin, end). Prefers the first descriptors_at_a_time, and takes them round-robin, so that each
/// keeps its description as long as possible.
int idle_in_turn(int rank, const Envelope& envelope, int begin, int end) REQUIRES(world->mutex) {
  int index =
      idle_descriptor(rank, envelope, std::max(begin, world->search_from), std::min(end, descriptors_at_a_time));
  if (index < 0) index = idle_descriptor(rank, envelope, begin, end);
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

int take_descriptor(int rank, const Envelope& envelope, bool remote, int preferred) {
  reclaim_descriptors();
  // Some of the descriptors that images have are left for messages to other nodes.
  const int begin = world->remote && !remote ? kept_for_remote : 0;
  const int end = remote ? descriptors_at_a_time : descriptor_count;
  const bool prefers = preferred >= begin && preferred < end && world->idle.has(preferred);
  int index = prefers && is_usable(preferred, rank, envelope) ? preferred : idle_in_turn(rank, envelope, begin, end);
  if (index < 0 && !remote && make_descriptors()) index = idle_descriptor(rank, envelope, begin, end);
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

/// is_unreceived() for a message with an ordinary RTS.
bool is_meant(const Descriptor& descriptor, const Envelope& envelope) {
  return is_unreceived(descriptor, envelope) && descriptor.bytes >= least_offered;
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

Offered open_offer(Segment* segment, const Envelope& envelope, int rts_index) {
  return oldest_of(segment, rts_index, rts_lengths,
                   [&](const Descriptor& descriptor) { return is_meant(descriptor, envelope); });
}

}  // namespace

Offered open_offer(int sender, const Envelope& envelope, int rts_index) {
  Segment* const image = world->remote ? world->remote->image(sender) : nullptr;
  if (const Offered noticed = open_offer(image, envelope, rts_index))
    return {noticed.descriptor, noticed.index, sender};
  return open_offer(reach_sender(sender), envelope, rts_index);
}

Offered open_offer(const Envelope& envelope, int rts_index) {
  Offered found;
  for (int rank = 0; !found && rank < world->ranks; ++rank) found = open_offer(rank, envelope, rts_index);
  return found;
}

Offered oldest_offer(int sender, const Envelope& envelope) {
  return oldest_of(reach_sender(sender), 0, 1,
                   [&](const Descriptor& descriptor) { return is_unreceived(descriptor, envelope); });
}

bool is_rts_of_open_offer(int sender, const Envelope& envelope, std::int64_t bytes) {
  bool found = false;
  for_each_descriptor(reach_sender(sender), 0, 1, [&](const Descriptor& descriptor, int index) {
    found = found || (bytes == length_of_rts(descriptor.bytes, index) && descriptor.state.is_open() &&
                      is_unreceived(descriptor, envelope));
  });
  return found;
}

bool may_have_issued(int sender, const Envelope& envelope, int rts_index) {
  Segment* const segment = reach_sender(sender);
  if (segment == nullptr) return world->remote && world->remote->greeted(sender);
  bool found = false;
  for_each_descriptor(segment, rts_index, rts_lengths,
                      [&](const Descriptor& descriptor, int) { found = found || is_meant(descriptor, envelope); });
  return found;
}

void mark_matched(Descriptor& descriptor) {
  add_to(world->received_rts, 1);  // before a probe can miss the offer (peer_received_rts())
  descriptor.matched.store(1);
}

// --- control messages ------------------------------------------------------------------------------------------------

void receive_control_messages() {
  ++world->remote->under_way;
  world->remote->advance();
  --world->remote->under_way;
}

std::chrono::microseconds control_timeout_for(int sender) {
  if (!world->remote || !world->remote->greeted(sender)) return {};
  const LockGuard lock(world->mutex);
  const bool in_vain = world->neighbours[static_cast<std::size_t>(sender)].awaited_in_vain;
  return in_vain ? short_control_timeout : control_timeout;
}

}  // namespace gpudt::interpose::peer
