// What this process knows about other processes and about offered messages. Both ends of peer transfers use it
// (transport/peer/sender.cpp, transport/peer/receiver.cpp).
#pragma once

#include <mpi.h>

#include <array>
#include <atomic>
#include <bitset>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/backoff.hpp"
#include "base/mutex.hpp"
#include "interpose/engine/engine.hpp"
#include "interpose/shared/layout_exchange.hpp"
#include "interpose/transport/device_buffer.hpp"
#include "interpose/transport/peer/peer.hpp"
#include "interpose/transport/protocol.hpp"

namespace gpudt::interpose::peer {

using SteadyClock = std::chrono::steady_clock;

/// Time between two checks whether the other process still runs.
inline constexpr std::chrono::milliseconds life_check{500};
/// Number of polls between two readings of the clock: with many messages that are polled in turn, reading it each time
/// would take a fifth of the process's time.
inline constexpr unsigned polls_between_life_checks = 16;
/// Of two processes on one GPU only one launches kernels for shorter messages than this: kernels of both would wait for
/// time slices of a tenth of a millisecond and more.
inline constexpr std::int64_t least_on_one_gpu = 256 << 10;
/// Messages of at least this many bytes are always offered: if they cannot be fetched, the segment is the fastest way.
inline constexpr std::int64_t least_through_segment = 32 << 10;
/// Number of bytes that are received from an allocation into pinned host memory before it is mapped for that: mapping
/// takes as long as receiving megabytes through the segment, and delays what cudaFree gives back.
inline constexpr std::int64_t least_before_mapping = 256 << 10;
/// The same where opening_pause is not over: receiving these has taken as long as mapping.
inline constexpr std::int64_t much_before_mapping = 32 << 20;
/// After opening memory where there is another way, wait this many times as long as it took before opening more.
inline constexpr int opening_pause = 20;
/// How long a probe waits for the control message that precedes an RTS. Messages that only look like an RTS cost the
/// full wait, so senders with earlier false positives get the short timeout.
inline constexpr std::chrono::microseconds control_timeout{10000}, short_control_timeout{100};
/// How long a thread that has received a message may take to check it for an RTS.
inline constexpr std::chrono::milliseconds receive_timeout{100};
inline constexpr std::size_t backoffs_by_tag = 16;

/// Back-off for one neighbour and tag class after messages that could not be fetched: receives with one tag mostly use
/// one kind of memory.
using Refusals = Backoff<1, 64>;

/// The properties by which refusals are counted: receivers may treat such messages differently.
struct Traffic {
  int tag;
  std::int64_t bytes;
};

/// Plain messages (ordinary messages with the length of an RTS) that this process has sent to another one
/// (transport/peer/plain_messages.cpp).
struct PlainSent {
  std::array<std::uint32_t, rts_lengths> messages{};  ///< by length
  std::bitset<rts_lengths> persistent;                ///< lengths of messages that may be sent again at any time
  std::bitset<compact_rts.number> compact;            ///< lengths of compact RTS that are not sent there any more
};

/// The buffer that a descriptor of this process describes (descriptors.hpp).
struct SentDescription {
  const void* buffer = nullptr;
  std::int64_t count = 0;
  std::weak_ptr<const datatype::Layout> layout{};
  int other = -1;  ///< the process that is to map it
};

inline constexpr std::size_t buffer_hashes = 4096;

/// What this process has derived from a description in a descriptor of another one (descriptors.hpp).
struct ReceivedDescription {
  std::uint64_t version = 0;  ///< Descriptor::from_version
  int gpu = -1;               ///< for which it is mapped; negative: nothing is known
  std::weak_ptr<const datatype::Layout> layout{};
  std::int64_t count = 0;
  device::KnownMapping mapping{};
  void* user = nullptr;
  device::KeptPlan plan{};  ///< of the transfer of the latest message, into a buffer of layout `into`
  std::weak_ptr<const datatype::Layout> into{};
};

struct PeerProcess {
  std::unique_ptr<Segment> segment;
  std::vector<ReceivedDescription> received_descriptions;  ///< by descriptor
  bool awaited_in_vain = false;                            ///< the latest wait for its control message has timed out
  bool packs_next = false;      ///< the next message is packed for its GPU: the last one was not, in vain
  bool shares_gpu = false;      ///< it uses a GPU of this process, as its messages have shown
  Backoff<1, 1 << 20> opening;  ///< attempts to open the segment, which may not exist yet, or ever
  static constexpr std::size_t backoffs_of_tag = 3;
  std::unique_ptr<std::array<Refusals, backoffs_of_tag * backoffs_by_tag>> refusals;  ///< made when first needed
  Refusals& refusals_of(const Traffic& traffic);
  std::unique_ptr<PlainSent> plain;  ///< made when first needed
};

/// How many bytes of an allocation of another process were received into pinned host memory.
struct ReceivedOnHost {
  int rank = -1;
  std::uint64_t allocation = 0;  ///< device::Exported::buffer_id
  std::int64_t bytes = 0;
};
inline constexpr std::size_t allocations_counted = 64;

/// A descriptor whose send has ended before the receiver was done.
struct AbandonedDescriptor {
  int index;
  device::Staging packed;  ///< the receiver may still read it
  PublishedRef published;  ///< the receiver may still read it
};

/// Which of the descriptors that have memory are idle.
class IdleDescriptors {
 public:
  IdleDescriptors() {
    for (int index = 0; index < descriptors_at_a_time; ++index) put(index);
  }
  std::size_t count() const { return count_; }
  bool has(int index) const { return idle_.test(static_cast<std::size_t>(index)); }
  /// The first idle one from `index` on; descriptor_count: none.
  int next(int index) const {
    return static_cast<int>(index == 0 ? idle_._Find_first() : idle_._Find_next(static_cast<std::size_t>(index - 1)));
  }
  void take(int index) {
    idle_.reset(static_cast<std::size_t>(index));
    --count_;
  }
  void put(int index) {
    idle_.set(static_cast<std::size_t>(index));
    ++count_;
  }

 private:
  std::bitset<descriptor_count> idle_;
  std::size_t count_ = 0;
};

/// All state of peer transfers in this process.
struct World {
  std::string job;
  int rank = 0, ranks = 0;  ///< of MPI_COMM_WORLD
  ForcedProtocol forced{};
  bool unmaps_freed = true;  ///< GPUDT_UNMAP_FREED
  std::unique_ptr<Segment> own;
  int keyval = MPI_KEYVAL_INVALID;
  MPI_Comm self = MPI_COMM_NULL;  ///< a communicator of only this process, on which nothing is sent

  std::optional<Chunks> chunks;
  std::optional<Remote> remote;  ///< none: all processes are on this node, or MPI has no hidden messages

  Mutex ranks_mutex;  // protects the ranks that are kept with communicators
  Mutex mutex;
  std::vector<PeerProcess> neighbours GUARDED_BY(mutex);  ///< of all ranks
  std::atomic<std::uint64_t> received_rts{0};  ///< that receives and matching probes of this process have got
  /// By rank: when it was last seen to have fetched a message; 0 if never, or if it has been away since.
  std::vector<std::atomic<SteadyClock::rep>> taken;
  std::vector<std::atomic<int>> short_under_way;  ///< by rank: sends to it that may be buffered and have not ended
  std::atomic<int> from_host_under_way{0};        ///< offers of data in host memory (from_host.hpp)
  /// By slot: after an offer to a receive into host memory the next 1, 2, 4 ... 64 messages are not published.
  std::array<Backoff<1, 64>, from_host_slots> from_host GUARDED_BY(mutex);
  IdleDescriptors idle GUARDED_BY(mutex);
  int search_from GUARDED_BY(mutex) = 0;               ///< index at which the search for an idle descriptor begins
  bool can_make_descriptors GUARDED_BY(mutex) = true;  ///< as far as is known
  std::vector<AbandonedDescriptor> abandoned GUARDED_BY(mutex);
  std::size_t reclaim_at GUARDED_BY(mutex) = 0;  ///< size of `abandoned` for the next search
  std::uint64_t offers GUARDED_BY(mutex) = 0;    ///< so far
  Layouts layouts GUARDED_BY(mutex);
  std::vector<SentDescription> sent_descriptions GUARDED_BY(mutex);  ///< by descriptor
  /// By a hash of the buffer and the receiver: the descriptor that was last taken for them, plus 1; 0: none.
  std::array<std::uint16_t, buffer_hashes> descriptor_by_buffer GUARDED_BY(mutex) = {};
  std::map<int, device::Exported> gpus GUARDED_BY(mutex);  ///< by GPU of this process: some exported memory on it
  SteadyClock::time_point next_opening GUARDED_BY(mutex);  ///< when memory may be opened (may_open())
  std::array<ReceivedOnHost, allocations_counted> received_on_host GUARDED_BY(mutex);  ///< by a hash of its numbers
};

extern World* world;  ///< null before peer_start(). Never freed: messages in transit at MPI_Finalize may need it

// --- processes: neighbours.cpp ---------------------------------------------------------------------------------------

/// The delete callback of World::keyval: drops the ranks kept with a communicator.
int drop_ranks(MPI_Comm, int, void* value, void*);
/// The ranks in MPI_COMM_WORLD of the processes to which messages on `comm` go; MPI_UNDEFINED: not in it.
std::vector<int> world_ranks(MPI_Comm comm);
/// Rank in MPI_COMM_WORLD of `peer` in `comm`; negative: none.
int world_rank_of(MPI_Comm comm, int peer);
/// The segment of a process, also this one; null if it has none, or counts as on another node.
Segment* reach(int rank) REQUIRES(world->mutex);
/// Whether `segment` is not null and its process checks for RTS messages.
bool checks(const Segment* segment);
/// Whether this process may send the owner of the segment the RTS of a short message, or a compact one (short_rts.hpp).
bool expects_short(const Segment& receiver);
/// Whether an RTS to process `rank` may be compact. Not to itself: MPI may cut off such an RTS, whose offer later
/// probes would find (docs/mpi-faults.md).
bool sends_compact(int rank) REQUIRES(world->mutex);
/// The image of the segment of a process that shares no memory with this one, if that is known to check for RTS
/// messages.
Segment* reach_remote(int rank);
/// Like reach(), for the sender of a possible RTS; ignores the retry back-off.
Segment* reach_sender(int rank);
/// The segment of a process that has sent what looks like an RTS of this node, also if this process offers nothing
/// itself. Throws MpiError if the segment exists and cannot be opened: the RTS would be taken for data.
Segment* segment_of_rts_sender(int rank);
/// The segments of processes, by rank in MPI_COMM_WORLD; none at all if one cannot be reached, or without peer
/// transfers.
std::vector<Segment*> segments_of(const std::vector<int>& world_ranks);
bool is_process(int rank);
Envelope envelope_of(int tag, MPI_Comm comm);
/// The packed bytes of `count` elements.
std::int64_t bytes_in(int count, MPI_Datatype type);
[[noreturn]] void lost(const std::string& what);

/// Notes that process `rank` has fetched a message.
void note_taken(int rank);
/// Notes that process `rank` is away from MPI, until it fetches a message.
void note_away(int rank);
/// Also true if it has never been seen to fetch one.
bool is_known_away(int rank);
/// When process `rank` was last seen to have fetched a message of this one.
SteadyClock::time_point taken_at(int rank);
/// Counts a message to a process. Whether it is to be sent without an offer, because earlier ones were refused.
bool abstains(int rank, const Traffic& traffic) REQUIRES(world->mutex);
/// What abstains() would return, without counting a message.
bool would_abstain(int rank, const Traffic& traffic) REQUIRES(world->mutex);
/// Whether the neighbour could not fetch the last such message.
bool has_refused(int rank, const Traffic& traffic) REQUIRES(world->mutex);
void note_outcome(int rank, const Traffic& traffic, bool refused);
/// A message that was not packed for being fetched, since the process had wanted fragments, would have been fetched.
void note_unpacked_in_vain(int rank);
/// Notes that the process uses a GPU of this process too.
void note_shared_gpu(int rank, int ordinal);
/// For device::export_memory() of memory that process `rank` is to map.
device::Importers importer(int rank);
/// For device::import_memory() of memory of the process that has the segment.
inline device::Exporter exporter_of(const Segment& segment) {
  return {static_cast<std::uint64_t>(segment->rank), &segment->exports, (*world->own)->number};
}

// --- the protocol of a message to one of them ------------------------------------------------------------------------

/// Whether messages on `comm` may be offered at all.
bool may_offer(MPI_Comm comm);
/// Enters what is known of process `rank` into `route`.
void look_at(int rank, Route& route) REQUIRES(world->mutex);
/// Whether fragments of one more message from host memory would have all the chunks that they can use.
bool has_room_for_host_data();
/// Whether process `rank`, which shares no memory with this one, is known to look for RTS messages; if not, says hello,
/// so that later messages can be offered. May call MPI.
bool is_met(int rank);
/// The protocol of a message to process `rank`, of which `route` tells, if there is a descriptor for it.
Protocol choose_known(const DeviceBuffer& operand, int rank, const Envelope& envelope, Message& message, Route& route)
    REQUIRES(world->mutex);

// --- where data lie: mapping.cpp -------------------------------------------------------------------------------------

/// Whether all of the operand lies in the allocation, as its first byte does.
bool holds(const device::Exported& memory, const DeviceBuffer& operand);

/// Address of the operand's lowest byte.
inline const void* lowest_of(const DeviceBuffer& operand) {
  const datatype::Span span = operand.info->layout().span(operand.count);
  return reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(operand.buffer) +
                                       static_cast<std::uintptr_t>(span.begin));
}
/// Fills `place` with a description of the operand for process `other`, and the data of `descriptor`, in `image`, with
/// a short layout. False if the memory cannot be exported, or not be mapped by that process yet, or if the layout is
/// too long (Layouts::describe()).
bool describe_operand(const DeviceBuffer& operand, int other, Image& image, Descriptor& descriptor, RemoteBuffer& place,
                      PublishedRef& published);
/// Whether the operand's memory can be exported, but not be mapped by process `other` yet (device::export_memory()).
bool waits_for_unmapping(const DeviceBuffer& operand, int other);
/// Reads the layout that the process of segment `other` has described in a descriptor of `image`, unless it is known.
/// False if the layout is damaged or has been replaced.
bool learn_layout(const Segment& other, Image& image, const Descriptor& descriptor, const RemoteBuffer& place,
                  MappedBuffer& operand);
/// Maps the memory that the process has described. False if GPU `ordinal` does not reach it; the trace has the reason.
/// `may_wait` as for device::import_memory().
bool map_memory(int ordinal, const Segment& other, const RemoteBuffer& place, MappedBuffer& operand,
                bool may_wait = true);
/// map_memory() with an existing mapping; false if there is none.
bool map_known(int ordinal, const Segment& other, const RemoteBuffer& place, MappedBuffer& operand);
/// Whether map_asked() may open memory now. That takes milliseconds in which this process does nothing
/// else, so that only a fraction of the time is spent on it.
bool may_open();
/// map_memory() for memory that is not mapped yet, where there is another way.
bool map_asked(int ordinal, const Segment& other, const RemoteBuffer& place, MappedBuffer& operand,
               bool may_wait = true);
/// map_memory() for a message of `bytes` bytes into pinned host memory. False also until mapping pays, and where
/// GPUDT_UNMAP_FREED would let what is mapped stay mapped: for such messages nothing is unmapped.
bool map_for_host(int ordinal, const Segment& other, const RemoteBuffer& place, std::int64_t bytes,
                  MappedBuffer& operand);

// --- plain messages: plain_messages.cpp ------------------------------------------------------------------------------

bool plain_of_length_under_way(const PlainSent& sent, int rank, int index) REQUIRES(world->mutex);
/// Whether plain messages to process `rank` that are as long as the RTS of descriptor `index` may be under way.
inline bool plain_under_way(int rank, int index) REQUIRES(world->mutex) {
  const auto& sent = world->neighbours[static_cast<std::size_t>(rank)].plain;
  return sent && plain_of_length_under_way(*sent, rank, index);
}
/// Whether compact RTS of some descriptors may be sent to process `rank`, if it expects them.
bool some_may_be_compact(int rank) REQUIRES(world->mutex);
/// Whether one of descriptor `index` may.
bool may_be_compact(int rank, int index) REQUIRES(world->mutex);
/// Whether another thread is giving MPI an RTS with this envelope by one of the descriptors `first`, first + step ...:
/// those whose RTS have one length, `step` being rts_lengths or compact_rts.number. Until MPI has it, its order with a
/// message of this thread is not known.
bool is_being_issued(int rank, int first, int step, const Envelope& envelope) REQUIRES(world->mutex);

// --- control messages ------------------------------------------------------------------------------------------------

void receive_control_messages();
/// How long to wait for a control message that process `sender` has sent before a message that has arrived.
std::chrono::microseconds control_timeout_for(int sender);

/// The result of `find()`; if it finds nothing, waits up to `timeout` for control messages that may still be under way.
template <class Find>
auto find_awaiting_control_messages(std::chrono::microseconds timeout, Find find) {
  auto found = find();
  if (found || timeout.count() == 0) return found;
  for (const auto deadline = SteadyClock::now() + timeout; !found && SteadyClock::now() < deadline; found = find()) {
    engine_pause(for_message);
    receive_control_messages();
  }
  if (found) return found;
  engine_settle();  // another thread may have used the engine all the time
  return find();
}

}  // namespace gpudt::interpose::peer
