// The sender's end of peer transfers: offers and their RTS messages.
#include "interpose/transport/peer/peer.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/one_thread.hpp"
#include "datatype/reference.hpp"
#include "interpose/support/log.hpp"
#include "interpose/support/points.hpp"
#include "interpose/support/report.hpp"
#include "interpose/transport/internode/message_ends.hpp"
#include "interpose/transport/peer/descriptors.hpp"
#include "interpose/transport/peer/short_rts.hpp"
#include "interpose/transport/peer/state.hpp"

namespace gpudt::interpose {

using namespace peer;

namespace {

/// After this time for each message of at most longest_buffered bytes that is under way to a receiver, one of them that
/// it has not claimed is copied to the segment, so that its send ends.
constexpr std::chrono::microseconds buffering_timeout{50};
/// A receiver is taken to be away from MPI if it has fetched nothing, since the message was offered, for least_away and
/// for the time that it takes to copy all messages under way to it, buffering_time each.
constexpr std::chrono::microseconds least_away{1000}, buffering_time{10};
/// Data that are packed to be fetched are packed in parts from twice least_fetched_part on: the first is 1 /
/// first_fetched_fraction of the message, so that the receiver can begin soon; each other has fetched_growth times the
/// bytes of all before it. A part costs each side a launch, in which time 10 MB are packed.
constexpr std::int64_t first_fetched_fraction = 8;
constexpr std::int64_t least_fetched_part = 16 << 20;
constexpr std::int64_t fetched_growth = 2;
constexpr std::size_t fetched_parts_under_way = 2;
void trace_why_packed(const DeviceBuffer& operand) {
  const void* const first = static_cast<const char*>(operand.buffer) + operand.info->layout().true_lb();
  if (const std::string why = device::not_exported_because(first); !why.empty())
    log_trace("the memory cannot be mapped by others as it is: " + why);
}

/// Packs bytes [begin, end) to where they lie in `staging`, which has room for all.
device::Transfer pack(const DeviceBuffer& from, const device::Staging& staging, std::int64_t begin, std::int64_t end) {
  return device::start(device::Direction::pack, from.ordinal, from.info->layout(), from.count, from.buffer, begin, end,
                       static_cast<std::byte*>(staging.data()) + begin, staging.memory_kind(), from.after);
}

}  // namespace

RendezvousSender::RendezvousSender(const Place& place, const DeviceBuffer& operand)
    : index_(place.index),
      descriptor_((*world->own)->descriptor(place.index)),
      world_(place.world),
      remote_(place.remote),
      operand_(operand),
      range_("rendezvous: send", operand.bytes()) {
  if (may_be_buffered()) add_to(world->short_under_way[static_cast<std::size_t>(world_)], 1);
  if (is_on_host()) world->from_host_under_way.fetch_add(1);
  descriptor_.bytes = operand.bytes();
  store_if_different(descriptor_.produced, std::uint64_t{0});
  store_if_different(descriptor_.consumed, std::uint64_t{0});
  store_if_different(descriptor_.wanted_bytes, std::int64_t{-1});
  store_if_different(descriptor_.found, std::uint32_t{0});
}

/// Makes the RTS, when all else of the descriptor is there. From now on the receiver may have the RTS.
void RendezvousSender::open() {
  opened_ = true;
  Image& own = **world->own;
  if (is_named()) {
    const ShortRequest rts = short_request(own, index_);
    std::memcpy(descriptor_.rts, &rts, sizeof rts);
  } else {
    const RendezvousRequest rts = {rts_mark,
                                   {own.nonce[0], own.nonce[1]},
                                   world->rank,
                                   index_,
                                   descriptor_.generation,
                                   remote_ ? rts_remote : 0,
                                   descriptor_.bytes,
                                   remote_ ? descriptor_.fragment_bytes : 0};
    std::memcpy(descriptor_.rts, &rts, sizeof rts);
  }
  descriptor_.state.offer();
  if (remote_) world->remote->offer(index_);
}

std::shared_ptr<SendPayload> make_offer(const DeviceBuffer& operand, const Destination& to, Message& message,
                                        Route& route) {
  const auto place = RendezvousSender::place_for(operand, to, message, route);
  if (!place) return nullptr;
  std::unique_ptr<RendezvousSender> made;
  try {
    made.reset(new RendezvousSender(*place, operand));
  } catch (const std::bad_alloc&) {
    put_descriptor(place->index, /*done=*/true, {}, {});
    throw;
  }
  std::shared_ptr<RendezvousSender> offer(made.release(), std::default_delete<RendezvousSender>(),
                                          RecyclingAllocator<RendezvousSender>());
  try {
    device::moving(operand, [&] { offer->offer(*place); });
    report_went(operand.reported, place->remote ? went_pipelined(operand) : Went{protocol_name(Protocol::peer)});
    gpudt::mark(point::offered);
  } catch (const device::Error& error) {
    if (error.failure() != device::Failure::out_of_memory) throw;
    route.not_offered = "there is no device memory left";  // the host may have room
    return nullptr;
  }
  return offer;
}

void RendezvousSender::offer(const Place& place) {
  if (remote_) {
    descriptor_.ready.store(0, std::memory_order_relaxed);
    outflow_ = std::make_unique<MessageOutflow>(*world->remote, world_, index_, descriptor_, operand_);
    outflow_->step();
    report_peer(PeerEvent::remote);
  } else if (is_on_host()) {
    describe_nothing(unmappable_host);
  } else {
    // A short message takes less time to fetch than to pack, whatever its layout.
    describe(place.afar && descriptor_.bytes > longest_buffered &&
                 device::better_fetched_packed(operand_.ordinal, operand_.info->layout(), operand_.count),
             !place.wanted_in_fragments);
  }
  report_peer(is_on_host() ? PeerEvent::from_host : PeerEvent::offered);
  if (tracing())
    log_trace("message of " + std::to_string(descriptor_.bytes) + " B offered to process " + std::to_string(world_) +
              (packed_ ? ", packed" : "") + (remote_ ? ", in fragments" : ""));
  open();
}

/// Describes where the receiver finds the data.
void RendezvousSender::describe(bool better_packed, bool may_pack) {
  const auto bytes = static_cast<std::size_t>(descriptor_.bytes);
  if (better_packed) packed_ = device::try_acquire(device::StagingKind::device, operand_.ordinal, bytes);
  if (!packed_ && describe_in_place()) return;
  if (tracing()) trace_why_packed(operand_);
  RemoteBuffer from = {};
  not_packed_ = !packed_ && !may_pack;
  if (not_packed_) return describe_nothing(0);
  if (!packed_ || !device::export_memory(operand_.ordinal, packed_.data(), from.memory, importer(world_))) {
    device::ExportedStaging taken = device::acquire_exported(operand_.ordinal, bytes, importer(world_));
    packed_ = std::move(taken.staging);
    if (!packed_) return describe_nothing(0);
    from.memory = taken.exported.value_or(device::Exported{});  // with none, the receiver wants fragments
  }
  store_if_different(descriptor_.ready, std::int64_t{0});
  store_if_different(descriptor_.unmappable, std::uint32_t{better_packed ? 0U : unmappable_gpu});
  from.address = reinterpret_cast<std::uint64_t>(packed_.data());
  update_description(index_, from);
  report_peer(PeerEvent::packed);
  pack_next_part();  // the others when the RTS is on its way
}

/// The receiver can only ask for fragments.
void RendezvousSender::describe_nothing(std::uint32_t unmappable) {
  store_if_different(descriptor_.ready, std::int64_t{0});
  store_if_different(descriptor_.unmappable, unmappable);
  update_description(index_, {});
}

/// Describes the program's buffer. False if the data cannot be fetched from there, or not yet (describe_operand()).
bool RendezvousSender::describe_in_place() {
  if (!is_described(index_, operand_, world_)) {
    RemoteBuffer from = {};
    if (!describe_operand(operand_, world_, **world->own, descriptor_, from, published_)) return false;
    update_description(index_, from);
    note_source(index_, operand_, world_);
  }
  store_if_different(descriptor_.unmappable, std::uint32_t{0});
  store_if_different(descriptor_.ready, operand_.after.reached() ? descriptor_.bytes : std::int64_t{0});
  return true;
}

/// Data in the program's buffer are ready once the program's own work is over.
void RendezvousSender::make_ready() {
  const bool described = descriptor_.from.memory.size != 0;
  if (!described || descriptor_.ready.load(std::memory_order_relaxed) != 0 || !operand_.after.reached()) return;
  descriptor_.ready.store(descriptor_.bytes, std::memory_order_release);
}

void RendezvousSender::pack_next_part() {
  const std::int64_t begin = packing_bytes_;
  const std::int64_t bytes = descriptor_.bytes;
  const std::int64_t first =
      bytes < 2 * least_fetched_part ? bytes : std::max(divided(bytes, first_fetched_fraction), least_fetched_part);
  packing_bytes_ = std::min(begin == 0 ? first : begin + begin * fetched_growth, bytes);
  packing_.push_back({packing_bytes_, pack(operand_, packed_, begin, packing_bytes_)});
}

/// Publishes which bytes the receiver can fetch, and packs more of data that are packed first.
void RendezvousSender::pack_on() {
  if (!packed_) return make_ready();
  for (; !packing_.empty() && packing_.front().transfer.done(); packing_.erase(packing_.begin()))
    descriptor_.ready.store(packing_.front().end, std::memory_order_release);
  while (packing_bytes_ < descriptor_.bytes && packing_.size() < fetched_parts_under_way) pack_next_part();
}

RendezvousSender::~RendezvousSender() {
  if (!sent_) give_up();
  putting_ = {};
  // A message that is given up after an error: the receiver sees the state.
  const State state = all_sent_ ? descriptor_.state.load() : descriptor_.state.fail().found;
  if (remote_ && state == State::offered) world->remote->withdrawn(index_);
  if (state == State::claimed && descriptor_.ready.load() < descriptor_.bytes)
    descriptor_.ready.store(-1, std::memory_order_release);
  outflow_.reset();
  packing_.clear();
  if (may_be_buffered()) take_from(world->short_under_way[static_cast<std::size_t>(world_)], 1);
  if (is_on_host()) world->from_host_under_way.fetch_sub(1);
  put_descriptor(index_, state == State::done, std::move(packed_), std::move(published_));
}

/// Retracts an offer whose RTS MPI has not sent. If MPI has returned an error, the receiver may have the RTS
/// nevertheless; the destructor sees to that.
void RendezvousSender::give_up() {
  // Without the offer a receiver would take such an RTS for data.
  if (is_named() && descriptor_.issue.load() != Issue::not_yet) return;
  descriptor_.state.retract();
  if (remote_ && opened_) world->remote->withdrawn(index_);
}

Outgoing RendezvousSender::message() const {
  descriptor_.issue.store(Issue::being_issued, std::memory_order_release);
  return {descriptor_.rts, static_cast<int>(length_of_rts(descriptor_, index_)), MPI_BYTE};
}

bool RendezvousSender::goes_synchronously() const {
  return cuts_off_own_messages && world_ == world->rank && !may_be_buffered();
}

bool RendezvousSender::sent() {
  offered_at_ = engine_within() ? engine_time() : SteadyClock::now();
  return sent_ = true;
}

bool RendezvousSender::step() {
  if (remote_) return step_remote();
  switch (descriptor_.state.load()) {
    case State::done:
      note_taken(world_);
      gpudt::mark(point::acknowledged);
      note_what_receiver_found();
      if (not_packed_ && is_receiver_on_gpu())
        note_unpacked_in_vain(world_);
      else
        note_outcome(/*refused=*/streams_);
      return true;
    case State::buffered:
      if (is_short()) note_outcome(/*refused=*/true);  // staging would have been faster
      return true;
    case State::put:
      return true;
    case State::offered:
      pack_on();
      // The receiver will ask for fragments: the first is copied while the RTS is on its way.
      if (is_on_host() && !outflow_) outflow_ = SegmentOutflow::ahead(descriptor_, *world->chunks, operand_);
      withdraw();
      break;
    case State::claimed:
    case State::declined:
      pack_on();
      break;
    case State::asked:
      answer();
      break;
    case State::putting:
      if (put()) return true;
      break;
    case State::withdrawing:
      buffer();
      break;
    case State::fragments_wanted:
      stream();
      break;
    default:
      break;
  }
  return receiver_gone();
}

/// Takes the offer back if the receiver has not claimed it in time, so that its data go to the descriptor.
void RendezvousSender::withdraw() try {
  if (!may_be_buffered()) return;
  if (!operand_.after.reached()) {
    offered_at_ = engine_time();  // the receiver cannot fetch the data yet
    return;
  }
  const int under_way = world->short_under_way[static_cast<std::size_t>(world_)].load(std::memory_order_relaxed);
  const auto now = engine_time();
  const auto idle = now - std::max(offered_at_, taken_at(world_));
  const bool is_away = is_known_away(world_) || idle >= std::max(least_away, under_way * buffering_time);
  if (now - offered_at_ < (is_away ? 1 : under_way) * buffering_timeout) return;
  if (is_away) note_away(world_);
  if (!staging_) staging_ = device::try_acquire(device::StagingKind::mapped, operand_.ordinal, longest_buffered);
  if (!staging_) return;  // there is no memory just now
  // First: after withdraw() a failure would lose the message.
  device::Transfer moving = pack(operand_, staging_, 0, operand_.bytes());
  if (descriptor_.state.withdraw()) moving_ = std::move(moving);
} catch (const std::bad_alloc&) {
  // The message stays where it is until the next try.
}

void RendezvousSender::buffer() {
  if (!moving_.done()) return;
  std::memcpy((*world->own)->data_for_message(descriptor_), staging_.data(),
              static_cast<std::size_t>(descriptor_.bytes));
  if (descriptor_.state.buffer()) {
    published_.reset();
    gpudt::mark(point::buffered);
    report_peer(PeerEvent::buffered);
    report_went(operand_.reported, {protocol_name(Protocol::shared), late_receiver});
  }
}

/// Answers a receiver that asks this process to write the data: on the same GPU, so that only one of two processes
/// whose kernels take turns launches any; on another one, since they need not be packed for that.
void RendezvousSender::answer() {
  note_what_receiver_found();
  const Segment* receiver = nullptr;
  {
    const LockGuard lock(world->mutex);
    receiver = reach(world_);
  }
  const bool willing = receiver != nullptr && is_willing(*receiver);
  if (!willing) descriptor_.state.decline();
  if (!willing || !descriptor_.state.accept()) {  // the receiver has taken it back
    receivers_ = {};
    return;
  }
  // From now on the receiver waits, so that its memory stays.
  const bool mapped = receivers_.mapping || map_asked(operand_.ordinal, *receiver, descriptor_.to, receivers_);
  if (!mapped || !device::prepare_beside_streams(operand_.ordinal, *receivers_.layout)) {
    receivers_ = {};
    descriptor_.state.cancel_put();
    return;
  }
  gpudt::mark(point::fetching);
  putting_ = device::transfer(operand_.ordinal, {&operand_.info->layout(), operand_.count, operand_.buffer},
                              receivers_.side(), 0, descriptor_.wanted_bytes.load(), operand_.after);
  report_peer(PeerEvent::put);
}

bool RendezvousSender::is_willing(const Segment& receiver) try {
  if (!learn_layout(receiver, **world->own, descriptor_, descriptor_.to, receivers_)) return false;
  return map_known(operand_.ordinal, receiver, descriptor_.to, receivers_) || may_open();
} catch (const std::bad_alloc&) {
  return false;
}

/// True when the data are in the receiver's memory.
bool RendezvousSender::put() {
  if (!putting_.done()) return false;
  receivers_ = {};  // before the receiver may free the memory
  descriptor_.state.finish_put();
  gpudt::mark(point::acknowledged);
  note_outcome(/*refused=*/false);
  return true;
}

void RendezvousSender::note_outcome(bool refused) const {
  if (!is_on_host()) peer::note_outcome(world_, {descriptor_.envelope.tag, descriptor_.bytes}, refused);
}

bool RendezvousSender::note_what_receiver_found() {
  const bool one_gpu = descriptor_.found.load(std::memory_order_relaxed) == found_on_one_gpu;
  if (one_gpu) note_shared_gpu(world_, operand_.ordinal);
  return one_gpu;
}

/// Why the receiver does not fetch the data.
const char* RendezvousSender::why_refused() const {
  if (world->forced == Protocol::shared) return "GPUDT_PROTOCOL";
  switch (descriptor_.found.load(std::memory_order_relaxed)) {
    case found_on_host:
      return "the receiver takes them on the host";
    case found_on_gpu:
      return not_packed_ ? "earlier ones came in fragments, so that this one was not packed for the receiver's GPU"
                         : "there was no memory that other processes can map, to pack them";
    case found_on_one_gpu:
      return "both processes use one GPU, and this one could not write them";
    default:
      return "the receiver's GPU does not reach this process's memory";
  }
}

/// The receiver cannot fetch the data: they go through the segment.
void RendezvousSender::stream() {
  if (!std::exchange(streams_, true)) {
    gpudt::mark(point::wanted);
    const bool one_gpu = note_what_receiver_found();
    packing_.clear();
    packed_ = {};
    published_.reset();
    if (!is_on_host()) report_peer(one_gpu ? PeerEvent::declined : PeerEvent::refused);
    report_went(operand_.reported, {protocol_name(Protocol::shared), why_refused()});
    if (!outflow_) outflow_ = std::make_unique<SegmentOutflow>(descriptor_, *world->chunks, operand_);
  }
  outflow_->step();
}

bool RendezvousSender::step_remote() {
  const State state = descriptor_.state.load();
  all_sent_ = all_sent_ || outflow_->step();
  if (all_sent_) return true;
  return state == State::done ? descriptor_.wanted_bytes.load() < 0 : receiver_gone();
}

/// Throws if the receiver has ended; true if it is in MPI_Finalize and will not come for the message.
bool RendezvousSender::receiver_gone() {
  if (++polls_ % polls_between_life_checks != 0) return false;
  const auto now = SteadyClock::now();
  if (world_ == world->rank || now - std::max(offered_at_, checked_at_) < life_check) return false;
  checked_at_ = now;
  const LockGuard lock(world->mutex);
  const Segment* const segment = remote_ ? world->remote->image(world_) : reach(world_);
  if (segment == nullptr) return false;
  if (segment->orphaned()) lost("process " + std::to_string(world_) + ", which a message was for, has ended");
  return !checks(segment);
}

}  // namespace gpudt::interpose
