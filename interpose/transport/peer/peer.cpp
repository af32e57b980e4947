// Begin and end of peer transfers, probes, and receives that may get RTS messages.
#include "interpose/transport/peer/peer.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/never_destroyed.hpp"
#include "datatype/reference.hpp"
#include "interpose/engine/engine.hpp"
#include "interpose/job/launcher.hpp"
#include "interpose/job/presence.hpp"
#include "interpose/mpi/workarounds.hpp"
#include "interpose/support/log.hpp"
#include "interpose/support/report.hpp"
#include "interpose/transport/peer/descriptors.hpp"
#include "interpose/transport/peer/freed_memory.hpp"
#include "interpose/transport/peer/state.hpp"

namespace gpudt::interpose {

using namespace peer;

std::atomic<bool> peer_checking{false}, peer_collecting{false}, peer_threading{false};

namespace {

auto& freed_memory = never_destroyed<FreedMemory>();
constexpr int self_tag = 3;
/// An RTS that MPI has been given on the same node is found within this time and this number of probes; both must pass,
/// since on a busy machine the process itself may not run for longer than the time.
constexpr std::chrono::milliseconds rts_arrival{50};
constexpr int rts_arrival_probes = 1000;
/// A sender that has described a message gives MPI the RTS within this time.
constexpr std::chrono::seconds rts_issue{1};

void start_remote(int processes) {
  if (!has_hidden_messages() || hidden_messages_share_comm) {
    log_trace("this MPI library has no messages to other nodes that programs cannot see: none goes in fragments");
    return;
  }
  world->remote.emplace(*world->own, world->rank);
  engine_register(EnginePart::transport, &*world->remote);
  if (world->forced != Protocol::pipelined) return;
  for (int rank = 0; rank < processes; ++rank)
    if (rank != world->rank) world->remote->greet(rank);
}

constexpr const char* needs_known = "they need Open MPI 4, or 5 and a gpudt that was built with it, or MPICH 4 or 5";

/// Why no messages are offered, though processes of the node share memory; null if they may be.
const char* obstacle_to_messages(MPI_Comm self) {
  if (!all_receives_are_known()) return needs_known;
  if (find_contexts(self)) return nullptr;
  return hidden_messages_share_comm ? "over MPICH all processes must be on one node and have gpudt"
                                    : "this MPI library does not tell communicators apart as Open MPI 4 and 5 do";
}

/// From now on messages of collectives are offered to this process, if MPI has hidden messages.
void start_hidden() {
  if (!has_hidden_messages() || mpi_takes_device_memory()) return;
  (*world->own)->checking.store(1, std::memory_order_release);
  peer_collecting.store(true);
}

/// From now on messages are offered to this process.
void start_messages(ForcedProtocol forced) {
  if (truncated_statuses_tell && !find_request_contexts(world->self))
    log_trace(
        "requests do not tell their communicators: device messages that are too long for nonblocking receives of "
        "a few bytes do not release their senders");
  if (forced == Protocol::pipelined || processes_on_node() != world->ranks) start_remote(world->ranks);
  // If others are to be treated as processes of other nodes, MPI is given device memory for what they send
  // (peer_may_exchange_rts()), where an RTS of this node could not be read: then none is to be sent here.
  const bool on_host = !(forced == Protocol::pipelined && mpi_takes_device_memory());
  (*world->own)->checking.store(on_host ? 1 : 0, std::memory_order_release);
  peer_checking.store(true);
  peer_collecting.store(true);
}

}  // namespace

void peer_start(ForcedProtocol forced, int world_rank, bool unmap_freed) {
  if (forced == Protocol::mapped_staging) return;
  const auto impossible = [forced](const char* why) {
    report_no_peers(why);
    const std::string text = std::string("no peer transfers, messages are staged: ") + why;
    forced ? log_warning("GPUDT_PROTOCOL: " + text) : log_trace(text);
  };
  if (!is_known_version()) return impossible(needs_known);
  // MPI is given device memory to receive into where the sender is known to have no gpudt (peer_may_exchange_rts()).
  if (mpi_takes_device_memory() && presence_announced(world_rank) == 0)
    return impossible("the MPI library takes device pointers, and which ranks have gpudt is unknown");
  const std::string job = job_name();
  if (job.empty()) return impossible("this MPI library does not tell processes what job they belong to");
  if (awaits_others(job)) return impossible("MPI_Init has not waited for all processes of this node");
  auto made = std::make_unique<World>();
  try {
    made->own = Segment::create(job, world_rank);
  } catch (const std::exception& error) {
    const bool full = dynamic_cast<const SharedMemoryFull*>(&error) != nullptr;
    report_no_peers(full ? no_shared_memory : "shared memory could not be had");
    log_warning(std::string("no peer transfers: ") + error.what());
    return;
  }
  made->self = bare_self(self_tag);
  made->job = job;
  made->rank = world_rank;
  made->forced = forced;
  made->unmaps_freed = unmap_freed;
  int level = MPI_THREAD_SINGLE;
  PMPI_Query_thread(&level);
  peer_threading.store(level == MPI_THREAD_MULTIPLE);
  int size = 0;
  PMPI_Comm_size(MPI_COMM_WORLD, &size);
  made->ranks = size;
  made->taken = std::vector<std::atomic<SteadyClock::rep>>(static_cast<std::size_t>(size));
  made->short_under_way = std::vector<std::atomic<int>>(static_cast<std::size_t>(size));
  made->chunks.emplace(*made->own);
  PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, drop_ranks, &made->keyval, nullptr);
  {
    const LockGuard lock(made->mutex);
    made->neighbours.resize(static_cast<std::size_t>(size));
    made->abandoned.reserve(descriptor_count);
  }
  world = made.release();
  if (unmap_freed) {
    device::tell_exports((*world->own)->exports);
    engine_register(EnginePart::memory, &freed_memory);
  }
  if (const char* const obstacle = obstacle_to_messages(world->self)) {
    start_hidden();
    return impossible(obstacle);
  }
  start_messages(forced);
}

bool peer_stop() {
  if (world == nullptr) return true;
  peer_checking.store(false);
  peer_collecting.store(false);
  (*world->own)->checking.store(0, std::memory_order_release);
  engine_register(EnginePart::transport, nullptr);
  engine_register(EnginePart::memory, nullptr);
  const bool quiet = !world->remote || world->remote->stop();
  PMPI_Comm_free_keyval(&world->keyval);
  PMPI_Comm_free(&world->self);
  const LockGuard lock(world->mutex);
  world->layouts.clear();
  return quiet;
}

// Also of this process, which may send itself an RTS.
bool peer_may_exchange_rts(int other, MPI_Comm comm) {
  if (comm == MPI_COMM_NULL || other == MPI_ANY_SOURCE) return true;
  const int rank = world_rank_of(comm, other);
  if (world->forced == Protocol::pipelined && rank != world->rank) return false;  // as if on other nodes
  return is_process(rank) && !presence_rules_out(rank);
}

bool peer_takes_fragments() {
  return peer_checks() && world->remote.has_value();
}

void peer_has_communicator(MPI_Comm of, MPI_Comm made) {
  number_context(of, made);
  if (!hidden_messages_share_comm || world == nullptr || made == MPI_COMM_NULL) return;
  const ContextBit bit(context_of(made));
  (*world->own)->contexts[bit.word].fetch_or(bit.mask);
}

bool peer_was_offered() {
  return (*world->own)->offered.load(std::memory_order_relaxed) != 0;
}

bool peer_has_room(std::size_t messages) {
  if (!peer_checks_hidden()) return false;
  const LockGuard lock(world->mutex);
  reclaim_descriptors();
  return free_descriptors() >= messages;
}

std::uint64_t peer_received_rts() {
  return peer_checks() && peer_has_threads() ? world->received_rts.load() : 0;
}

Probed peer_probed(MPI_Comm comm, MPI_Status* status, bool matched) {
  if (!peer_checks() || status == MPI_STATUS_IGNORE) return Probed::plain;
  const std::int64_t bytes = received_bytes(*status);
  if (bytes < 0) return Probed::received;
  const bool compact = peer_may_be_compact(bytes);
  if (rts_index(bytes) < 0 && !compact) return Probed::plain;
  if (world->remote && !compact) receive_control_messages();
  const Envelope envelope{context_of(comm), status->MPI_SOURCE, status->MPI_TAG};
  const int sender = world_rank_of(comm, status->MPI_SOURCE);
  const auto find = [&] { return open_offer(sender, envelope, bytes); };
  const std::chrono::microseconds timeout = compact ? std::chrono::microseconds(0) : control_timeout_for(sender);
  Offered offered = find_awaiting_control_messages(timeout, find);
  if (timeout.count() != 0) {
    const LockGuard lock(world->mutex);
    world->neighbours[static_cast<std::size_t>(sender)].awaited_in_vain = !offered;
  }
  if (!offered) return Probed::plain_or_received;
  const auto lock = peer_matching();
  offered = find_unreceived(envelope, find);
  if (!offered) return Probed::plain_or_received;
  if (matched) mark_matched(*offered.descriptor);
  PMPI_Status_set_elements_x(status, MPI_BYTE, offered.descriptor->bytes);
  return Probed::rts;
}

namespace {

/// Releases the sender of an offer whose RTS has come to a receive that was too short for it.
void release_sender(const Offered& offered) {
  const MessageId id{offered.index, offered.descriptor->generation};
  mark_matched(*offered.descriptor);
  if (offered.descriptor->state.discard() && offered.remote >= 0) world->remote->done(offered.remote, id);
}

/// How long the control message of an offer with an RTS of `bytes` bytes may take. A compact RTS has none.
std::chrono::microseconds time_for_control_message(std::int64_t bytes) {
  return world->remote && rts_index(bytes) >= 0 ? control_timeout : std::chrono::microseconds(0);
}

/// Releases the sender of the offer that `find()` finds within `timeout`; false if it finds none.
template <class Find>
bool release_found(const Envelope& envelope, std::chrono::microseconds timeout, Find find) {
  Offered offered = find_awaiting_control_messages(timeout, find);
  if (offered) offered = find_unreceived(envelope, find);
  if (offered) release_sender(offered);
  return bool{offered};
}

}  // namespace

namespace {

/// The length of the next message with this envelope that MPI has and no receive has got yet; -1: there is none.
std::int64_t bytes_of_next(MPI_Comm comm, const Envelope& envelope) {
  MPI_Status status{};
  int found = 0;
  const auto deadline = SteadyClock::now() + rts_arrival;
  for (int probes = 0; found == 0 && (probes < rts_arrival_probes || SteadyClock::now() < deadline); ++probes)
    PMPI_Iprobe(envelope.source, envelope.tag, comm, &found, &status);
  return found == 0 ? -1 : received_bytes(status);
}

/// Where MPI does not return the length of a truncated message: releases the sender of the oldest offer with this
/// envelope if its RTS was truncated, that is, if MPI's next message is neither that RTS nor an ordinary message.
void release_oldest(MPI_Comm comm, int sender, const Envelope& envelope) {
  const auto find = [&] { return oldest_offer(sender, envelope); };
  if (!find()) return;
  const Offered offered = find_unreceived(envelope, find);
  if (!offered) return;
  const auto deadline = SteadyClock::now() + rts_issue;
  while (offered.descriptor->issue.load() != Issue::issued)
    if (SteadyClock::now() > deadline) return;
  const std::int64_t next = bytes_of_next(comm, envelope);
  const bool is_behind = next != length_of_rts(*offered.descriptor, offered.index) &&
                         (next < 0 || is_rts_of_open_offer(sender, envelope, next));
  if (is_behind) release_sender(offered);
}

}  // namespace

void peer_truncated(MPI_Comm comm, const MPI_Status& status) {
  if (!peer_checks() || comm == MPI_COMM_NULL) return;
  const int sender = world_rank_of(comm, status.MPI_SOURCE);
  const Envelope envelope{context_of(comm), status.MPI_SOURCE, status.MPI_TAG};
  if (!truncated_statuses_tell) return release_oldest(comm, sender, envelope);
  const std::int64_t bytes = received_bytes(status);
  const int index = rts_index(bytes);
  if (index < 0 && !peer_may_be_compact(bytes)) return;
  if (release_found(envelope, time_for_control_message(bytes), [&] { return open_offer(sender, envelope, bytes); }))
    return;
  if (index >= 0 && !may_have_issued(sender, envelope, index)) peer_received_plain(bytes, status.MPI_SOURCE, comm);
}

void peer_truncated_in(std::int64_t context, const MPI_Status& status) {
  const std::int64_t bytes = received_bytes(status);
  const bool may_be_rts = rts_index(bytes) >= 0 || peer_may_be_compact(bytes);
  if (!truncated_statuses_tell || !peer_checks() || !may_be_rts || context < 0) return;
  const Envelope envelope{static_cast<std::uint32_t>(context), status.MPI_SOURCE, status.MPI_TAG};
  release_found(envelope, time_for_control_message(bytes), [&] { return open_offer(envelope, bytes); });
}

// --- receives --------------------------------------------------------------------------------------------------------

namespace {

bool may_come_in_parts(const datatype::TypeInfo& info) {
  return info.widest_element() <= widest_received_in_parts();
}

}  // namespace

HostReceive::HostReceive(void* buf, int count, MPI_Datatype type, datatype::TypeInfoRef info, bool apart)
    : buf_(buf), count_(count), type_(type), info_(std::move(info)) {
  if (!info_ || may_come_in_parts(*info_)) return;
  const datatype::Shape shape = info_->layout().shape(count);
  if (shape.kind != datatype::ShapeKind::contiguous || (apart && peer_receives_bytes_alone())) {
    packed_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(bytes()));
    // truncated() looks for an RTS here, also if MPI has written nothing.
    std::memset(packed_.get(), 0, std::min(static_cast<std::size_t>(bytes()), sizeof(RendezvousRequest)));
  } else if (peer_receives_bytes_alone()) {
    bytes_at_ = static_cast<std::byte*>(buf) + shape.offset;
  }
}

Outgoing HostReceive::message() const {
  if (packed_ || bytes_at_ != nullptr) return {packed_ ? packed_.get() : bytes_at_, count_, info_->packed_type()};
  return {buf_, count_, type_};
}

Announced HostReceive::announced(std::int64_t bytes) {
  receiver_.reset();
  const std::int64_t room = this->bytes();
  // MPI may return a length greater than the buffer's.
  if (!peer_may_be_rts(bytes) || bytes > room) return {std::min(bytes, room)};
  receiver_ = recognised(bytes);
  return receiver_ ? receiver_->announced(room) : Announced{bytes};
}

std::unique_ptr<RendezvousReceiver> HostReceive::recognised(std::int64_t bytes) const {
  if (envelope_) {
    auto next = RendezvousReceiver::recognise_next(*envelope_, bytes);
    if (next || !world->remote) return next;  // else it may have come from another node
  }
  alignas(RendezvousRequest) std::byte head[sizeof(RendezvousRequest)];
  if (!packed_) datatype::pack(info_->layout(), count_, buf_, 0, std::min<std::int64_t>(bytes, sizeof head), head);
  return recognise(packed_ ? packed_.get() : head, bytes);
}

bool HostReceive::truncated(std::int64_t bytes) {
  const std::int64_t room = info_ ? std::min<std::int64_t>(this->bytes(), sizeof(ShortRequest)) : 0;
  std::byte head[sizeof(ShortRequest)];
  if (room > 0 && !packed_) datatype::pack(info_->layout(), count_, buf_, 0, room, head);
  return RendezvousReceiver::release_named(packed_ ? packed_.get() : head, bytes, room);
}

void HostReceive::start_unpack(std::int64_t bytes) {
  if (receiver_)
    receiver_->start(info_->layout_ref(), count_, buf_);
  else if (packed_)
    datatype::unpack(info_->layout(), count_, buf_, 0, bytes, packed_.get());
}

Announced ReceiveWithRoom::announced(std::int64_t bytes) {
  const std::int64_t room = count_ * info_->layout().size(), delivered = std::min(bytes, room);
  receiver_ = recognise(rts_, bytes);
  if (receiver_) {
    const Announced announced = receiver_->announced(room);
    if (announced.error == MPI_SUCCESS) return announced;
    receiver_.reset();  // which releases the sender
    return {delivered, MPI_ERR_TRUNCATE, /*fetched=*/true};
  }
  deliver(delivered);
  return {delivered, bytes > room ? MPI_ERR_TRUNCATE : MPI_SUCCESS};
}

void ReceiveWithRoom::start_unpack(std::int64_t) {
  if (receiver_) receiver_->start(info_->layout_ref(), count_, buf_);
}

void ReceiveWithRoom::deliver(std::int64_t bytes) const {
  datatype::unpack(info_->layout(), count_, buf_, 0, bytes, rts_);
}

bool peer_may_reach_host(int count, MPI_Datatype type) {
  if (!peer_checks() || count <= 0 || type == MPI_DATATYPE_NULL) return false;
  const std::int64_t bytes = bytes_in(count, type);
  return bytes >= shortest_rts || !peer_may_pass_unchecked(bytes);
}

std::shared_ptr<HostReceive> peer_host_receive(void* buf, int count, MPI_Datatype type, bool apart) {
  if (!peer_may_reach_host(count, type)) return nullptr;
  datatype::TypeInfoRef info = datatype::type_info(type);
  return info ? std::make_shared<HostReceive>(buf, count, type, std::move(info), apart) : nullptr;
}

std::shared_ptr<ReceivePayload> peer_blocking_receive(void* buf, int count, MPI_Datatype type, bool apart) {
  if (type == MPI_DATATYPE_NULL || count < 0) return nullptr;
  const std::int64_t bytes = bytes_in(count, type);
  const bool wants_room = peer_wants_room(bytes);
  if (!wants_room && datatype::basic_types.size(type) != 0 && !peer_receives_bytes_alone()) return nullptr;
  const datatype::TypeInfoRef info = wants_room || buf == MPI_BOTTOM ? datatype::type_info(type) : nullptr;
  if (bytes > 0 && buf == MPI_BOTTOM && (!info || info->layout().true_lb() == 0)) return nullptr;  // MPI reports it
  if (wants_room) return info ? std::make_shared<ReceiveWithRoom>(buf, count, info) : nullptr;
  if (bytes < shortest_rts && !peer_expects_short())
    return nullptr;  // finish_host_receive() sees that an RTS was truncated
  std::shared_ptr<HostReceive> receive = peer_host_receive(buf, count, type, apart);
  return receive && !receive->is_as_it_is() ? receive : nullptr;
}

bool is_truncation(int code) {
  int error_class = MPI_SUCCESS;
  PMPI_Error_class(code, &error_class);
  return error_class == MPI_ERR_TRUNCATE;
}

}  // namespace gpudt::interpose
