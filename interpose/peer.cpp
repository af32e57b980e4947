// Offers and their tokens on the sending side, and what fetches the data on the receiving side.
#include "interpose/peer.hpp"

#include <algorithm>
#include <array>
#include <bitset>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "datatype/reference.hpp"
#include "interpose/log.hpp"
#include "interpose/report.hpp"
#include "interpose/workarounds.hpp"

namespace gpudt::interpose {

using namespace std::chrono_literals;

std::atomic<bool> peer_checking{false};

namespace {

using namespace peer;
using Clock_ = std::chrono::steady_clock;

// A message that is not fetched for so long, and is no longer than that, moves to the segment, so that its send can
// end: programs expect as much of short messages.
constexpr std::chrono::microseconds buffering_patience{50};
constexpr std::int64_t longest_buffered = 4096;
static_assert(longest_buffered <= std::int64_t(descriptor_data));
/// After so many messages in a row that could not be fetched, the sender takes other ways for 1, 2, 4 ... messages.
constexpr int refusals_borne = 1;
constexpr int longest_abstention = 64;
constexpr std::size_t habits_by_tag = 16;
/// From here on messages to processes that share no memory with this one are offered: the others are quicker in one
/// piece. If all are to go so, those that programs expect to be sent without a receiver still are not.
constexpr std::int64_t least_remote = 1 << 20;
constexpr std::int64_t least_remote_forced = longest_buffered + 1;
/// A notice is sent before its token, so that it is not long in coming; else what was probed is no token. So it is
/// mostly from a process of which that has been found before.
constexpr std::chrono::microseconds notice_patience{10000}, short_notice_patience{100};
/// Of what is a token its sender's notices do come, however late.
constexpr std::chrono::seconds token_patience{30};
/// From here on what cannot be fetched goes through the segment sooner than by other ways, and is always offered.
constexpr std::int64_t least_through_segment = 32 << 10;
/// Data that are packed to be fetched are packed in parts, the first so short a fraction of the message that the
/// receiver can begin soon; what follows are as many times what came before, since each part costs a launch on both
/// sides.
constexpr std::int64_t first_fetched_fraction = 8;
constexpr std::int64_t least_fetched_part = 512 << 10;
constexpr std::int64_t fetched_growth = 3;
constexpr std::size_t fetched_parts_under_way = 2;
constexpr int layouts_kept = 64;  ///< of other processes
constexpr std::chrono::milliseconds life_check{500};
constexpr int bare_copy_tag = 3;
constexpr unsigned polls_before_progress = 8;

/// Shorter messages are not fetched from another process's memory on the same GPU: kernels of two processes take turns
/// of a tenth of a millisecond and more, which the copy engine does not.
constexpr std::int64_t least_on_one_gpu = 256 << 10;

/// How a neighbour takes offers of some messages: receives of one tag mostly lie in one kind of memory.
struct Habit {
  int refusals = 0;  ///< in a row
  int abstain = 0;   ///< messages that are not offered before the next that is
};

/// A process of this job, as this one sees it.
struct Neighbour {
  std::unique_ptr<Segment> segment;
  bool awaited_in_vain = false;             ///< a notice
  unsigned attempts = 0, next_attempt = 0;  ///< at opening the segment, which may not be there yet, or never
  std::unique_ptr<std::array<Habit, 2 * habits_by_tag>> habits;  ///< made when first needed
  Habit& habit(int tag, std::int64_t bytes) {
    if (!habits) habits = std::make_unique<std::array<Habit, 2 * habits_by_tag>>();
    const std::size_t shorter = bytes < least_on_one_gpu ? 1 : 0;
    return (*habits)[2 * (static_cast<std::size_t>(tag) % habits_by_tag) + shorter];
  }
};

/// A descriptor that its offer has left before the receiver was done.
struct Deserted {
  int index;
  device::Staging packed;  ///< the receiver may still read it
};

struct World {
  std::string job;
  int rank = 0;
  PeerUse use = PeerUse::automatic;
  std::unique_ptr<Segment> own;
  int keyval = MPI_KEYVAL_INVALID;
  MPI_Comm self = MPI_COMM_NULL;  ///< where nothing is ever sent

  std::mutex ranks_mutex;  // of the ranks kept with communicators
  std::mutex mutex;        // of what follows
  std::vector<Neighbour> neighbours;
  std::bitset<descriptor_count> idle;  ///< descriptors
  std::vector<Deserted> deserted;
  std::vector<std::pair<datatype::LayoutRef, std::vector<std::byte>>> sent;  ///< layouts in bytes; few, latest last
  std::vector<std::pair<std::vector<std::byte>, datatype::LayoutRef>> received;
  std::map<int, device::Exported> gpus;  ///< this process's, as its exported memory tells

  std::optional<Chunks> chunks;
  std::optional<Remote> remote;  ///< none: all processes are on this node, or MPI has no hidden messages
};

World* world = nullptr;  // stays for good: messages in transit at MPI_Finalize may still need it

// --- processes -------------------------------------------------------------------------------------------------------

int drop_ranks(MPI_Comm, int, void* value, void*) {
  delete static_cast<std::vector<int>*>(value);
  return MPI_SUCCESS;
}

/// Ranks in MPI_COMM_WORLD of the processes that `comm` leads to; MPI_UNDEFINED: none.
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

/// Rank in MPI_COMM_WORLD of `peer` in `comm`; negative: none.
int world_rank_of(MPI_Comm comm, int peer) {
  if (comm == MPI_COMM_WORLD || comm == MPI_COMM_NULL || peer < 0) return comm == MPI_COMM_NULL ? -1 : peer;
  const std::lock_guard<std::mutex> lock(world->ranks_mutex);
  void* value = nullptr;
  int found = 0;
  PMPI_Comm_get_attr(comm, world->keyval, static_cast<void*>(&value), &found);
  if (found == 0) {
    auto ranks = std::make_unique<std::vector<int>>(world_ranks(comm));
    if (PMPI_Comm_set_attr(comm, world->keyval, ranks.get()) != MPI_SUCCESS) return -1;
    value = ranks.release();
  }
  const auto& ranks = *static_cast<const std::vector<int>*>(value);
  return static_cast<std::size_t>(peer) < ranks.size() ? ranks[static_cast<std::size_t>(peer)] : -1;
}

/// The segment of another process, or of this one; null if it has none, or does not check for tokens. The caller holds
/// the mutex.
Segment* reach(int rank) {
  if (rank == world->rank) return world->own.get();
  if (world->use == PeerUse::pipelined) return nullptr;
  if (rank < 0 || static_cast<std::size_t>(rank) >= world->neighbours.size()) return nullptr;
  Neighbour& neighbour = world->neighbours[static_cast<std::size_t>(rank)];
  if (!neighbour.segment && neighbour.attempts++ >= neighbour.next_attempt) {
    neighbour.next_attempt = 2 * neighbour.attempts;
    neighbour.segment = Segment::open(world->job, rank);
  }
  return neighbour.segment.get();
}

bool checks(const Segment* segment) {
  return segment != nullptr && (*segment)->checking.load(std::memory_order_acquire) != 0;
}

/// The same of a process that shares no memory with this one, if it is known to check for tokens.
Segment* reach_remote(int rank) {
  Segment* const image = world->remote ? world->remote->image(rank) : nullptr;
  return checks(image) ? image : nullptr;
}

/// A token that another process has sent: it has a segment, and nobody minds how long it takes to find.
Segment* reach_sender(int rank) {
  const std::lock_guard<std::mutex> lock(world->mutex);
  if (rank >= 0 && static_cast<std::size_t>(rank) < world->neighbours.size())
    world->neighbours[static_cast<std::size_t>(rank)].next_attempt = 0;
  return reach(rank);
}

[[noreturn]] void lost(const std::string& what) {
  throw device::Error(device::Failure::runtime, "peer transfer: " + what);
}

// --- descriptors -----------------------------------------------------------------------------------------------------

/// An idle descriptor, of `last` and those before, or -1. The caller holds the mutex.
int take_descriptor(int last) {
  auto& deserted = world->deserted;
  const auto still = std::partition(deserted.begin(), deserted.end(), [](const Deserted& descriptor) {
    return (*world->own)->descriptors[descriptor.index].state.load(std::memory_order_acquire) != State::done;
  });
  std::for_each(still, deserted.end(),
                [](const Deserted& descriptor) { world->idle.set(static_cast<std::size_t>(descriptor.index)); });
  deserted.erase(still, deserted.end());
  while (last >= 0 && !world->idle.test(static_cast<std::size_t>(last))) --last;
  if (last >= 0) world->idle.reset(static_cast<std::size_t>(last));
  return last;
}

void put_descriptor(int index, bool done, device::Staging packed) {
  const std::lock_guard<std::mutex> lock(world->mutex);
  if (done)
    world->idle.set(static_cast<std::size_t>(index));
  else
    world->deserted.push_back({index, std::move(packed)});
}

/// A layout in bytes, made once. The caller holds the mutex.
const std::vector<std::byte>& bytes_of(const datatype::LayoutRef& layout) {
  auto& sent = world->sent;
  const auto at = std::find_if(sent.begin(), sent.end(), [&](const auto& entry) { return entry.first == layout; });
  if (at != sent.end()) return at->second;
  if (sent.size() >= layouts_kept) sent.erase(sent.begin());
  return sent.emplace_back(layout, layout->to_bytes()).second;
}

/// The layout that a descriptor holds; the same object for the same bytes, since the GPU's copy is kept with it.
datatype::LayoutRef layout_of(const Descriptor& descriptor) {
  const std::span<const std::byte> bytes(descriptor.data, static_cast<std::size_t>(descriptor.layout_bytes));
  const std::lock_guard<std::mutex> lock(world->mutex);
  auto& received = world->received;
  const auto at = std::find_if(received.rbegin(), received.rend(),
                               [&](const auto& entry) { return std::ranges::equal(entry.first, bytes); });
  if (at != received.rend()) return at->second;
  datatype::LayoutRef layout = datatype::Layout::from_bytes(bytes);
  if (!layout) lost("the sender's layout is damaged");
  if (received.size() >= layouts_kept) received.erase(received.begin());
  received.emplace_back(std::vector<std::byte>(bytes.begin(), bytes.end()), layout);
  return layout;
}

/// The open offer in a segment, or image of one, that a status of `bytes` bytes stands for; null if it has none.
Descriptor* open_offer(Segment* segment, const MPI_Status& status, std::int64_t bytes) {
  if (segment == nullptr) return nullptr;
  Descriptor& descriptor = (*segment)->descriptors[token_index(bytes)];
  const State state = descriptor.state.load(std::memory_order_acquire);
  const bool open = state == State::offered || state == State::withdrawing || state == State::buffered;
  const bool meant = descriptor.destination == world->rank && descriptor.tag == status.MPI_TAG &&
                     descriptor.source == status.MPI_SOURCE && descriptor.issued.load() != 0 &&
                     descriptor.matched.load() == 0;
  return open && meant ? &descriptor : nullptr;
}

/// Another process's offer.
struct Offered {
  Descriptor* descriptor = nullptr;
  int remote = -1;  ///< the sender's rank, if this is but an image of the descriptor
  explicit operator bool() const { return descriptor != nullptr; }
};

/// The same of process `sender`, if it has been made by notice.
Offered noticed_offer(int sender, const MPI_Status& status, std::int64_t bytes) {
  return {open_offer(world->remote ? world->remote->image(sender) : nullptr, status, bytes), sender};
}

Offered open_offer(int sender, const MPI_Status& status, std::int64_t bytes) {
  const Offered noticed = noticed_offer(sender, status, bytes);
  return noticed ? noticed : Offered{open_offer(reach_sender(sender), status, bytes)};
}

/// What `find_of(rank)` finds of all processes; nothing if it could be one of several.
template <class FindOf>
Offered only_offer(FindOf find_of) {
  Offered found;
  for (std::size_t rank = 0; rank < world->neighbours.size(); ++rank) {
    const Offered offered = find_of(static_cast<int>(rank));
    if (offered && std::exchange(found, offered)) return {};
  }
  return found;
}

void progress_mpi() {
  int flag = 0;  // nothing is sent there
  PMPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, world->self, &flag, MPI_STATUS_IGNORE);
}

/// What `find()` finds, if need be when the notices have come that may still be on their way.
template <class Find>
auto find_awaiting_notices(std::chrono::microseconds patience, Find find) {
  auto found = find();
  if (found || patience.count() == 0) return found;
  ++world->remote->under_way;
  for (const auto deadline = Clock_::now() + patience; !found && Clock_::now() < deadline; found = find()) {
    progress_mpi();
    world->remote->advance();
  }
  --world->remote->under_way;
  return found;
}

/// Takes those that have come.
void hear_notices() {
  ++world->remote->under_way;
  world->remote->advance();
  --world->remote->under_way;
}

/// For notices of a process that are sent before what has come of it.
std::chrono::microseconds patience_with(int sender) {
  if (!world->remote || !world->remote->greeted(sender)) return {};
  const std::lock_guard<std::mutex> lock(world->mutex);
  const bool in_vain = world->neighbours[static_cast<std::size_t>(sender)].awaited_in_vain;
  return in_vain ? short_notice_patience : notice_patience;
}

/// Offers to a neighbour pause after refusals. The caller holds the mutex.
bool abstains(int rank, int tag, std::int64_t bytes) {
  if (rank == world->rank || world->use != PeerUse::automatic) return false;
  if (bytes >= least_through_segment && world->chunks->usable()) return false;
  Habit& habit = world->neighbours[static_cast<std::size_t>(rank)].habit(tag, bytes);
  if (habit.abstain == 0) return false;
  --habit.abstain;
  return true;
}

/// Whether the neighbour could not fetch the last such message. The caller holds the mutex.
bool has_refused(int rank, int tag, std::int64_t bytes) {
  return world->neighbours[static_cast<std::size_t>(rank)].habit(tag, bytes).refusals != 0;
}

void note_outcome(int rank, const Descriptor& descriptor, bool refused) {
  const std::lock_guard<std::mutex> lock(world->mutex);
  Habit& habit = world->neighbours[static_cast<std::size_t>(rank)].habit(descriptor.tag, descriptor.bytes);
  habit.refusals = refused ? habit.refusals + 1 : 0;
  if (habit.refusals >= refusals_borne)
    habit.abstain = std::min(1 << std::min(habit.refusals - refusals_borne, 20), longest_abstention);
}

/// Whether memory that another process has exported is on the GPU of `operand`. False if that cannot be told.
bool on_one_gpu(const device::Exported& memory, const Operand& operand) {
  const std::lock_guard<std::mutex> lock(world->mutex);
  auto at = world->gpus.find(operand.ordinal);
  if (at == world->gpus.end()) {
    device::Exported own;
    const auto* const first = static_cast<const char*>(operand.buffer) + operand.info->layout().true_lb();
    if (!device::export_memory(operand.ordinal, first, own)) return false;
    at = world->gpus.emplace(operand.ordinal, own).first;
  }
  return std::equal(std::begin(memory.gpu), std::end(memory.gpu), std::begin(at->second.gpu));
}

}  // namespace

namespace {

/// False if that cannot be told.
bool on_one_node(int processes) {
  const char* const here = std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
  return here != nullptr && std::atoi(here) == processes;
}

constexpr EngineBackground notices = {[] { return world->remote->progress(); }, [] { return world->remote->due(); }};

void start_remote(int processes) {
  if (!has_hidden_messages()) {
    log_trace("this MPI library has no messages that programs cannot see: none goes in parts");
    return;
  }
  world->remote.emplace(*world->own, world->rank);
  engine_background(&notices);
  if (world->use != PeerUse::pipelined) return;
  for (int rank = 0; rank < processes; ++rank)
    if (rank != world->rank) world->remote->greet(rank);
}

}  // namespace

void peer_start(PeerUse use, int world_rank) {
  if (use == PeerUse::never) return;
  if (!all_receives_are_known()) {
    if (use == PeerUse::always) log_warning("GPUDT_PROTOCOL=peer needs Open MPI 4; messages are staged");
    return;
  }
  const std::string job = job_name();
  if (job.empty()) {
    if (use == PeerUse::always)
      log_warning(
          "GPUDT_PROTOCOL=peer: this MPI library does not tell processes what job they belong to; messages are"
          " staged");
    return;
  }
  auto made = std::make_unique<World>();
  try {
    made->own = Segment::create(job, world_rank);
  } catch (const std::exception& error) {
    log_warning(std::string("no peer transfers: ") + error.what());
    return;
  }
  made->job = job;
  made->rank = world_rank;
  made->use = use;
  int size = 0;
  PMPI_Comm_size(MPI_COMM_WORLD, &size);
  made->neighbours.resize(static_cast<std::size_t>(size));
  made->idle.set();
  made->chunks.emplace(*made->own);
  PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, drop_ranks, &made->keyval, nullptr);
  made->self = bare_copy(MPI_COMM_SELF, bare_copy_tag);
  world = made.release();
  if (use == PeerUse::pipelined || !on_one_node(size)) start_remote(size);
  (*world->own)->checking.store(1, std::memory_order_release);
  peer_checking.store(true);
}

bool peer_stop() {
  if (!peer_checking.exchange(false)) return true;
  (*world->own)->checking.store(0, std::memory_order_release);
  engine_background(nullptr);
  const bool quiet = !world->remote || world->remote->stop();
  PMPI_Comm_free_keyval(&world->keyval);
  PMPI_Comm_free(&world->self);
  const std::lock_guard<std::mutex> lock(world->mutex);
  world->sent.clear();
  world->received.clear();
  return quiet;
}

void peer_probed(MPI_Comm comm, MPI_Status* status, bool matched) {
  if (!peer_checks() || status == MPI_STATUS_IGNORE) return;
  const std::int64_t bytes = received_bytes(*status);
  if (token_index(bytes) < 0) return;
  engine_progress();  // tokens that have been received no longer count
  const int sender = world_rank_of(comm, status->MPI_SOURCE);
  if (world->remote) hear_notices();
  const std::chrono::microseconds patience = patience_with(sender);
  const Offered offered = find_awaiting_notices(patience, [&] { return open_offer(sender, *status, bytes); });
  if (patience.count() != 0) {
    const std::lock_guard<std::mutex> lock(world->mutex);
    world->neighbours[static_cast<std::size_t>(sender)].awaited_in_vain = !offered;
  }
  if (!offered) return;
  if (matched) offered.descriptor->matched.store(1);
  PMPI_Status_set_elements_x(status, MPI_BYTE, offered.descriptor->bytes);
}

// All processes are looked through, since it is not known here which communicator the receive was on.
void peer_truncated(const MPI_Status& status) {
  const std::int64_t bytes = received_bytes(status);
  if (!peer_checks() || token_index(bytes) < 0) return;
  Offered found = only_offer([&](int rank) { return open_offer(rank, status, bytes); });
  if (!found && world->remote)
    found = find_awaiting_notices(
        notice_patience, [&] { return only_offer([&](int rank) { return noticed_offer(rank, status, bytes); }); });
  if (!found) return;
  for (State state : {State::offered, State::withdrawing, State::buffered}) {
    if (!found.descriptor->state.compare_exchange_strong(state, State::done)) continue;
    if (found.remote >= 0) world->remote->done(found.remote, {token_index(bytes), found.descriptor->generation});
    return;
  }
}

// --- offers ----------------------------------------------------------------------------------------------------------

namespace {

std::int64_t bytes_in(int count, MPI_Datatype type) {
  MPI_Count size = 0;
  PMPI_Type_size_x(type, &size);
  return std::int64_t{count} * size;
}

/// Of a message to a process that shares no memory with this one.
bool goes_remote(int rank, std::int64_t bytes, bool offered) {
  if (!world->remote || rank < 0 || static_cast<std::size_t>(rank) >= world->neighbours.size()) return false;
  const bool long_enough = bytes >= (world->use == PeerUse::pipelined ? least_remote_forced : least_remote);
  if (offered && !long_enough) return false;
  if (reach_remote(rank) != nullptr) return true;
  if (offered) world->remote->greet(rank);  // for the next time
  return false;
}

device::Transfer pack_all(const Operand& operand, const device::Staging& staging) {
  return device::start(device::Direction::pack, operand.ordinal, operand.info->layout(), operand.count, operand.buffer,
                       0, operand.bytes(), staging.data());
}

}  // namespace

/// What a message needs to be offered, or to be buffered at once.
struct Offer::Place {
  int world;
  int index;
  bool remote;  ///< the receiver shares no memory with this process
  bool afar;    ///< the receiver is another process, which presumably fetches what is offered
};

/// Nothing if it is to go another way. Takes a descriptor.
std::optional<Offer::Place> Offer::place_for(int rank, int tag, std::int64_t bytes, bool offered) {
  if (rank < 0 || static_cast<std::size_t>(rank) >= world->neighbours.size()) return std::nullopt;
  std::unique_lock<std::mutex> lock(world->mutex);
  const bool near = checks(reach(rank));
  lock.unlock();  // MPI may be called
  const bool remote = !near && goes_remote(rank, bytes, offered);
  lock.lock();
  if (!(near || remote) || (near && offered && abstains(rank, tag, bytes))) return std::nullopt;
  // What is not offered may meet a receive with no more room than for the message.
  const int last = offered ? descriptor_count - 1 : token_index(bytes);
  int index = take_descriptor(last);
  if (index < 0 && remote) {
    lock.unlock();
    hear_notices();  // that messages are done
    lock.lock();
    index = take_descriptor(last);
  }
  if (index < 0) return std::nullopt;
  const bool fetched = near && world->use != PeerUse::shared && rank != world->rank && !has_refused(rank, tag, bytes);
  return Place{rank, index, remote, fetched};
}

bool Offer::likely(const void* buf, int count, MPI_Datatype type, int dest, MPI_Comm comm) {
  if (!peer_checks() || count <= 0 || type == MPI_DATATYPE_NULL) return false;
  const std::int64_t bytes = bytes_in(count, type);
  if (token_index(bytes) < 0 && (bytes < least_offered || !locate_buffer(buf, type).on_device())) return false;
  const int rank = world_rank_of(comm, dest);
  {
    const std::lock_guard<std::mutex> lock(world->mutex);
    if (checks(reach(rank))) return true;
  }
  return goes_remote(rank, bytes, bytes >= least_offered);
}

Offer::Offer(const Place& place, int tag, MPI_Comm comm)
    : index_(place.index),
      descriptor_((*world->own)->descriptors[place.index]),
      world_(place.world),
      remote_(place.remote),
      offered_at_(Clock_::now()) {
  ++descriptor_.generation;
  int source = 0;
  PMPI_Comm_rank(comm, &source);
  descriptor_.destination = world_;
  descriptor_.source = source;
  descriptor_.tag = tag;
  descriptor_.issued.store(0, std::memory_order_relaxed);
  descriptor_.matched.store(0, std::memory_order_relaxed);
  descriptor_.ready.store(0, std::memory_order_relaxed);
  descriptor_.produced.store(0, std::memory_order_relaxed);
  descriptor_.consumed.store(0, std::memory_order_relaxed);
  descriptor_.wanted.store(-1, std::memory_order_relaxed);
}

/// Makes the token, when all else of the descriptor is there; from now on the receiver may have it.
void Offer::open(State state) {
  opened_ = true;
  const Image& own = **world->own;
  Token token = {token_mark,       {own.nonce[0], own.nonce[1]}, world->rank, index_, descriptor_.generation, 0,
                 descriptor_.bytes};
  if (remote_) token.flags = state == State::buffered ? token_remote | token_data_follow : token_remote;
  std::memcpy(descriptor_.token, &token, sizeof token);
  descriptor_.state.store(state, std::memory_order_release);
  if (remote_) world->remote->offer(index_, state == State::buffered ? descriptor_.data : nullptr);
}

std::shared_ptr<Offer> Offer::of(const Operand& operand, int dest, int tag, MPI_Comm comm) {
  const std::int64_t bytes = operand.bytes();
  const bool offered = bytes >= least_offered;
  if (!peer_checks() || operand.protocol != Protocol::mapped_staging || (!offered && token_index(bytes) < 0))
    return nullptr;
  const auto place = place_for(world_rank_of(comm, dest), tag, bytes, offered);
  if (!place) return nullptr;
  std::shared_ptr<Offer> offer(new Offer(*place, tag, comm));
  offer->operand_ = operand;
  offer->descriptor_.bytes = bytes;
  if (!offered) {
    offer->move_to_descriptor();
    return offer;
  }
  try {
    offer->offer(place->afar);
  } catch (const device::Error& error) {
    if (error.failure() == device::Failure::out_of_memory) return nullptr;  // the host may have room
    throw;
  }
  return offer;
}

/// A short message goes with the descriptor.
void Offer::move_to_descriptor() {
  staging_ =
      device::acquire(device::StagingKind::mapped, operand_.ordinal, static_cast<std::size_t>(descriptor_.bytes));
  moving_ = pack_all(operand_, staging_);
  if (!remote_) return open(State::withdrawing);
  moving_.wait();  // they go with the notice
  std::memcpy(descriptor_.data, staging_.data(), static_cast<std::size_t>(descriptor_.bytes));
  open(State::buffered);
}

void Offer::offer(bool afar) {
  if (remote_) {
    outflow_ = std::make_unique<MessageOutflow>(*world->remote, world_, index_, descriptor_, operand_);
    outflow_->step();
    report_peer(PeerEvent::remote);
  } else {
    describe(afar && device::better_fetched_packed(operand_.ordinal, operand_.info->layout(), operand_.count));
  }
  report_peer(PeerEvent::offered);
  if (tracing())
    log_trace("message of " + std::to_string(descriptor_.bytes) + " B offered to process " + std::to_string(world_) +
              (packed_ ? ", packed" : "") + (remote_ ? ", in parts" : ""));
  open(State::offered);
}

bool peer_token_long(int count, MPI_Datatype type) {
  // More elements than a token has bytes: the type need not be asked about.
  if (!peer_checks() || count <= 0 || count > longest_token || type == MPI_DATATYPE_NULL) return false;
  return token_index(bytes_in(count, type)) >= 0;
}

std::shared_ptr<Offer> Offer::of_host(const void* buf, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm) {
  if (!peer_token_long(count, type) || dest < 0) return nullptr;
  const std::int64_t bytes = bytes_in(count, type);
  const datatype::TypeInfoRef info = datatype::type_info(type);
  if (!info) return nullptr;
  const auto place = place_for(world_rank_of(comm, dest), tag, bytes, /*offered=*/false);
  if (!place) return nullptr;
  std::shared_ptr<Offer> offer(new Offer(*place, tag, comm));
  offer->descriptor_.bytes = bytes;
  datatype::pack(info->layout(), count, buf, 0, bytes, offer->descriptor_.data);
  offer->open(State::buffered);
  return offer;
}

/// Whether all of the operand lies in the allocation, as its first byte does.
bool holds(const device::Exported& memory, const Operand& operand) {
  const datatype::Layout& layout = operand.info->layout();
  const std::int64_t last = (operand.count - 1) * layout.extent();
  const auto buffer = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(operand.buffer));
  const std::int64_t begin = buffer + std::min(std::int64_t{0}, last) + layout.true_lb();
  const std::int64_t end = buffer + std::max(std::int64_t{0}, last) + layout.true_ub();
  const auto base = static_cast<std::int64_t>(memory.base);
  return begin >= base && end <= base + static_cast<std::int64_t>(memory.size);
}

/// Where the receiver finds the data.
void Offer::describe(bool better_packed) {
  descriptor_.count = operand_.count;
  descriptor_.layout_bytes = 0;
  const auto bytes = static_cast<std::size_t>(descriptor_.bytes);
  if (better_packed) packed_ = device::try_acquire(device::StagingKind::device, operand_.ordinal, bytes);
  if (!packed_ && describe_in_place()) {
    descriptor_.ready.store(descriptor_.bytes, std::memory_order_relaxed);
    return;
  }
  if (!packed_) packed_ = device::acquire(device::StagingKind::device, operand_.ordinal, bytes);
  pack_for_fetching();
}

/// Where the program has them, if the memory can be exported and the layout is short.
bool Offer::describe_in_place() {
  const datatype::Layout& layout = operand_.info->layout();
  const datatype::Shape shape = layout.shape(operand_.count);
  const auto* const first = static_cast<const char*>(operand_.buffer) + layout.true_lb();
  const bool contiguous = shape.kind == datatype::ShapeKind::contiguous;
  Descriptor& to = descriptor_;
  if (!contiguous && layout.serialised().size() >= descriptor_data) return false;
  if (!device::export_memory(operand_.ordinal, first, to.memory) || !holds(to.memory, operand_)) return false;
  to.address = reinterpret_cast<std::uint64_t>(operand_.buffer);
  if (contiguous) {
    to.address += static_cast<std::uint64_t>(shape.offset);
    return true;
  }
  const std::lock_guard<std::mutex> lock(world->mutex);
  const std::vector<std::byte>& bytes = bytes_of(operand_.info->layout_ref());
  if (bytes.size() > descriptor_data) return false;
  std::copy(bytes.begin(), bytes.end(), to.data);
  to.layout_bytes = static_cast<std::int64_t>(bytes.size());
  return true;
}

/// Packed, in memory of our own.
void Offer::pack_for_fetching() {
  Descriptor& to = descriptor_;
  if (!device::export_memory(operand_.ordinal, packed_.data(), to.memory)) to.memory = {};
  to.address = reinterpret_cast<std::uint64_t>(packed_.data());
  report_peer(PeerEvent::packed);
  pack_next_part();  // the others when the token is on its way
}

void Offer::pack_next_part() {
  const std::int64_t begin = packing_bytes_;
  const std::int64_t first = std::max(divided(descriptor_.bytes, first_fetched_fraction), least_fetched_part);
  packing_bytes_ = std::min(begin == 0 ? first : begin + begin * fetched_growth, descriptor_.bytes);
  packing_.push_back({packing_bytes_, device::start(device::Direction::pack, operand_.ordinal, operand_.info->layout(),
                                                    operand_.count, operand_.buffer, begin, packing_bytes_,
                                                    static_cast<std::byte*>(packed_.data()) + begin)});
}

/// Of data that are packed to be fetched: tells the receiver what is ready, and packs on.
void Offer::pack_on() {
  if (!packed_) return;
  for (; !packing_.empty() && packing_.front().transfer.done(); packing_.pop_front())
    descriptor_.ready.store(packing_.front().end, std::memory_order_release);
  while (packing_bytes_ < descriptor_.bytes && packing_.size() < fetched_parts_under_way) pack_next_part();
}

Offer::~Offer() {
  if (!sent_ && descriptor_.state.load(std::memory_order_acquire) != State::buffered) give_up();  // nobody knows of it
  State state = descriptor_.state.load(std::memory_order_acquire);
  // One that is given up after an error: the receiver hears of it if it asks.
  bool ended = state == State::wanted && all_sent_;
  while (!ended && state != State::done && state != State::buffered && state != State::claimed &&
         state != State::failed)
    ended = descriptor_.state.compare_exchange_weak(state, State::failed);
  if (remote_ && state == State::offered) world->remote->withdrawn(index_);
  outflow_.reset();
  if (state == State::claimed && packed_ && descriptor_.ready.load() < descriptor_.bytes)
    descriptor_.ready.store(-1, std::memory_order_release);
  packing_.clear();
  put_descriptor(index_, state == State::done, std::move(packed_));
}

void Offer::give_up() {
  descriptor_.state.store(State::done);
  if (remote_ && opened_) world->remote->withdrawn(index_);
}

Outgoing Offer::message() const {
  descriptor_.issued.store(1);
  return {descriptor_.token, static_cast<int>(token_bytes(index_)), MPI_BYTE};
}

void Offer::start_unpack(std::int64_t) {
  sent_ = true;
  offered_at_ = Clock_::now();
}

bool Offer::done() {
  return !sent_ || step();
}

void Offer::wait() {
  const Timed timed(Clock::transfer);
  wait_with_progress(*this);
}

bool Offer::step() {
  if (remote_) return step_remote();
  switch (descriptor_.state.load(std::memory_order_acquire)) {
    case State::done:
      note_outcome(world_, descriptor_, /*refused=*/outflow_ != nullptr);
      return true;
    case State::buffered:
      return true;
    case State::offered:
      pack_on();
      withdraw();
      break;
    case State::claimed:
      pack_on();
      break;
    case State::withdrawing:
      buffer();
      break;
    case State::wanted:
      stream();
      break;
    default:
      break;
  }
  return receiver_gone();
}

/// Takes the offer back, if the receiver has not come for it by now, so that its data go to the descriptor.
void Offer::withdraw() {
  if (descriptor_.bytes > longest_buffered || Clock_::now() - offered_at_ < buffering_patience) return;
  if (!staging_) staging_ = device::try_acquire(device::StagingKind::mapped, operand_.ordinal, longest_buffered);
  if (!staging_) return;  // there is no memory just now
  State expected = State::offered;
  if (!descriptor_.state.compare_exchange_strong(expected, State::withdrawing)) return;
  moving_ = pack_all(operand_, staging_);
}

void Offer::buffer() {
  if (!moving_.done()) return;
  std::memcpy(descriptor_.data, staging_.data(), static_cast<std::size_t>(descriptor_.bytes));
  State expected = State::withdrawing;
  if (descriptor_.state.compare_exchange_strong(expected, State::buffered)) report_peer(PeerEvent::buffered);
}

/// The receiver cannot fetch the data: they go through the segment.
void Offer::stream() {
  if (!outflow_) {
    packing_.clear();
    packed_ = {};
    outflow_ = std::make_unique<SegmentOutflow>(descriptor_, *world->chunks, operand_);
    report_peer(PeerEvent::refused);
  }
  outflow_->step();
}

bool Offer::step_remote() {
  if (!outflow_) return true;  // the data have gone with the notice
  const State state = descriptor_.state.load(std::memory_order_acquire);
  all_sent_ = all_sent_ || outflow_->step();
  if (all_sent_) return true;
  return state == State::done ? descriptor_.wanted.load() < 0 : receiver_gone();
}

/// Throws if the receiver has ended; true if it is in MPI_Finalize and will not come for the message.
bool Offer::receiver_gone() {
  const auto now = Clock_::now();
  if (world_ == world->rank || now - std::max(offered_at_, checked_at_) < life_check) return false;
  checked_at_ = now;
  const std::lock_guard<std::mutex> lock(world->mutex);
  const Segment* const segment = remote_ ? world->remote->image(world_) : reach(world_);
  if (segment == nullptr) return false;
  if (segment->orphaned()) lost("process " + std::to_string(world_) + ", which a message was for, has ended");
  return !checks(segment);
}

// --- pulls -----------------------------------------------------------------------------------------------------------

std::unique_ptr<Pull> Pull::recognise(const Token& head, std::int64_t bytes) {
  const int index = token_index(bytes);
  if (index < 0 || head.mark != token_mark || head.index != index) return nullptr;
  const bool remote = (head.flags & token_remote) != 0;
  if (remote && !world->remote) return nullptr;
  if (remote) hear_notices();
  Segment* const segment = find_awaiting_notices(remote ? token_patience : 0us, [&] {
    return remote ? world->remote->image(head.sender) : reach_sender(head.sender);
  });
  if (segment == nullptr) lost("the shared memory of process " + std::to_string(head.sender) + " cannot be opened");
  if ((*segment)->nonce[0] != head.nonce[0] || (*segment)->nonce[1] != head.nonce[1]) return nullptr;
  Descriptor& descriptor = remote ? world->remote->expect(head) : (*segment)->descriptors[index];
  if (descriptor.generation != head.generation) lost("the sender has given a message up");
  return std::unique_ptr<Pull>(new Pull(*segment, descriptor, head));
}

Pull::Pull(const Segment& segment, Descriptor& descriptor, const Token& token)
    : segment_(segment),
      descriptor_(descriptor),
      id_{token.index, token.generation},
      remote_((token.flags & token_remote) != 0) {
  if (remote_) ++world->remote->under_way;
}

Announced Pull::announced(std::int64_t capacity) const {
  const std::int64_t bytes = descriptor_.bytes;
  return {std::min(bytes, capacity), bytes > capacity ? MPI_ERR_TRUNCATE : MPI_SUCCESS};
}

Pull::~Pull() {
  inflow_.reset();  // what the GPU does ends first
  transfers_.clear();
  mapping_ = {};
  if (!released_) release();
  if (remote_) --world->remote->under_way;
}

/// True if the data are still with the sender's GPU, and stay there until the pull is done.
bool Pull::claim() {
  State expected = State::offered;
  if (descriptor_.state.compare_exchange_strong(expected, State::claimed)) return true;
  source_ = Source::segment;  // withdrawing, or buffered
  return false;
}

void Pull::want() {
  source_ = Source::segment;
  descriptor_.state.store(State::wanted, std::memory_order_release);
  if (remote_)
    inflow_ = std::make_unique<MessageInflow>(*world->remote, segment_->rank, descriptor_, id_.index, target_);
}

void Pull::start(const Operand& into, void* staging) {
  into_ = into;
  wanted_ = std::min(descriptor_.bytes, into.bytes());
  target_ = {&into.info->layout(), into.count, into.buffer, wanted_, into.ordinal, static_cast<std::byte*>(staging)};
  if (claim() && !fetch(into)) want();
}

void Pull::start(const datatype::LayoutRef& layout, std::int64_t count, void* user) {
  layout_ = layout;
  wanted_ = std::min(descriptor_.bytes, count * layout->size());
  target_ = {layout.get(), count, user, wanted_};
  if (claim()) want();
}

bool Pull::fetch(const Operand& into) {
  if (remote_ || world->use == PeerUse::shared) return false;
  if (segment_->rank != world->rank && descriptor_.bytes < least_on_one_gpu && on_one_gpu(descriptor_.memory, into))
    return false;
  std::string why;
  mapping_ = device::import_memory(into.ordinal, static_cast<std::uint64_t>(segment_->rank), descriptor_.memory, &why);
  if (!mapping_) {
    if (tracing()) log_trace("no peer transfer: " + why);
    return false;
  }
  const bool packed = descriptor_.layout_bytes == 0;
  senders_ = packed ? datatype::type_info(MPI_BYTE)->layout_ref() : layout_of(descriptor_);
  source_ = Source::memory;
  if (tracing()) log_trace("peer transfer of " + std::to_string(wanted_) + " B to GPU " + std::to_string(into.ordinal));
  fetch_what_is_ready();
  return true;
}

/// True if all of it has been, or is on its way.
bool Pull::fetch_what_is_ready() {
  if (fetched_ == wanted_) return true;
  const std::int64_t ready = descriptor_.ready.load(std::memory_order_acquire);
  if (ready < 0) lost("the sender has given a message up");
  const std::int64_t end = std::min(ready, wanted_);
  if (fetched_ < end) {
    const bool packed = descriptor_.layout_bytes == 0;
    const device::Side from = {senders_.get(), packed ? descriptor_.bytes : descriptor_.count,
                               mapping_.at(descriptor_.address)};
    const device::Side to = {&into_.info->layout(), into_.count, into_.buffer};
    transfers_.push_back(device::transfer(into_.ordinal, from, to, fetched_, end));
    fetched_ = end;
  }
  return fetched_ == wanted_;
}

void Pull::release() {
  released_ = true;
  descriptor_.state.store(State::done, std::memory_order_release);
  if (remote_) world->remote->done(segment_->rank, id_);
}

bool Pull::done() {
  const bool coming = source_ == Source::memory ? !fetch_what_is_ready() : source_ == Source::segment && !collect();
  while (!transfers_.empty() && transfers_.front().done()) transfers_.pop_front();
  if (coming) check_sender();
  if (coming || !transfers_.empty()) return false;
  mapping_ = {};  // before the sender may free the memory
  if (!released_) release();
  return true;
}

/// What the sender has put into its segment; true if that is all.
bool Pull::collect() {
  if (released_) return true;
  if (remote_ && inflow_) return inflow_->step();
  const State state = descriptor_.state.load(std::memory_order_acquire);
  const bool given_up = descriptor_.ready.load(std::memory_order_acquire) < 0;
  if (state == State::failed || state == State::done || given_up) lost("the sender has given a message up");
  if (state == State::buffered) {
    take_buffered();
    release();
    return true;
  }
  if (state != State::wanted) return false;
  if (!inflow_) inflow_ = std::make_unique<SegmentInflow>(segment_, descriptor_, target_);
  return inflow_->step();
}

void Pull::take_buffered() {
  if (target_.ordinal < 0) {
    datatype::unpack(*target_.layout, target_.count, target_.user, 0, wanted_, descriptor_.data);
  } else if (wanted_ > 0) {
    std::memcpy(target_.staging, descriptor_.data, static_cast<std::size_t>(wanted_));
    transfers_.push_back(device::start(device::Direction::unpack, target_.ordinal, *target_.layout, target_.count,
                                       target_.user, 0, wanted_, target_.staging));
  }
}

void Pull::check_sender() {
  const auto now = Clock_::now();
  if (now - checked_at_ < life_check) return;
  checked_at_ = now;
  if (descriptor_.destination == world->rank && &segment_ != world->own.get() && segment_.orphaned())
    lost("process " + std::to_string(segment_->rank) + ", which has sent a message, has ended");
}

// --- receives --------------------------------------------------------------------------------------------------------

HostReceive::HostReceive(void* buf, std::int64_t count, datatype::TypeInfoRef info)
    : buf_(buf), count_(count), info_(std::move(info)) {}

Announced HostReceive::announced(std::int64_t bytes) {
  pull_.reset();
  if (token_index(bytes) < 0) return {bytes};
  Token head;
  datatype::pack(info_->layout(), count_, buf_, 0, sizeof head, &head);
  pull_ = Pull::recognise(head, bytes);
  return pull_ ? pull_->announced(count_ * info_->layout().size()) : Announced{bytes};
}

void HostReceive::start_unpack(std::int64_t) {
  if (pull_) pull_->start(info_->layout_ref(), count_, buf_);
}

bool HostReceive::done() {
  return !pull_ || pull_->done();
}

void HostReceive::wait() {
  wait_with_progress(*this);
}

void HostReceive::abandon() {
  pull_.reset();
}

std::shared_ptr<HostReceive> peer_host_receive(void* buf, int count, MPI_Datatype type) {
  if (!peer_checks() || count <= 0 || type == MPI_DATATYPE_NULL) return nullptr;
  if (bytes_in(count, type) < shortest_token) return nullptr;
  datatype::TypeInfoRef info = datatype::type_info(type);
  return info ? std::make_shared<HostReceive>(buf, count, std::move(info)) : nullptr;
}

bool is_truncation(int code) {
  int error_class = MPI_SUCCESS;
  PMPI_Error_class(code, &error_class);
  return error_class == MPI_ERR_TRUNCATE;
}

int peer_received(int code, const char* call, Payload& payload, MPI_Status& status, const ErrorOwner& owner) {
  if (code != MPI_SUCCESS) {
    if (is_truncation(code)) peer_truncated(status);
    return code;
  }
  const std::int64_t bytes = received_bytes(status);
  const Announced announced = payload.announced(bytes);
  if (announced.bytes != bytes) PMPI_Status_set_elements_x(&status, MPI_BYTE, announced.bytes);
  payload.start_unpack(announced.bytes);
  payload.wait();
  if (announced.error == MPI_SUCCESS) return code;
  return fail(
      owner, call, announced.error,
      "the message is longer than the " + std::to_string(announced.bytes) + " bytes that the receive has room for");
}

int peer_received_on_host(int code, const char* call, void* buf, int count, MPI_Datatype type, MPI_Status& status,
                          const ErrorOwner& owner) {
  if (code == MPI_SUCCESS && token_index(received_bytes(status)) < 0) return code;
  HostReceive receive(buf, count, code == MPI_SUCCESS ? datatype::type_info(type) : nullptr);
  return peer_received(code, call, receive, status, owner);
}

void wait_with_progress(Payload& payload) {
  for (unsigned polls = 1; !payload.done(); ++polls) {
    if (polls % polls_before_progress == 0) progress_mpi();
  }
}

}  // namespace gpudt::interpose
