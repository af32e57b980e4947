#include "interpose/transport/internode/control_messages.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>

#include "datatype/reference.hpp"
#include "interpose/engine/engine.hpp"
#include "interpose/mpi/workarounds.hpp"
#include "interpose/support/errors.hpp"
#include "interpose/support/log.hpp"
#include "interpose/support/points.hpp"

namespace gpudt::interpose::peer {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr int control_burst = 16;          ///< control messages taken in one poll()
constexpr int most_receive_failures = 16;  ///< after which no more are posted
constexpr unsigned idle_turns = 32;        ///< calls of due() for each poll() while nothing is under way
constexpr std::chrono::seconds stop_timeout{1};
/// Bytes of parts: long enough that launches and messages add little, short enough that the first and the last part,
/// with which nothing overlaps, are little beside the rest.
constexpr std::int64_t shortest_part = 256 << 10;
constexpr std::int64_t longest_part = 1 << 20;
/// Parts in device memory are longer, since UCX takes some 20 us for each (by CUDA IPC, two H100s).
constexpr std::int64_t shortest_part_on_device = 2 << 20;
constexpr std::int64_t longest_part_on_device = 8 << 20;
constexpr std::int64_t parts_wanted = 8;

/// Fills a descriptor of a sender's image.
void describe(Descriptor& descriptor, const MessageId& id, int destination, std::int64_t bytes) {
  descriptor.generation = id.generation;
  descriptor.destination = destination;
  descriptor.bytes = bytes;
  descriptor.issue.store(Issue::issued, std::memory_order_relaxed);
  descriptor.matched.store(0, std::memory_order_relaxed);
  descriptor.ready.store(0, std::memory_order_relaxed);
}

}  // namespace

std::int64_t fragment_size(std::int64_t message_bytes, device::StagingKind kind) {
  const bool on_device = kind == device::StagingKind::device;
  return std::clamp(divided(message_bytes, parts_wanted), on_device ? shortest_part_on_device : shortest_part,
                    on_device ? longest_part_on_device : longest_part);
}

// --- control messages ------------------------------------------------------------------------------------------------

Remote::Remote(Segment& own, int rank) : own_(own), rank_(rank) {
  listen();
}

void Remote::listen() {
  listening_ = std::make_shared<MpiTransfer>();
  MPI_Request request = MPI_REQUEST_NULL;
  if (hidden_receive(&received_, sizeof received_, MPI_BYTE, MPI_ANY_SOURCE, control_tag, MPI_COMM_WORLD, &request) ==
      MPI_SUCCESS)
    watch(request, listening_);
  else
    listening_->state.store(MpiTransfer::State::failed);
}

bool Remote::due() {
  thread_local unsigned turns = 0;
  return under_way.load(std::memory_order_relaxed) != 0 || ++turns % idle_turns == 0;
}

int Remote::poll(Tests) {
  int taken = 0;
  for (test(); taken < control_burst && receive_failures_ < most_receive_failures; test()) {
    const MpiTransfer::State state = listening_->state.load();
    if (state == MpiTransfer::State::under_way) break;
    const ControlMessage message = received_;
    listen();
    if (state == MpiTransfer::State::done) {
      take(message);
      ++taken;
      receive_failures_ = 0;
    } else if (++receive_failures_ == most_receive_failures) {
      log_error("control messages of other processes cannot be received");
    }
  }
  for (const GivenUp& message : given_up()) make_up_for(message);
  say_all();
  return taken;
}

void Remote::settle() {
  while (poll(Tests::all) != 0) {
  }
}

void Remote::advance() {
  if (engine_within())
    poll(Tests::some);
  else
    engine_progress();
}

void Remote::take_new() {
  const LockGuard lock(mutex_);
  for (auto& [request, handed] : new_) requests_.add(request, std::move(handed));
  new_.clear();
  any_new_.store(false, std::memory_order_relaxed);
}

/// Tests all requests by one call: each call of MPI in which no request has ended makes progress for all of MPI.
void Remote::test() {
  if (any_new_.load(std::memory_order_acquire)) take_new();
  requests_.test(Tests::all, [this](const RequestSet<MpiTransferRef>::Ended& each) { ended(each); });
}

void Remote::ended(const RequestSet<MpiTransferRef>::Ended& ended) {
  const bool failed = ended.error != MPI_SUCCESS;
  if (failed) {
    log_error("a message between two processes' libraries has failed");
    MPI_Request request = ended.request;
    if (request != MPI_REQUEST_NULL) PMPI_Request_free(&request);
  }
  ended.owner->bytes = received_bytes(ended.status);
  ended.owner->state.store(failed ? MpiTransfer::State::failed : MpiTransfer::State::done, std::memory_order_release);
}

/// Whether nothing is under way but the next control message.
bool Remote::quiet() {
  const LockGuard lock(mutex_);
  const bool listening = listening_->state.load() == MpiTransfer::State::under_way;
  return new_.empty() && !any_given_up_.load() && requests_.size() <= (listening ? 1 : 0);
}

/// Whether every process that has an image of this one's segment has said bye.
bool Remote::all_gone() {
  const LockGuard lock(mutex_);
  return std::all_of(partners_.begin(), partners_.end(),
                     [](const auto& entry) { return !entry.second.image || entry.second.gone; });
}

bool Remote::stop() {
  stopping_ = true;
  const ControlMessage bye = control_message(ControlKind::bye);
  {
    const LockGuard lock(mutex_);
    for (const auto& [rank, partner] : partners_)
      if (partner.image) enter(rank, bye);
  }
  const auto deadline = SteadyClock::now() + stop_timeout;
  do {
    poll(Tests::all);
  } while (!(quiet() && all_gone()) && SteadyClock::now() < deadline);
  if (MPI_Request request = requests_.request_of(listening_); request != MPI_REQUEST_NULL) {
    PMPI_Cancel(&request);
    PMPI_Wait(&request, MPI_STATUS_IGNORE);
  }
  return quiet();
}

ControlMessage Remote::control_message(ControlKind kind, const MessageId& id) const {
  ControlMessage message{};
  message.kind = kind;
  message.from = rank_;
  message.index = id.index;
  message.generation = id.generation;
  message.version = peer_version;
  std::copy(std::begin(own_->nonce), std::end(own_->nonce), std::begin(message.nonce));
  return message;
}

/// Control messages to one process arrive in the order in which they were sent.
void Remote::say(int rank, const ControlMessage& message) {
  {
    const LockGuard lock(mutex_);
    enter(rank, message);
  }
  say_all();
}

void Remote::enter(int rank, const ControlMessage& message) {
  outbox_.emplace_back(rank, message);
  to_say_.store(true, std::memory_order_release);
}

/// MPI is called with no lock held, because its progress may call this function again.
void Remote::say_all() noexcept {
  while (to_say_.load(std::memory_order_acquire)) {
    if (saying_.exchange(true, std::memory_order_acquire)) return;  // the thread that sends will see new messages
    std::deque<std::pair<int, ControlMessage>> messages;
    {
      const LockGuard lock(mutex_);
      messages.swap(outbox_);
      to_say_.store(false, std::memory_order_relaxed);
    }
    for (const auto& [rank, said] : messages) say_one(rank, said);
    saying_.store(false, std::memory_order_release);
  }
}

void Remote::say_one(int rank, const ControlMessage& said) {
  const auto handed = std::make_shared<MpiTransfer>();
  handed->control_message = std::make_unique<ControlMessage>(said);
  MPI_Request request = MPI_REQUEST_NULL;
  if (hidden_send(handed->control_message.get(), sizeof said, MPI_BYTE, rank, control_tag, MPI_COMM_WORLD, &request) ==
      MPI_SUCCESS)
    watch(request, handed);
  else
    log_error("process " + std::to_string(rank) + " cannot be told about a message");
}

void Remote::watch(MPI_Request request, MpiTransferRef handed) {
  const LockGuard lock(mutex_);
  new_.push_back({request, std::move(handed)});
  any_new_.store(true, std::memory_order_release);
}

void Remote::take(const ControlMessage& message) {
  switch (message.kind) {
    case ControlKind::hello:
    case ControlKind::welcome:
    case ControlKind::met:
      return meet(message);
    case ControlKind::offer:
    case ControlKind::withdrawn:
      return take_offer(message);
    case ControlKind::want:
      return take_want(message);
    case ControlKind::done: {
      Descriptor& descriptor = own_->descriptors[message.index];
      if (descriptor.generation == message.generation) descriptor.state.release();
      return;
    }
    case ControlKind::plain: {
      const LockGuard lock(mutex_);
      auto& messages = partners_[message.from].plain_out;
      if (!messages) messages = std::make_unique<PlainMessages>();
      (*messages)[static_cast<std::size_t>(message.index)] = static_cast<std::uint32_t>(message.bytes);
      return;
    }
    case ControlKind::bye: {
      const LockGuard lock(mutex_);
      Partner& partner = partners_[message.from];
      partner.gone = true;
      if (partner.image) (*partner.image)->checking.store(0, std::memory_order_release);
      return;
    }
  }
}

/// `welcome` and `met` show that the other process knows this one's segment.
void Remote::meet(const ControlMessage& message) {
  const LockGuard lock(mutex_);
  Partner& partner = partners_[message.from];
  note_greeted(partner);
  if (message.version != peer_version) return;
  if (stopping_ && message.kind == ControlKind::hello) return;  // it has no image of this process, and says no bye
  const bool first = !partner.image;
  if (first) partner.image = Segment::image(message.from, message.nonce);
  if (partner.image && stopping_ && first) enter(message.from, control_message(ControlKind::bye));
  if (!partner.image || stopping_) return;
  if (message.kind != ControlKind::hello) (*partner.image)->checking.store(1, std::memory_order_release);
  if (message.kind != ControlKind::met)
    enter(message.from, control_message(message.kind == ControlKind::hello ? ControlKind::welcome : ControlKind::met));
  for (int index = 0; first && partner.plain_in && index < rts_lengths; ++index)
    if (const std::uint32_t messages = (*partner.plain_in)[static_cast<std::size_t>(index)]; messages != 0)
      enter(message.from, plain_count_message(index, messages));
}

/// From now on the other process may send this one RTS messages. Returns whether it might before.
bool Remote::note_greeted(Partner& partner) {
  own_->offered.store(1);
  return std::exchange(partner.greeted, true);
}

void Remote::greet(int rank) {
  {
    const LockGuard lock(mutex_);
    if (note_greeted(partners_[rank])) return;
  }
  say(rank, control_message(ControlKind::hello));
}

bool Remote::greeted(int rank) {
  const LockGuard lock(mutex_);
  const auto partner = partners_.find(rank);
  return partner != partners_.end() && partner->second.greeted;
}

Segment* Remote::image(int rank) {
  const LockGuard lock(mutex_);
  const auto partner = partners_.find(rank);
  return partner == partners_.end() ? nullptr : partner->second.image.get();
}

void Remote::offer(int index) {
  const Descriptor& descriptor = own_->descriptors[index];
  ControlMessage said = control_message(ControlKind::offer, {index, descriptor.generation});
  said.envelope = descriptor.envelope;
  said.bytes = descriptor.bytes;
  say_one(descriptor.destination, said);  // now, because the RTS follows; say() may leave it to another thread
}

void Remote::withdrawn(int index) {
  const Descriptor& descriptor = own_->descriptors[index];
  say(descriptor.destination, control_message(ControlKind::withdrawn, {index, descriptor.generation}));
}

void Remote::take_offer(const ControlMessage& message) {
  Segment* const image = this->image(message.from);
  if (image == nullptr) return;
  const LockGuard lock(mutex_);
  Descriptor& descriptor = (*image)->descriptors[message.index];
  // The message is over: its RTS came before this control message.
  if (static_cast<std::int32_t>(message.generation - descriptor.generation) < 0) return;
  if (descriptor.generation != message.generation) {  // equal if its RTS came first, or if the offer is void now
    describe(descriptor, {message.index, message.generation}, rank_, message.bytes);
    descriptor.envelope = message.envelope;
    descriptor.state.announce();
  }
  if (message.kind == ControlKind::withdrawn) descriptor.state.announce_failure();
}

Descriptor& Remote::expect(const RendezvousRequest& rts) {
  Segment* const image = this->image(rts.sender);
  const LockGuard lock(mutex_);
  Descriptor& descriptor = (*image)->descriptors[rts.index];
  if (descriptor.generation != rts.generation) {
    describe(descriptor, {rts.index, rts.generation}, rank_, rts.bytes);
    descriptor.state.announce();
  }
  descriptor.fragment_bytes = rts.fragment_bytes;  // only the RTS has it, not the control message
  return descriptor;
}

void Remote::want(int rank, const MessageId& id, std::int64_t bytes) {
  ControlMessage said = control_message(ControlKind::want, id);
  said.bytes = bytes;
  const LockGuard lock(mutex_);
  partners_[rank].in.push_back({id});
  enter(rank, said);
}

/// For a message that has been given up the receiver gets empty parts.
void Remote::take_want(const ControlMessage& message) {
  Descriptor& descriptor = own_->descriptors[message.index];
  if (descriptor.generation != message.generation) return;
  mark(point::wanted);
  const LockGuard lock(mutex_);
  descriptor.wanted_bytes.store(message.bytes, std::memory_order_release);
  Turn turn{{message.index, message.generation}};
  if (!descriptor.state.request()) {
    turn.given_up = message.bytes;
    turn.fragment_bytes = descriptor.fragment_bytes;
    any_given_up_ = true;
  }
  partners_[message.from].out.push_back(turn);
}

void Remote::done(int rank, const MessageId& id) {
  say(rank, control_message(ControlKind::done, id));
}

ControlMessage Remote::plain_count_message(int index, std::uint32_t messages) const {
  ControlMessage said = control_message(ControlKind::plain, {index, 0});
  said.bytes = messages;
  return said;
}

/// A process without an image here gets the count from meet().
void Remote::received_plain(int rank, int index) {
  {
    const LockGuard lock(mutex_);
    Partner& partner = partners_[rank];
    if (!partner.plain_in) partner.plain_in = std::make_unique<PlainMessages>();
    const std::uint32_t messages = ++(*partner.plain_in)[static_cast<std::size_t>(index)];
    if (!partner.image) return;
    enter(rank, plain_count_message(index, messages));
  }
  say_all();
}

std::uint32_t Remote::plain_messages(int rank, int index) {
  const LockGuard lock(mutex_);
  const auto partner = partners_.find(rank);
  if (partner == partners_.end() || !partner->second.plain_out) return 0;
  return (*partner->second.plain_out)[static_cast<std::size_t>(index)];
}

// --- turns -----------------------------------------------------------------------------------------------------------

std::deque<Remote::Turn>& Remote::turns(Way way, int rank) {
  Partner& partner = partners_[rank];
  return way == Way::out ? partner.out : partner.in;
}

bool Remote::has_turn(Way way, int rank, const MessageId& id) {
  const LockGuard lock(mutex_);
  const std::deque<Turn>& waiting = turns(way, rank);
  return !waiting.empty() && waiting.front().id == id;
}

void Remote::end_turn(Way way, int rank) {
  const LockGuard lock(mutex_);
  turns(way, rank).pop_front();
}

void Remote::give_up_turn(Way way, int rank, const MessageId& id, std::int64_t bytes, std::int64_t fragment_bytes) {
  const LockGuard lock(mutex_);
  for (Turn& turn : turns(way, rank)) {
    if (turn.id != id || turn.given_up >= 0) continue;
    turn.given_up = bytes;
    turn.fragment_bytes = fragment_bytes;
    any_given_up_ = true;
  }
}

/// The messages given up that have the turn. They keep it until make_up_for() has dealt with their missing fragments.
std::vector<Remote::GivenUp> Remote::given_up() {
  std::vector<GivenUp> found;
  if (!any_given_up_.load(std::memory_order_acquire)) return found;
  const LockGuard lock(mutex_);
  any_given_up_ = false;
  for (const auto& [rank, partner] : partners_)
    for (const Way way : {Way::out, Way::in})
      for (const Turn& turn : way == Way::out ? partner.out : partner.in) {
        if (turn.given_up < 0) continue;
        any_given_up_ = true;
        if (turn.id == turns(way, rank).front().id) found.push_back({way, rank, turn});
      }
  return found;
}

void Remote::make_up_for(const GivenUp& message) {
  const auto& [way, rank, turn] = message;
  std::int64_t rest = turn.given_up;
  try {
    for (; rest > 0; rest -= turn.fragment_bytes) {
      const auto bytes = static_cast<std::size_t>(std::min(rest, turn.fragment_bytes));
      if (way == Way::out) {
        send(rank, {}, 0);
      } else {
        std::vector<std::byte> unwanted(bytes);
        void* const data = unwanted.data();
        receive(rank, data, static_cast<std::int64_t>(bytes))->unwanted = std::move(unwanted);
      }
    }
  } catch (const std::exception&) {  // the message keeps the turn, and is tried again
    const LockGuard lock(mutex_);
    turns(way, rank).front().given_up = rest;
    return;
  }
  end_turn(way, rank);
}

MpiTransferRef Remote::send(int rank, device::Staging staging, std::int64_t bytes) {
  auto handed = std::make_shared<MpiTransfer>();
  handed->staging = std::move(staging);
  MPI_Request request = MPI_REQUEST_NULL;
  if (hidden_send(handed->staging.data(), static_cast<int>(bytes), MPI_BYTE, rank, fragment_tag, MPI_COMM_WORLD,
                  &request) != MPI_SUCCESS)
    throw MpiError(MPI_ERR_OTHER, "MPI does not send a part of a message");
  watch(request, handed);
  return handed;
}

MpiTransferRef Remote::receive(int rank, void* data, std::int64_t bytes) {
  auto handed = std::make_shared<MpiTransfer>();
  MPI_Request request = MPI_REQUEST_NULL;
  if (hidden_receive(data, static_cast<int>(bytes), MPI_BYTE, rank, fragment_tag, MPI_COMM_WORLD, &request) !=
      MPI_SUCCESS)
    throw MpiError(MPI_ERR_OTHER, "MPI does not receive a part of a message");
  watch(request, handed);
  return handed;
}

}  // namespace gpudt::interpose::peer
