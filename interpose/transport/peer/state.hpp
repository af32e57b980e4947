// What this process knows of the others that messages are offered to, and of the messages offered: state and
// bookkeeping that both ends of peer transfers share (transport/peer/sender.cpp, transport/peer/receiver.cpp). For the
// files of transport/peer/peer.hpp alone.
#pragma once

#include <mpi.h>

#include <array>
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

#include "base/mutex.hpp"
#include "interpose/support/engine.hpp"
#include "interpose/transport/peer/layout_exchange.hpp"
#include "interpose/transport/peer/peer.hpp"

namespace gpudt::interpose::peer {

using SteadyClock = std::chrono::steady_clock;

/// Between two looks at whether the other process is still there.
inline constexpr std::chrono::milliseconds life_check{500};
/// ... by the clock, which is read at every so many polls: of many messages that are polled in turn, reading it each
/// time takes a fifth of the process's time.
inline constexpr unsigned polls_between_life_checks = 16;
/// Shorter messages between two processes on one GPU have other ways than a kernel, for kernels of two processes take
/// turns of a tenth of a millisecond and more, which the copy engine does not.
inline constexpr std::int64_t least_on_one_gpu = 256 << 10;
/// After opening a receiver's memory, wait this many times as long as it took before opening another.
inline constexpr int opening_pause = 20;
/// How long a probe waits for the control message that precedes an RTS. Messages that only look like an RTS cost the
/// full wait, so senders with earlier false positives get the short timeout.
inline constexpr std::chrono::microseconds control_timeout{10000}, short_control_timeout{100};
/// For a thread that has received a message to look at it.
inline constexpr std::chrono::milliseconds receive_timeout{100};
inline constexpr std::size_t backoffs_by_tag = 16;
/// Up to this many copy calls, the copy engine is faster than a kernel that must wait for a time slice.
inline constexpr std::int64_t few_copies = 4;

/// Back-off state for one neighbour and tag class: receives with one tag mostly use one kind of memory.
struct Backoff {
  int refusals = 0;  ///< in a row
  int abstain = 0;   ///< messages that are not offered before the next that is
};

/// How kernels have begun that this process has launched for itself and another one on its GPU.
struct Turns {
  int late = 0;  ///< in a row
  int left = 0;  ///< to the other ways, before the next that is launched
};

/// What tells messages apart that may be taken in different ways.
struct Traffic {
  int tag;
  std::int64_t bytes;
  const DeviceBuffer* operand;
};

/// Plain messages, as long as RTS messages, that this process has sent to another one
/// (transport/peer/plain_messages.cpp).
struct PlainSent {
  std::array<std::uint32_t, descriptor_count> messages{};  ///< by length
  std::bitset<descriptor_count> persistent;                ///< lengths of messages that may be sent again at any time
};

/// A process of this job, as this one sees it.
struct PeerProcess {
  std::unique_ptr<Segment> segment;
  bool awaited_in_vain = false;             ///< a control message
  bool shares_gpu = false;                  ///< with this process, as its messages have shown
  unsigned attempts = 0, next_attempt = 0;  ///< at opening the segment, which may not be there yet, or never
  static constexpr std::size_t backoffs_of_tag = 4;
  std::unique_ptr<std::array<Backoff, backoffs_of_tag * backoffs_by_tag>> backoffs;  ///< made when first needed
  Backoff& backoff(const Traffic& traffic);
  std::unique_ptr<PlainSent> plain;  ///< likewise
};

/// A descriptor that its offer has left before the receiver was done.
struct AbandonedDescriptor {
  int index;
  device::Staging packed;  ///< the receiver may still read it
  PublishedRef published;  ///< likewise
};

/// All that this process knows of peer transfers.
struct World {
  std::string job;
  int rank = 0, ranks = 0;  ///< in MPI_COMM_WORLD, which has so many
  ForcedProtocol forced{};
  bool threads = false;  ///< several may call MPI at a time
  std::unique_ptr<Segment> own;
  int keyval = MPI_KEYVAL_INVALID;
  MPI_Comm self = MPI_COMM_NULL;  ///< where nothing is ever sent

  std::optional<Chunks> chunks;
  std::optional<Remote> remote;  ///< none: all processes are on this node, or MPI has no hidden messages

  Mutex ranks_mutex;  // of the ranks kept with communicators
  Mutex mutex;
  std::vector<PeerProcess> neighbours GUARDED_BY(mutex);  ///< of all ranks
  std::bitset<descriptor_count> idle GUARDED_BY(mutex);   ///< descriptors
  std::vector<AbandonedDescriptor> abandoned GUARDED_BY(mutex);
  Layouts layouts GUARDED_BY(mutex);
  std::map<int, device::Exported> gpus GUARDED_BY(mutex);  ///< this process's, as its exported memory tells
  std::map<int, Turns> turns GUARDED_BY(mutex);            ///< by GPU
  SteadyClock::time_point next_opening GUARDED_BY(mutex);  ///< of receivers' memory (may_open())
};

extern World* world;  ///< null before peer_start(). Stays for good: messages in transit at MPI_Finalize may need it

// --- processes -------------------------------------------------------------------------------------------------------

/// Forgets the ranks kept with a communicator: for World::keyval.
int drop_ranks(MPI_Comm, int, void* value, void*);
/// Ranks in MPI_COMM_WORLD of the processes that `comm` leads to; MPI_UNDEFINED: none.
std::vector<int> world_ranks(MPI_Comm comm);
/// Rank in MPI_COMM_WORLD of `peer` in `comm`; negative: none.
int world_rank_of(MPI_Comm comm, int peer);
/// The segment of another process, or of this one; null if it has none, or does not check for RTS messages.
Segment* reach(int rank) REQUIRES(world->mutex);
bool checks(const Segment* segment);
/// The same of a process that shares no memory with this one, if it is known to check for RTS messages.
Segment* reach_remote(int rank);
/// Like reach(), for the sender of a possible RTS; ignores the retry back-off.
Segment* reach_sender(int rank);
/// The same of a process that has sent what looks like an RTS that was offered by segment, whatever this process does.
/// Throws MpiError if there is one that cannot be opened: what has come would be taken for data.
Segment* segment_of_rts_sender(int rank);
/// The segments of processes, by rank in MPI_COMM_WORLD; none at all if one cannot be reached, or without peer
/// transfers.
std::vector<Segment*> segments_of(const std::vector<int>& world_ranks);
/// Whether this is a rank in MPI_COMM_WORLD.
bool is_process(int rank);
/// Of a message that this process sends.
Envelope envelope_of(int tag, MPI_Comm comm);
/// Of `count` elements.
std::int64_t bytes_in(int count, MPI_Datatype type);
/// Throws MpiError.
[[noreturn]] void lost(const std::string& what);

/// Offers to a neighbour pause after refusals.
bool abstains(int rank, const Traffic& traffic) REQUIRES(world->mutex);
/// Whether the neighbour could not fetch the last such message.
bool has_refused(int rank, const Traffic& traffic) REQUIRES(world->mutex);
void note_outcome(int rank, const Traffic& traffic, bool refused);
/// Whether memory that another process has exported is on the GPU of `operand`. False if that cannot be told.
bool on_one_gpu(const device::Exported& memory, const DeviceBuffer& operand);
/// From now on it is known that the neighbour uses one of this process's GPUs, too.
void note_shared_gpu(int rank, int ordinal);
/// Of a message that goes to `count` elements of `layout`, to the process that launches the kernels on a shared GPU.
enum class Turn {
  ours,     ///< a kernel had better move it
  not_now,  ///< kernels begin late: it goes another way, the next one may not
  copies,   ///< likewise, and copies are quicker as long as that is so
};
Turn turn_for(int ordinal, std::int64_t bytes, const datatype::Layout& layout, std::int64_t count);
/// Such a kernel has ended.
void note_turn(int ordinal);

/// Where the operand lies, for process `other`, of which `descriptor` tells. False if the memory cannot be exported or
/// the layout is too long (Layouts::describe()).
bool describe_operand(const DeviceBuffer& operand, int other, Descriptor& descriptor, RemoteBuffer& place,
                      PublishedRef& published);
/// The layout, unless it is known already, of what the process of segment `other` has described. False if it is damaged
/// or has been replaced.
bool learn_layout(const Segment& other, const Descriptor& descriptor, const RemoteBuffer& place, MappedBuffer& operand);
/// The memory. False if GPU `ordinal` does not reach it, for a reason that the trace tells.
bool map_memory(int ordinal, const Segment& other, const RemoteBuffer& place, MappedBuffer& operand);
/// The same where it takes no time; false if that is not so.
bool map_known(int ordinal, const Segment& other, const RemoteBuffer& place, MappedBuffer& operand);
/// Whether memory that a receiver has described may be opened now, by map_asked(): that takes milliseconds in which
/// this process does nothing else, so that only a part of the time is spent on it.
bool may_open();
/// The same as map_memory(), of such memory, which is not known yet.
bool map_asked(int ordinal, const Segment& other, const RemoteBuffer& place, MappedBuffer& operand);

// --- descriptors -----------------------------------------------------------------------------------------------------

/// Makes those idle that are done.
void reclaim_descriptors() REQUIRES(world->mutex);
/// An idle descriptor for a message to process `rank`, or -1: there is none, or all have the length of a plain message
/// under way.
int take_descriptor(int rank, const Envelope& envelope) REQUIRES(world->mutex);
/// Of an offer that has ended; `done`: the receiver needs nothing more.
void put_descriptor(int index, bool done, device::Staging packed, PublishedRef published);

/// Another process's offer.
struct Offered {
  Descriptor* descriptor = nullptr;
  int remote = -1;  ///< the sender's rank, if this is but an image of the descriptor
  explicit operator bool() const { return descriptor != nullptr; }
};

/// The open offer of process `sender` whose RTS is `index`, with this envelope, and has not been received.
Offered open_offer(int sender, const Envelope& envelope, int index);
/// Of any process. The envelope tells which: of all communicators that this process is in one has the context.
Offered open_offer(const Envelope& envelope, int index);
/// Whether process `sender` may have sent such an RTS, be it that it has given up the message since.
bool may_have_issued(int sender, const Envelope& envelope, int index);

// --- receives of several threads -------------------------------------------------------------------------------------

/// The number of the latest receive that a thread has begun; 0: there are no several threads.
std::uint64_t receives_so_far();
/// Whether another thread is in a receive, up to that number, that a message with this envelope may have come to.
bool may_have_come(const Envelope& envelope, std::uint64_t number);
/// Those receives are not waited for again.
void waited_in_vain(const Envelope& envelope, std::uint64_t number);

/// What `find()`, which has found an offer with this envelope, finds when all receives that may have its RTS have been
/// looked at: a message behind it may be as long.
template <class Find>
Offered find_unreceived(const Envelope& envelope, Find find) {
  // If another thread has a matching receive posted, the message probably went to it, and that thread will record so
  // soon; wait for it up to receive_timeout. If the receive turns out to be for something else, the wait was in vain
  // and is not repeated for it.
  const std::uint64_t receives = receives_so_far();
  const auto deadline = SteadyClock::now() + receive_timeout;
  while (find() && may_have_come(envelope, receives)) {
    if (SteadyClock::now() >= deadline) {
      waited_in_vain(envelope, receives);
      break;
    }
    std::this_thread::yield();
  }
  engine_settle();
  return find();
}

// --- plain messages --------------------------------------------------------------------------------------------------

/// Whether plain messages to process `rank` that are as long as RTS `index` may be under way.
bool plain_under_way(int rank, int index) REQUIRES(world->mutex);

// --- control messages ------------------------------------------------------------------------------------------------

/// Lets MPI make progress.
void progress_mpi();
/// Takes those that have come.
void receive_control_messages();
/// For control messages of a process that are sent before what has come of it.
std::chrono::microseconds control_timeout_for(int sender);

/// What `find()` finds, if need be when the control messages have come that may still be on their way.
template <class Find>
auto find_awaiting_control_messages(std::chrono::microseconds timeout, Find find) {
  auto found = find();
  if (found || timeout.count() == 0) return found;
  for (const auto deadline = SteadyClock::now() + timeout; !found && SteadyClock::now() < deadline; found = find()) {
    progress_mpi();
    receive_control_messages();
  }
  if (found) return found;
  engine_settle();  // another thread may have kept the engine all the while
  return find();
}

}  // namespace gpudt::interpose::peer
