#include "interpose/peer_remote.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>

#include "datatype/reference.hpp"
#include "interpose/log.hpp"
#include "interpose/workarounds.hpp"

namespace gpudt::interpose::peer {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int notice_tag = 0, part_tag = 1;
static_assert(part_tag < hidden_tags);
constexpr int notice_burst = 16;     ///< taken in one call
constexpr unsigned idle_turns = 32;  ///< of MPI's progress, for one look at notices while nothing is under way
constexpr std::chrono::seconds stop_patience{1};
/// Parts so long cost little more in launches and messages than one message would, and the first and the last, with
/// which nothing overlaps, little beside the rest.
constexpr std::int64_t shortest_part = 256 << 10;
constexpr std::int64_t longest_part = 512 << 10;
constexpr std::int64_t parts_wanted = 4;

std::int64_t part_size(std::int64_t message_bytes) {
  return std::clamp(divided(message_bytes, parts_wanted), shortest_part, longest_part);
}

std::int64_t parts_in(std::int64_t bytes, std::int64_t part_bytes) {
  return (bytes + part_bytes - 1) / part_bytes;
}

/// Of a request of our own; no handler of the program's is to hear of its end.
bool ended(MPI_Request& request, MPI_Status& status) {
  int done = 0, index = 0;
  const int code = test_some(1, &request, &done, &index, &status);
  if (code != MPI_SUCCESS) throw device::Error(device::Failure::runtime, "a message between two libraries has failed");
  return done == 1 || done == MPI_UNDEFINED;
}

bool ended(MPI_Request& request) {
  MPI_Status status;
  return ended(request, status);
}

/// In the image of a sender.
void describe(Descriptor& descriptor, const MessageId& id, int destination, std::int64_t bytes) {
  descriptor.generation = id.generation;
  descriptor.destination = destination;
  descriptor.bytes = bytes;
  descriptor.issued.store(1, std::memory_order_relaxed);
  descriptor.matched.store(0, std::memory_order_relaxed);
  descriptor.ready.store(0, std::memory_order_relaxed);
}

}  // namespace

// --- notices ---------------------------------------------------------------------------------------------------------

Remote::Remote(Segment& own, int rank) : own_(own), rank_(rank) {
  receive_next();
}

void Remote::receive_next() {
  hidden_receive(&received_, sizeof received_, MPI_ANY_SOURCE, notice_tag, &receiving_);
}

bool Remote::due() {
  return under_way.load(std::memory_order_relaxed) != 0 ||
         turns_asked_.fetch_add(1, std::memory_order_relaxed) % idle_turns == 0;
}

int Remote::progress() {
  int taken = 0;
  for (; taken < notice_burst && receiving_ != MPI_REQUEST_NULL && ended(receiving_); ++taken) {
    const Notice notice = received_;
    receive_next();
    take(notice);
  }
  send_empty_parts();
  pump();
  return taken;
}

void Remote::stop() {
  const Notice bye = notice(Saying::bye);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [rank, partner] : partners_)
      if (partner.image) outbox_.emplace_back(rank, bye);
  }
  const auto deadline = Clock::now() + stop_patience;
  do {
    progress();
  } while (!(sending_.empty() && adopted_.empty()) && Clock::now() < deadline);
  if (receiving_ == MPI_REQUEST_NULL) return;
  PMPI_Cancel(&receiving_);
  PMPI_Wait(&receiving_, MPI_STATUS_IGNORE);
}

Notice Remote::notice(Saying saying) const {
  Notice notice{};
  notice.saying = saying;
  notice.from = rank_;
  std::copy(std::begin(own_->nonce), std::end(own_->nonce), std::begin(notice.nonce));
  return notice;
}

/// Notices to one process arrive in the order in which they were said.
void Remote::say(int rank, const Notice& notice) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    outbox_.emplace_back(rank, notice);
  }
  pump();
}

/// MPI is called with no lock held: what it calls in turn may come back here.
void Remote::pump() {
  for (bool more = true; more;) {
    if (pumping_.exchange(true, std::memory_order_acquire)) return;
    send_outbox();
    std::erase_if(sending_, [](Sending& sending) { return ended(sending.request); });
    pumping_.store(false, std::memory_order_release);
    const std::lock_guard<std::mutex> lock(mutex_);
    more = !outbox_.empty();
  }
}

void Remote::send_outbox() {
  std::deque<std::pair<int, Notice>> notices;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    notices.swap(outbox_);
    std::move(adopted_.begin(), adopted_.end(), std::back_inserter(sending_));
    adopted_.clear();
  }
  for (const auto& [rank, said] : notices) {
    Sending sending{std::make_unique<Notice>(said), {}, MPI_REQUEST_NULL};
    const auto bytes = static_cast<std::int64_t>(offsetof(Notice, data)) + said.data_bytes;
    if (hidden_send(sending.notice.get(), bytes, rank, notice_tag, &sending.request) == MPI_SUCCESS)
      sending_.push_back(std::move(sending));
    else
      log_error("process " + std::to_string(rank) + " cannot be told about a message");
  }
}

void Remote::take(const Notice& notice) {
  switch (notice.saying) {
    case Saying::hello:
      meet(notice);
      return say(notice.from, this->notice(Saying::welcome));
    case Saying::welcome:
      return meet(notice);
    case Saying::offer:
    case Saying::withdrawn:
      return take_offer(notice);
    case Saying::want:
      return take_want(notice);
    case Saying::done: {
      Descriptor& descriptor = own_->descriptors[notice.index];
      if (descriptor.generation == notice.generation) descriptor.state.store(State::done, std::memory_order_release);
      return;
    }
    case Saying::bye:
      if (Segment* const image = this->image(notice.from)) (*image)->checking.store(0, std::memory_order_release);
      return;
  }
}

void Remote::meet(const Notice& notice) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Partner& partner = partners_[notice.from];
  partner.greeted = true;
  if (!partner.image) partner.image = Segment::image(notice.from, notice.nonce);
}

void Remote::greet(int rank) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (std::exchange(partners_[rank].greeted, true)) return;
  }
  say(rank, notice(Saying::hello));
}

Segment* Remote::image(int rank) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto partner = partners_.find(rank);
  return partner == partners_.end() ? nullptr : partner->second.image.get();
}

void Remote::offer(int index, const std::byte* data) {
  const Descriptor& descriptor = own_->descriptors[index];
  Notice said = notice(Saying::offer);
  said.index = index;
  said.generation = descriptor.generation;
  said.source = descriptor.source;
  said.tag = descriptor.tag;
  said.bytes = descriptor.bytes;
  if (data != nullptr) {
    said.data_bytes = static_cast<std::int32_t>(descriptor.bytes);
    std::copy_n(data, said.data_bytes, said.data);
  }
  say(descriptor.destination, said);
}

void Remote::withdrawn(int index) {
  const Descriptor& descriptor = own_->descriptors[index];
  Notice said = notice(Saying::withdrawn);
  said.index = index;
  said.generation = descriptor.generation;
  say(descriptor.destination, said);
}

void Remote::take_offer(const Notice& notice) {
  Segment* const image = this->image(notice.from);
  if (image == nullptr) return;
  const bool void_now = notice.saying == Saying::withdrawn;
  const std::lock_guard<std::mutex> lock(mutex_);
  Descriptor& descriptor = (*image)->descriptors[notice.index];
  const bool known = descriptor.generation == notice.generation;  // also if its token was here first
  if (void_now && known) {
    for (State open : {State::offered, State::withdrawing, State::buffered})
      if (descriptor.state.compare_exchange_strong(open, State::failed)) return;
    return;
  }
  if (!known) describe(descriptor, {notice.index, notice.generation}, rank_, notice.bytes);
  descriptor.source = notice.source;
  descriptor.tag = notice.tag;
  std::copy_n(notice.data, notice.data_bytes, descriptor.data);
  State next = State::offered;
  if (void_now) next = State::failed;
  if (notice.data_bytes != 0) next = State::buffered;
  State expected = State::withdrawing;
  if (known)
    descriptor.state.compare_exchange_strong(expected, next);
  else
    descriptor.state.store(next, std::memory_order_release);
}

Descriptor& Remote::expect(const Token& token) {
  Segment* const image = this->image(token.sender);
  const std::lock_guard<std::mutex> lock(mutex_);
  Descriptor& descriptor = (*image)->descriptors[token.index];
  if (descriptor.generation == token.generation) return descriptor;
  describe(descriptor, {token.index, token.generation}, rank_, token.bytes);
  const bool data_follow = (token.flags & token_data_follow) != 0;
  descriptor.state.store(data_follow ? State::withdrawing : State::offered, std::memory_order_release);
  return descriptor;
}

void Remote::want(int rank, const MessageId& id, std::int64_t bytes) {
  Notice said = notice(Saying::want);
  said.index = id.index;
  said.generation = id.generation;
  said.bytes = bytes;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    partners_[rank].in.push_back({id});
    outbox_.emplace_back(rank, said);
  }
  pump();
}

/// Of one that has been given up the receiver gets empty parts.
void Remote::take_want(const Notice& notice) {
  Descriptor& descriptor = own_->descriptors[notice.index];
  const std::lock_guard<std::mutex> lock(mutex_);
  State expected = State::offered;
  descriptor.wanted.store(notice.bytes, std::memory_order_release);
  Turn turn{{notice.index, notice.generation}};
  if (!descriptor.state.compare_exchange_strong(expected, State::wanted)) {
    turn.empty_parts = parts_in(notice.bytes, part_size(descriptor.bytes));
    given_up_ = true;
  }
  partners_[notice.from].out.push_back(turn);
}

void Remote::done(int rank, const MessageId& id) {
  Notice said = notice(Saying::done);
  said.index = id.index;
  said.generation = id.generation;
  say(rank, said);
}

// --- turns -----------------------------------------------------------------------------------------------------------

std::deque<Remote::Turn>& Remote::turns(Way way, int rank) {
  Partner& partner = partners_[rank];
  return way == Way::out ? partner.out : partner.in;
}

bool Remote::has_turn(Way way, int rank, const MessageId& id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::deque<Turn>& waiting = turns(way, rank);
  return !waiting.empty() && waiting.front().id == id;
}

void Remote::end_turn(Way way, int rank) {
  const std::lock_guard<std::mutex> lock(mutex_);
  turns(way, rank).pop_front();
}

void Remote::give_up_turn(int rank, const MessageId& id, std::int64_t missing_parts) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Turn& turn : turns(Way::out, rank)) {
    if (turn.id != id || turn.empty_parts >= 0) continue;
    turn.empty_parts = missing_parts;
    given_up_ = true;
  }
}

/// In progress() alone, and nobody else has the turn.
void Remote::send_empty_parts() {
  std::vector<int> ranks;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!given_up_) return;
    given_up_ = false;
    for (auto& [rank, partner] : partners_) {
      for (; !partner.out.empty() && partner.out.front().empty_parts >= 0; partner.out.pop_front())
        ranks.insert(ranks.end(), static_cast<std::size_t>(partner.out.front().empty_parts), rank);
      given_up_ = given_up_ || std::any_of(partner.out.begin(), partner.out.end(),
                                           [](const Turn& turn) { return turn.empty_parts >= 0; });
    }
  }
  for (const int rank : ranks) {
    MPI_Request request = MPI_REQUEST_NULL;
    if (hidden_send(nullptr, 0, rank, part_tag, &request) == MPI_SUCCESS) adopt({}, request);
  }
}

void Remote::adopt(device::Staging staging, MPI_Request request) {
  const std::lock_guard<std::mutex> lock(mutex_);
  adopted_.push_back({nullptr, std::move(staging), request});
}

// --- the sender's end ------------------------------------------------------------------------------------------------

MessageOutflow::MessageOutflow(Remote& remote, int rank, int index, Descriptor& descriptor, Operand operand)
    : remote_(remote),
      rank_(rank),
      id_{index, descriptor.generation},
      descriptor_(descriptor),
      operand_(std::move(operand)) {
  remote_.under_way.fetch_add(1);
}

MessageOutflow::~MessageOutflow() {
  const std::int64_t wanted = descriptor_.wanted.load(std::memory_order_acquire);
  if (!turn_ended_ && wanted >= 0)
    remote_.give_up_turn(rank_, id_, parts_in(wanted - given_, part_size(descriptor_.bytes)));
  for (Part& part : parts_)
    if (part.sending != MPI_REQUEST_NULL) remote_.adopt(std::move(part.staging), part.sending);
  remote_.under_way.fetch_sub(1);
}

bool MessageOutflow::step() {
  const std::int64_t wanted = descriptor_.wanted.load(std::memory_order_acquire);
  while (begin(wanted < 0 ? descriptor_.bytes : wanted)) {
  }
  if (wanted >= 0) send(wanted);
  reap();
  return wanted >= 0 && reaped_ == wanted && turn_ended_;
}

/// Starts to pack the next part; false if there is none, or no room for it.
bool MessageOutflow::begin(std::int64_t limit) {
  if (begun_ >= limit || parts_.size() >= parts_in_flight) return false;
  const std::int64_t end = std::min(begun_ + part_size(descriptor_.bytes), descriptor_.bytes);
  Part part{end - begun_, {}, {}};
  const auto bytes = static_cast<std::size_t>(part.bytes);
  // Without any, it waits for those of its own, and else for nobody: others may wait for receives that come later.
  part.staging = parts_.empty() ? device::acquire(device::StagingKind::mapped, operand_.ordinal, bytes)
                                : device::try_acquire(device::StagingKind::mapped, operand_.ordinal, bytes);
  if (!part.staging) return false;
  part.packing = device::start(device::Direction::pack, operand_.ordinal, operand_.info->layout(), operand_.count,
                               operand_.buffer, begun_, end, part.staging.data());
  parts_.push_back(std::move(part));
  begun_ = end;
  return true;
}

void MessageOutflow::send(std::int64_t wanted) {
  if (turn_ended_ || !remote_.has_turn(Remote::Way::out, rank_, id_)) return;
  while (send_next(wanted)) {
  }
  if (given_ < wanted) return;
  turn_ended_ = true;
  remote_.end_turn(Remote::Way::out, rank_);
}

/// False if there is none that is packed.
bool MessageOutflow::send_next(std::int64_t wanted) {
  if (given_ == wanted || given_parts_ == parts_.size()) return false;
  Part& part = parts_[given_parts_];
  if (!part.packing.done()) return false;
  part.bytes = std::min(part.bytes, wanted - given_);
  if (hidden_send(part.staging.data(), part.bytes, rank_, part_tag, &part.sending) != MPI_SUCCESS)
    throw device::Error(device::Failure::runtime, "MPI does not send a part of a message");
  given_ += part.bytes;
  ++given_parts_;
  return true;
}

void MessageOutflow::reap() {
  while (given_parts_ != 0 && ended(parts_.front().sending)) {
    reaped_ += parts_.front().bytes;
    parts_.pop_front();
    --given_parts_;
  }
}

// --- the receiver's end ----------------------------------------------------------------------------------------------

MessageInflow::MessageInflow(Remote& remote, int rank, const Descriptor& descriptor, int index, const Target& target)
    : remote_(remote),
      rank_(rank),
      id_{index, descriptor.generation},
      target_(target),
      part_bytes_(part_size(descriptor.bytes)) {
  const bool host = target.ordinal < 0;
  const datatype::Shape shape = target.layout->shape(target.count);
  if (host && shape.kind == datatype::ShapeKind::contiguous)
    direct_ = static_cast<std::byte*>(target.user) + shape.offset;
  else if (host)
    room_.resize(static_cast<std::size_t>(parts_in_flight * part_bytes_));
  remote_.under_way.fetch_add(1);
  remote_.want(rank_, id_, target_.bytes);
}

/// The sender does not know of the failure.
MessageInflow::~MessageInflow() {
  if (taken_ < target_.bytes && !failure_)
    failure_ = std::make_exception_ptr(device::Error(device::Failure::runtime, "a receive has been given up"));
  while (taken_ < target_.bytes) receive();
  remote_.under_way.fetch_sub(1);
}

bool MessageInflow::step() {
  receive();
  try {
    while (!unpacking_.empty() && unpacking_.front().done()) unpacking_.pop_front();
  } catch (...) {
    note_failure();
  }
  if (taken_ < target_.bytes || !unpacking_.empty()) return false;
  if (failure_) std::rethrow_exception(failure_);
  return true;
}

void MessageInflow::receive() {
  if (asked_ < target_.bytes && remote_.has_turn(Remote::Way::in, rank_, id_)) {
    while (receive_next()) {
    }
    if (asked_ == target_.bytes) remote_.end_turn(Remote::Way::in, rank_);
  }
  MPI_Status status;
  while (!coming_.empty() && ended(coming_.front().receiving, status)) {
    const Part part = coming_.front();
    coming_.pop_front();
    take(part, received_bytes(status));
  }
}

bool MessageInflow::receive_next() {
  if (asked_ == target_.bytes || coming_.size() >= parts_in_flight) return false;
  const std::int64_t end = std::min(asked_ + part_bytes_, target_.bytes);
  Part part{asked_, end, room_for(asked_)};
  if (hidden_receive(part.data, end - asked_, rank_, part_tag, &part.receiving) != MPI_SUCCESS)
    throw device::Error(device::Failure::runtime, "MPI does not receive a part of a message");
  coming_.push_back(part);
  asked_ = end;
  return true;
}

/// For the part that begins there.
std::byte* MessageInflow::room_for(std::int64_t begin) {
  if (direct_ != nullptr) return direct_ + begin;
  if (target_.ordinal >= 0) return target_.staging + begin;
  return room_.data() + begin / part_bytes_ % parts_in_flight * part_bytes_;
}

void MessageInflow::take(const Part& part, std::int64_t bytes) {
  taken_ = part.end;
  try {
    if (bytes != part.end - part.begin)
      throw device::Error(device::Failure::runtime, "peer transfer: the sender has given a message up");
    if (!failure_) unpack(part);
  } catch (...) {
    note_failure();
  }
}

void MessageInflow::unpack(const Part& part) {
  if (direct_ != nullptr) return;
  if (target_.ordinal < 0)
    datatype::unpack(*target_.layout, target_.count, target_.user, part.begin, part.end, part.data);
  else
    unpacking_.push_back(device::start(device::Direction::unpack, target_.ordinal, *target_.layout, target_.count,
                                       target_.user, part.begin, part.end, part.data));
}

/// To be told when all has come.
void MessageInflow::note_failure() {
  if (!failure_) failure_ = std::current_exception();
  unpacking_.clear();
}

}  // namespace gpudt::interpose::peer
