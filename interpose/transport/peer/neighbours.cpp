// What is known of other processes, and which protocol a message to one of them takes.
#include "interpose/transport/peer/state.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "datatype/basic.hpp"
#include "interpose/engine/engine.hpp"
#include "interpose/mpi/workarounds.hpp"
#include "interpose/support/errors.hpp"
#include "interpose/transport/peer/peer.hpp"
#include "interpose/transport/peer/short_rts.hpp"

namespace gpudt::interpose::peer {
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

bool expects_short(const Segment& receiver) {
  return receiver->expects_short.load(std::memory_order_acquire) != 0 && world->rank < short_rts_ranks;
}

bool sends_compact(int rank) {
  if (rank == world->rank) return false;
  const Segment* const receiver = reach(rank);
  return receiver != nullptr && expects_short(*receiver) && some_may_be_compact(rank);
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
  const std::size_t by_length = traffic.bytes < least_offered ? 1 : traffic.bytes >= least_through_segment ? 2 : 0;
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

void note_shared_gpu(int rank, int ordinal) {
  device::shared_with_others(ordinal, /*yields=*/world->rank > rank);
  const LockGuard lock(world->mutex);
  world->neighbours[static_cast<std::size_t>(rank)].shares_gpu = true;
}

device::Importers importer(int rank) {
  if (rank == world->rank) return device::no_importers;
  const LockGuard lock(world->mutex);
  const Segment* const segment = segment_of(rank);
  return segment == nullptr ? device::all_importers : device::Importers::process((*segment)->number);
}

// --- the protocol of a message to one of them ------------------------------------------------------------------------

bool may_offer(MPI_Comm comm) {
  return comm != MPI_COMM_NULL && (peer_checks() || (peer_checks_hidden() && comm == hidden_comm()));
}

void look_at(int rank, Route& route) {
  const Segment* const segment = reach(rank);
  const bool sharing = rank == world->rank || checks(segment);
  const Receiver other = world->remote && is_process(rank) ? Receiver::remote : Receiver::unreachable;
  route.process = rank;
  route.receiver = sharing ? Receiver::sharing : other;
  route.expects_short = sharing && expects_short(*segment);
}

bool has_room_for_host_data() {
  return world->chunks->usable() && world->from_host_under_way.load() < chunk_count / parts_in_flight;
}

bool is_met(int rank) {
  if (reach_remote(rank) != nullptr) return true;
  world->remote->greet(rank);
  return false;
}

namespace {

/// Where contexts are numbered: whether the receiver has numbered this communicator, too, as its probes need: mpi_f08
/// procedures and tools may make communicators past the library. (An RTS of a short message has the message's length.)
bool expects(const Segment& receiver, std::uint32_t context, std::int64_t bytes) {
  const ContextBit bit(context);
  return has_short_length(bytes) || context < first_made_context ||
         (receiver->contexts[bit.word].load(std::memory_order_relaxed) & bit.mask) != 0;
}

double packing_us(const DeviceBuffer& operand) {
  return device::expected_packing_us(operand.ordinal, operand.info->layout(), operand.count);
}

}  // namespace

Protocol choose_known(const DeviceBuffer& operand, int rank, const Envelope& envelope, Message& message, Route& route) {
  Protocol protocol = choose(message, route);
  if (protocol == Protocol::pipelined && operand.protocol == Protocol::device_staging) {
    message.packing_us = packing_us(operand);  // only for messages that need it, since it takes long
    protocol = choose(message, route);
  }
  if (row_of(protocol).recognise == nullptr || protocol == Protocol::pipelined) return protocol;
  if (must_be_compact(message.bytes) && !sends_compact(rank))
    route.not_offered = "it is as long as an RTS, and none of another length can be sent";
  else if (hidden_messages_share_comm && !expects(*reach(rank), envelope.context, message.bytes))
    route.not_offered = "the receiver does not know the communicator";
  else
    return protocol;
  return choose(message, route);
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

namespace gpudt::interpose {

using namespace peer;

bool peer_is_itself(MPI_Comm comm, int other) {
  return world != nullptr && world_rank_of(comm, other) == world->rank;
}

Protocol expected_protocol(const DeviceBuffer& operand, const Destination& to, Message& message, Route& route) {
  if (!may_offer(to.comm)) {
    route.not_offered = "there are no peer transfers";
    return choose(message, route);
  }
  const int rank = world_rank_of(to.comm, to.rank);
  const Envelope envelope = envelope_of(to.tag, to.comm);
  const LockGuard lock(world->mutex);
  look_at(rank, route);
  route.backing_off = route.receiver == Receiver::sharing && would_abstain(rank, {to.tag, message.bytes});
  return choose_known(operand, rank, envelope, message, route);
}

}  // namespace gpudt::interpose
