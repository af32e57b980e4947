// The receiver's end of peer transfers: fetches offered messages, or asks their senders for them.
#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "datatype/reference.hpp"
#include "interpose/support/log.hpp"
#include "interpose/support/points.hpp"
#include "interpose/support/report.hpp"
#include "interpose/transport/internode/message_ends.hpp"
#include "interpose/transport/peer/descriptors.hpp"
#include "interpose/transport/peer/from_host.hpp"
#include "interpose/transport/peer/state.hpp"

namespace gpudt::interpose {

using namespace peer;
using namespace std::chrono_literals;

namespace {

/// How long to wait for a sender that has been asked to write to this process's memory: it may be away from MPI.
constexpr std::chrono::microseconds answer_timeout{100};
/// The shortest message that is copied into pinned host memory: shorter ones are faster staged, as they mostly are
/// after a refusal (abstains()).
constexpr std::int64_t least_to_host = least_through_segment;

/// The image of a process that offers messages by control message, or null.
Segment* known_segment(int rank) {
  return world->remote ? world->remote->image(rank) : nullptr;
}

/// The sender's processor has these cache lines; they are read when all messages that have arrived are recognised.
void prefetch(const Descriptor& descriptor) {
  for (std::size_t at = 64; at < offsetof(Descriptor, ready); at += 64)
    __builtin_prefetch(reinterpret_cast<const std::byte*>(&descriptor) + at);
}

/// Whether memory that another process has exported is on the GPU of `operand`, where their kernels take turns. False
/// if that cannot be told.
bool on_one_gpu(const device::Exported& memory, const DeviceBuffer& operand) {
  const LockGuard lock(world->mutex);
  auto at = world->gpus.find(operand.ordinal);
  if (at == world->gpus.end()) {
    device::Exported own;
    const auto* const first = static_cast<const char*>(operand.buffer) + operand.info->layout().true_lb();
    if (!device::export_memory(operand.ordinal, first, own, device::no_importers)) return false;
    at = world->gpus.emplace(operand.ordinal, own).first;
  }
  return device::turn_of(memory) == device::turn_of(at->second);
}

}  // namespace

std::unique_ptr<RendezvousReceiver> recognise(const void* data, std::int64_t bytes) {
  Recognise* tried = nullptr;
  for (const ProtocolRow& row : protocols) {
    if (row.recognise == nullptr || row.recognise == tried) continue;
    tried = row.recognise;
    if (auto receiver = tried(data, bytes)) return receiver;
  }
  return nullptr;
}

std::unique_ptr<RendezvousReceiver> recognise_offer(const void* data, std::int64_t bytes) {
  if (!peer_may_be_rts(bytes)) return nullptr;
  if (has_short_length(bytes)) return RendezvousReceiver::recognise_named(data, bytes, bytes);
  RendezvousRequest head;
  std::memcpy(&head, data, sizeof head);
  if (head.mark != rts_mark) return RendezvousReceiver::recognise_named(data, bytes, bytes);  // cut off
  if (head.index < 0 || rts_bytes(head.index) != bytes) return nullptr;
  const bool remote = (head.flags & rts_remote) != 0;
  // Processes that send RTS messages have a segment or an image here: what others send are data, whatever their bytes.
  Segment* const segment = remote ? known_segment(head.sender) : segment_of_rts_sender(head.sender);
  if (segment == nullptr || (*segment)->nonce[0] != head.nonce[0] || (*segment)->nonce[1] != head.nonce[1])
    return nullptr;
  if (head.index >= (*segment)->descriptors_made.load(std::memory_order_acquire)) return nullptr;
  Descriptor& descriptor = remote ? world->remote->expect(head) : (*segment)->descriptor(head.index);
  prefetch(descriptor);
  if (descriptor.generation != head.generation) lost("the sender has given a message up");
  if (descriptor.destination != world->rank) return nullptr;  // a copy of another process's RTS
  mark_matched(descriptor);
  return std::unique_ptr<RendezvousReceiver>(
      new RendezvousReceiver(*segment, descriptor, {head.index, head.generation}, remote));
}

std::unique_ptr<RendezvousReceiver> RendezvousReceiver::match(const Segment& segment, Descriptor& descriptor,
                                                              int index) {
  const MessageId id{index, descriptor.generation};
  mark_matched(descriptor);
  return std::unique_ptr<RendezvousReceiver>(new RendezvousReceiver(segment, descriptor, id, /*remote=*/false));
}

std::unique_ptr<RendezvousReceiver> RendezvousReceiver::recognise_named(const void* data, std::int64_t bytes,
                                                                        std::int64_t there) {
  const NamedOffer named = named_offer(data, bytes, there);
  if (!named) return nullptr;
  prefetch(*named.descriptor);
  return match(*named.segment, *named.descriptor, named.index);
}

std::unique_ptr<RendezvousReceiver> RendezvousReceiver::recognise_next(const Envelope& envelope,
                                                                       std::int64_t rts_length) {
  for (int rank = 0; rank < world->ranks; ++rank) {
    Segment* const segment = reach_sender(rank);
    const Offered offered = next_offer(segment, envelope, rts_length);
    if (offered) return match(*segment, *offered.descriptor, offered.index);
  }
  return nullptr;
}

bool RendezvousReceiver::release_named(const void* data, std::int64_t bytes, std::int64_t there) {
  // What is recognised is destroyed at once, which releases the sender.
  return peer_expects_short() && recognise_named(data, bytes, there) != nullptr;
}

RendezvousReceiver::RendezvousReceiver(const Segment& segment, Descriptor& descriptor, const MessageId& id, bool remote)
    : segment_(segment),
      descriptor_(descriptor),
      id_(id),
      remote_(remote),
      range_("rendezvous: receive", descriptor.bytes) {
  if (remote_) ++world->remote->under_way;
}

Announced RendezvousReceiver::announced(std::int64_t capacity) const {
  const std::int64_t bytes = descriptor_.bytes;
  return {std::min(bytes, capacity), bytes > capacity ? MPI_ERR_TRUNCATE : MPI_SUCCESS, /*fetched=*/true};
}

RendezvousReceiver::~RendezvousReceiver() {
  inflow_.reset();  // the GPU's work ends first
  transfers_.clear();
  senders_ = {};
  if (!released_) {  // once released, the descriptor may have another message
    if (source_ == Source::sender) take_back();
    release();
  }
  if (remote_) --world->remote->under_way;
}

/// True if the data are still in the sender's GPU memory; they stay there until release().
bool RendezvousReceiver::claim() {
  if (descriptor_.generation != id_.generation) lost("the sender has given a message up");
  if (descriptor_.state.claim()) return true;
  source_ = Source::segment;  // withdrawing, or buffered
  report_went(into_.reported, {protocol_name(Protocol::shared), late_receiver});
  return false;
}

/// How the report names the way by fragments.
Went RendezvousReceiver::went_in_fragments() const {
  const char* why = is_from_host() ? "the sender has them on the host" : "this GPU does not reach the sender's memory";
  if (world->forced == Protocol::shared) why = "GPUDT_PROTOCOL";
  if (!remote_) return {protocol_name(Protocol::shared), why};
  return went_pipelined(into_);
}

/// The data are to come in fragments: through the sender's segment, or from another node by messages. To the sender
/// this is a refusal, after which it does not offer for a while (note_outcome()).
void RendezvousReceiver::want() {
  source_ = Source::segment;
  if (is_from_host()) note_host_data(descriptor_.envelope, /*to_gpu=*/!is_on_host());
  report_went(into_.reported, went_in_fragments());
  mark(point::asked);
  descriptor_.state.want_fragments();
  if (remote_)
    inflow_ = std::make_unique<MessageInflow>(*world->remote, segment_->rank, id_, descriptor_.fragment_bytes, target_);
}

void RendezvousReceiver::start(const DeviceBuffer& into) {
  into_ = into;
  gpu_ = into.ordinal;
  wanted_ = std::min(descriptor_.bytes, into.bytes());
  target_ = {&into.info->layout(), into.count,          into.buffer,     wanted_,
             into.ordinal,         into.staging_kind(), into.is_direct()};
  device::moving(target_, [&] {
    if (claim() && !fetch(into)) want();
  });
}

void RendezvousReceiver::start(const datatype::LayoutRef& layout, std::int64_t count, void* user) {
  layout_ = layout;
  wanted_ = std::min(descriptor_.bytes, count * layout->size());
  target_ = {layout.get(), count, user, wanted_};
  if (claim() && !fetch_to_host()) want_on_host();
}

void RendezvousReceiver::want_on_host() {
  if (!is_from_host() && !remote_) report_fallback(Fallback::host_receive);
  descriptor_.found.store(found_on_host, std::memory_order_relaxed);
  want();
}

/// Whether messages of this length from this process are to be fetched.
bool RendezvousReceiver::may_fetch() const {
  const Route route{
      .receiver = remote_ ? Receiver::remote : Receiver::sharing, .expects_short = true, .forced = world->forced};
  return choose({.bytes = descriptor_.bytes}, route) == Protocol::peer;
}

/// Starts to move the data by a kernel of this process, or of the sender (ask()). False if they are to come in
/// fragments (want()), by GPUDT_PROTOCOL or because the GPU does not reach the memory.
bool RendezvousReceiver::fetch(const DeviceBuffer& into) {
  if (!may_fetch()) return false;
  if (!remote_ && descriptor_.from.memory.size == 0) {
    descriptor_.found.store(found_on_gpu, std::memory_order_relaxed);
    return false;
  }
  if (segment_->rank == world->rank) return fetch_from_memory();
  if (!on_one_gpu(descriptor_.from.memory, into)) return (better_written() && ask()) || fetch_from_memory();
  note_shared_gpu(segment_->rank, into.ordinal);
  descriptor_.found.store(found_on_one_gpu, std::memory_order_relaxed);
  if (world->rank > segment_->rank)
    return ask() || ((descriptor_.bytes >= least_on_one_gpu || waits_for_unmapping(into, segment_->rank)) &&
                     fetch_from_memory());
  return fetch_from_memory();
}

/// Whether the sender's GPU had better write the data, since it has not packed them yet. Rows of this process that are
/// better fetched packed are better unpacked here, too.
bool RendezvousReceiver::better_written() const {
  return descriptor_.unmappable.load(std::memory_order_relaxed) != 0 && descriptor_.bytes > longest_buffered &&
         descriptor_.ready.load(std::memory_order_relaxed) < wanted_ &&
         !device::better_fetched_packed(into_.ordinal, into_.info->layout(), into_.count);
}

/// Whether the data cannot come without the sender's kernels.
bool RendezvousReceiver::needs_sender() const {
  return descriptor_.bytes < least_on_one_gpu && descriptor_.found.load(std::memory_order_relaxed) == found_on_one_gpu;
}

/// Starts to copy the data into pinned host memory by the copy engine of a GPU of this process, which need not be idle.
/// False if they are to come in fragments.
bool RendezvousReceiver::fetch_to_host() try {
  const RemoteBuffer& from = descriptor_.from;
  if (wanted_ < least_to_host || from.memory.size == 0 || !may_fetch()) return false;
  gpu_ = device::gpu_to_host(std::to_array(from.memory.gpu));
  const device::Side to = {target_.layout, target_.count, target_.user};
  if (gpu_ < 0 || !device::is_pinned(gpu_, to, wanted_)) return false;
  if (!learn_layout(segment_, *segment_, descriptor_, from, senders_)) lost("the sender's layout is damaged");
  return device::copies_to_host(gpu_, senders_.side(), to, wanted_) &&
         map_for_host(gpu_, segment_, from, descriptor_.bytes, senders_) && fetch_mapped();
} catch (const device::Error& error) {
  abandon_copies(error);
  return false;
}

bool RendezvousReceiver::fetch_from_memory() {
  const datatype::LayoutRef& into = into_.info->layout_ref();
  if (MappedBuffer known = recall(segment_->rank, id_.index, descriptor_, gpu_, into, plan_); known.mapping) {
    senders_ = std::move(known);
  } else {
    plan_ = {};  // the new layout may have the address of one that is gone
    if (!learn_layout(segment_, *segment_, descriptor_, descriptor_.from, senders_))
      lost("the sender's layout is damaged");
    if (!map_memory(gpu_, segment_, descriptor_.from, senders_)) return false;
    remember(segment_->rank, id_.index, descriptor_, gpu_, senders_);
  }
  return device::prepare_beside_streams(gpu_, *senders_.layout) && fetch_mapped();
}

/// Starts to fetch from the sender's memory, which is mapped.
bool RendezvousReceiver::fetch_mapped() {
  mark(point::mapped);
  source_ = Source::memory;
  report_went(into_.reported, {protocol_name(Protocol::peer)});
  if (tracing())
    log_trace("peer transfer of " + std::to_string(wanted_) + " B " +
              (is_on_host() ? "to the host by GPU " : "to GPU ") + std::to_string(gpu_));
  fetch_what_is_ready();
  return true;
}

/// Asks the sender to write to this process's memory; false if that is impossible.
bool RendezvousReceiver::ask() {
  // This process's layout may replace the sender's in the descriptor.
  if (wanted_ == 0 || !learn_layout(segment_, *segment_, descriptor_, descriptor_.from, senders_) ||
      !describe_operand(into_, segment_->rank, *segment_, descriptor_, descriptor_.to, published_))
    return false;
  source_ = Source::sender;
  report_went(into_.reported, {protocol_name(Protocol::peer)});
  asked_at_ = SteadyClock::now();
  descriptor_.wanted_bytes.store(wanted_, std::memory_order_relaxed);
  mark(point::asked);
  descriptor_.state.ask();
  return true;
}

/// True when the sender has written the data. If it does not, starts another way.
bool RendezvousReceiver::answered() {
  State state = descriptor_.state.load();
  const bool given_up = descriptor_.ready.load(std::memory_order_acquire) < 0;
  if (state == State::failed || state == State::done || given_up) lost("the sender has given a message up");
  bool ours = false;
  if (state == State::asked && !needs_sender() && SteadyClock::now() - asked_at_ >= answer_timeout) {
    const auto taken_back = descriptor_.state.take_back();
    ours = taken_back.made;
    state = taken_back.found;
  }
  if (ours || (state == State::declined && descriptor_.state.resume())) go_on_alone();
  return state == State::put;
}

/// Moves the data without the sender's kernels.
void RendezvousReceiver::go_on_alone() {
  if (needs_sender() || !fetch_from_memory()) want();
}

/// After this the sender does not write to the user's memory. Only after an error: it may wait long for the sender.
void RendezvousReceiver::take_back() {
  descriptor_.state.take_back();
  while (descriptor_.state.load() == State::putting && !segment_.orphaned()) std::this_thread::yield();
}

/// Keeps the plan of a transfer of the whole message.
device::Transfer RendezvousReceiver::fetch_to_gpu(const device::Side& to, std::int64_t end) {
  if (fetched_ != 0 || end != wanted_) return device::transfer(gpu_, senders_.side(), to, fetched_, end);
  const device::KeptPlan known = plan_;
  device::Transfer fetch = device::transfer(gpu_, senders_.side(), to, 0, end, {}, /*within=*/false, &plan_);
  if (plan_ != known) remember_plan(segment_->rank, id_.index, descriptor_, into_.info->layout_ref(), plan_);
  return fetch;
}

/// Throws device::Error, also if the runtime refuses to copy to the host.
device::Transfer RendezvousReceiver::fetch_up_to(std::int64_t end) {
  const device::Side to = {target_.layout, target_.count, target_.user};
  if (!is_on_host()) return fetch_to_gpu(to, end);
  device::Transfer copy = device::copy_to_host(gpu_, senders_.side(), to, fetched_, end);
  if (!copy) throw device::Error(device::Failure::runtime, "the copy engine cannot be had");
  return copy;
}

/// The copy engine has failed to copy to the host: all data are to come in fragments.
void RendezvousReceiver::abandon_copies(const device::Error& why) {
  if (tracing()) log_trace(std::string("no GPU copies to the host: ") + why.what());
  transfers_.clear();
  senders_ = {};
}

/// Starts to fetch what is ready. True if no more is to be started.
bool RendezvousReceiver::fetch_what_is_ready() {
  if (fetched_ == wanted_) return true;
  const std::int64_t ready = descriptor_.ready.load(std::memory_order_acquire);
  if (ready < 0) lost("the sender has given a message up");
  const std::int64_t end = std::min(ready, wanted_);
  if (fetched_ < end) {
    mark(point::fetching);
    transfers_.push_back(fetch_up_to(end));
    fetched_ = end;
  }
  return fetched_ == wanted_;
}

void RendezvousReceiver::release() {
  released_ = true;
  published_.reset();
  mark(point::released);  // before the sender can see it
  descriptor_.state.release();
  if (remote_) world->remote->done(segment_->rank, id_);
}

/// True if nothing more is to come than what transfers_ brings.
bool RendezvousReceiver::all_come() {
  if (released_) return true;  // the descriptor may have another message
  switch (source_) {
    case Source::memory:
      return fetch_what_is_ready();
    case Source::segment:
      return collect();
    case Source::sender:
      return answered();
    default:
      return true;
  }
}

bool RendezvousReceiver::done() try {
  return device::moving(target_, [this] { return step(); });
} catch (const device::Error& error) {
  if (!is_on_host() || source_ != Source::memory || released_) throw;
  abandon_copies(error);
  want_on_host();
  return false;
}

bool RendezvousReceiver::step() {
  const std::size_t under_way = transfers_.size();
  const bool coming = !all_come();
  if (transfers_.size() > under_way) return false;  // a poll now would launch it without those of other messages
  while (!transfers_.empty() && transfers_.front().done()) transfers_.pop_front();
  if (coming) check_sender();
  if (coming || !transfers_.empty()) return false;
  senders_ = {};  // before the sender may free the memory
  if (!released_) release();
  return true;
}

/// Takes what the sender has put into its segment; true if that is all.
bool RendezvousReceiver::collect() {
  if (remote_ && inflow_) return inflow_->step();
  const State state = descriptor_.state.load();
  const bool given_up = descriptor_.ready.load(std::memory_order_acquire) < 0;
  if (state == State::failed || state == State::done || given_up) lost("the sender has given a message up");
  if (state == State::buffered) {
    take_buffered();
    release();
    return true;
  }
  if (state != State::fragments_wanted) return false;
  if (!inflow_) inflow_ = std::make_unique<SegmentInflow>(segment_, descriptor_, target_);
  return inflow_->step();
}

void RendezvousReceiver::take_buffered() {
  if (is_on_host()) {
    datatype::unpack(*target_.layout, target_.count, target_.user, 0, wanted_, segment_->data_of(descriptor_).data());
  } else if (wanted_ > 0) {
    const auto bytes = static_cast<std::size_t>(wanted_);
    buffered_ = device::acquire_packed(target_.ordinal, bytes);
    std::memcpy(buffered_.data(), segment_->data_of(descriptor_).data(), bytes);
    transfers_.push_back(device::start(device::Direction::unpack, target_.ordinal, *target_.layout, target_.count,
                                       target_.user, 0, wanted_, buffered_.data(), buffered_.memory_kind()));
  }
}

void RendezvousReceiver::check_sender() {
  if (++polls_ % polls_between_life_checks != 0) return;
  const auto now = SteadyClock::now();
  if (now - checked_at_ < life_check) return;
  checked_at_ = now;
  if (descriptor_.destination == world->rank && &segment_ != world->own.get() && segment_.orphaned())
    lost("process " + std::to_string(segment_->rank) + ", which has sent a message, has ended");
}

}  // namespace gpudt::interpose
