// The descriptors in which this process offers messages, and those of other processes in which it finds offers.
//
// Programs send the same buffers again and again, so that descriptions of buffers are kept from message to message. The
// sender remembers which buffer each of its descriptors describes. For the same buffer it neither exports the memory
// nor writes the description again: the cache lines of the description stay in both processors' caches. The receiver
// remembers the layout and the mapping that it has derived from a description, while they exist, and the plan of the
// transfer, and need not parse, map or plan anything again.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "base/one_thread.hpp"
#include "interpose/transport/peer/state.hpp"

namespace gpudt::interpose::peer {

// --- descriptors -----------------------------------------------------------------------------------------------------

/// Makes descriptors idle whose receivers are done.
void reclaim_descriptors() REQUIRES(world->mutex);
/// Number of messages that can still be offered.
std::size_t free_descriptors() REQUIRES(world->mutex);
/// Takes an idle descriptor for a message to process `rank`; -1 if there is none, or if each one's RTS is as long as a
/// plain message under way, or as an RTS that another thread is giving to MPI. `remote`: the process shares no memory
/// with this one. `compact`: only one whose compact RTS may be sent there. `preferred`: the one to take if it is idle
/// and usable; negative: none.
int take_descriptor(int rank, const Envelope& envelope, bool remote, bool compact, int preferred)
    REQUIRES(world->mutex);
/// Returns the descriptor of a send that has ended. `done`: the receiver needs nothing more.
void put_descriptor(int index, bool done, device::Staging packed, PublishedRef published);

struct Offered {
  Descriptor* descriptor = nullptr;
  int index = 0;    ///< of the descriptor
  int remote = -1;  ///< the sender's rank if `descriptor` is an image; negative if not
  explicit operator bool() const { return descriptor != nullptr; }
};

/// The oldest open offer of process `sender` with this envelope whose RTS has not been received and has `rts_length`
/// bytes, as an ordinary RTS or a compact one has.
Offered open_offer(int sender, const Envelope& envelope, std::int64_t rts_length);
/// open_offer() for any sender, which the context and the source in the envelope determine.
Offered open_offer(const Envelope& envelope, std::int64_t rts_length);
/// The oldest open offer of process `sender` of this node with this envelope whose RTS has not been received. Unlike
/// open_offer() it also finds offers of short messages.
Offered oldest_offer(int sender, const Envelope& envelope);
/// The oldest open offer of the owner of `segment`, which may be null, with this envelope whose RTS has not been
/// received and has `rts_length` bytes, whatever its kind.
Offered next_offer(Segment* segment, const Envelope& envelope, std::int64_t rts_length);
/// Whether an open offer of process `sender` with this envelope has an unreceived RTS of `bytes` bytes.
bool is_rts_of_open_offer(int sender, const Envelope& envelope, std::int64_t bytes);
/// Whether process `sender` may have sent an ordinary RTS of this envelope and length, even if it has withdrawn it
/// since.
bool may_have_issued(int sender, const Envelope& envelope, int rts_index);

/// Notes, and counts, that a receive or a matching probe of this process has got the RTS.
inline void mark_matched(Descriptor& descriptor) {
  add_to(world->received_rts, 1);  // before a probe can miss the offer (peer_received_rts())
  descriptor.matched.store(1);
}

// --- receives of several threads -------------------------------------------------------------------------------------

/// The number of the latest receive that a thread has begun; 0 if only one thread at a time calls MPI.
std::uint64_t receives_so_far();
/// Whether another thread is in a receive, with at most this number, that may have got a message with this envelope.
bool may_have_come(const Envelope& envelope, std::uint64_t number);
/// Notes that find_unreceived() is not to wait for such receives again.
void waited_in_vain(const Envelope& envelope, std::uint64_t number);

/// `find()` has found an offer with this envelope. Returns its result after all receives that may have got the RTS have
/// been checked: the message at hand may be a later one of the same length.
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

// --- what they describe ----------------------------------------------------------------------------------------------

/// Stores a value unless `place` has it: a cache line that is not written stays in the other process's caches, too.
template <class Value>
void store_if_different(std::atomic<Value>& place, Value value) {
  if (place.load(std::memory_order_relaxed) != value) place.store(value, std::memory_order_relaxed);
}

// --- sender: descriptors of this process, for messages to process `other` --------------------------------------------

/// The descriptor to try first: the one last noted for the hash of this buffer's address and `other`. It may describe
/// another buffer, or be in use. Negative: none.
int descriptor_for(const DeviceBuffer& operand, int other) REQUIRES(world->mutex);
/// Notes for descriptor_for() which descriptor was taken.
void note_index(int index, const DeviceBuffer& operand, int other) REQUIRES(world->mutex);
/// Whether descriptor `index` still describes this operand for process `other`: its layout is there, and the memory is
/// the same allocation. Then nothing need be written. May ask the CUDA driver.
bool is_described(int index, const DeviceBuffer& operand, int other) EXCLUDES(world->mutex);
/// Writes `from` into the descriptor and increments its version, if it differs from what is there. Until note_source()
/// is called, is_described() is false.
void update_description(int index, const RemoteBuffer& from) EXCLUDES(world->mutex);
/// Remembers that the descriptor describes this operand. Not for long layouts, memory in pieces, and memory of which
/// receivers are not told when it is freed: is_described() could not check these later.
void note_source(int index, const DeviceBuffer& operand, int other) EXCLUDES(world->mutex);

// --- receiver: descriptors of process `rank` -------------------------------------------------------------------------

/// What remember() was given for this version of the description and GPU `gpu`. The result has no mapping if there is
/// nothing, or if the layout or the mapping is gone. If the latest message was received into a buffer of layout `into`,
/// sets `plan` to that of its transfer, else leaves it unchanged. May wait for a mapping that is being closed.
MappedBuffer recall(int rank, int index, const Descriptor& descriptor, int gpu, const datatype::LayoutRef& into,
                    device::KeptPlan& plan) EXCLUDES(world->mutex);
/// Remembers what was derived from the description, in place of all that was remembered of this descriptor.
void remember(int rank, int index, const Descriptor& descriptor, int gpu, const MappedBuffer& derived)
    EXCLUDES(world->mutex);
/// Adds the plan of the transfer into a buffer of layout `into`.
void remember_plan(int rank, int index, const Descriptor& descriptor, const datatype::LayoutRef& into,
                   const device::KeptPlan& plan) EXCLUDES(world->mutex);

}  // namespace gpudt::interpose::peer
