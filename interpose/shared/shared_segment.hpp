// The memory that the processes of one node share for peer transfers (transport/peer/peer.hpp): each process has a
// segment of its own in the job's file (shared/job_file.hpp), which the others map when they first need it.
// Nothing here is collective, so that processes without the library may be part of the job.
//
// A segment holds the descriptors of the messages that its process has offered. The offering process owns a descriptor
// and fills it while it is `free` or `done`; from `offered` on, `state` determines which of the two processes may use
// it (shared/rendezvous_state.hpp).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/exception.hpp"
#include "device/device.hpp"
#include "interpose/shared/board.hpp"
#include "interpose/shared/job_file.hpp"
#include "interpose/shared/rendezvous_state.hpp"
#include "interpose/shared/window_lock.hpp"

namespace gpudt::interpose::peer {

/// The version of the formats of segments, control messages and fragments: a job may have processes of several builds.
inline constexpr std::uint32_t peer_version = 30;
/// Number of messages that a process can have offered at a time; further ones are not offered.
inline constexpr int descriptor_count = 4096;
/// Number of descriptors that have memory from the start, and that an image has. The others get memory that many at a
/// time.
inline constexpr int descriptors_at_a_time = 128;
/// The lengths that RTS messages of one kind may have: `shortest` + 2 * i bytes, where i is the descriptor's index
/// modulo `number`.
struct RtsLengths {
  std::int64_t shortest;
  int number;

  constexpr std::int64_t of(int index) const { return shortest + 2 * std::int64_t{index % number}; }
  constexpr std::int64_t longest() const { return of(number - 1); }
  /// Which of the lengths `bytes` is; -1: none.
  constexpr int find(std::int64_t bytes) const {
    return bytes < shortest || bytes > longest() || (bytes - shortest) % 2 != 0
               ? -1
               : static_cast<int>((bytes - shortest) / 2);
  }
};
/// Of an ordinary RTS. A probe, which sees only envelope and length, finds the oldest offer with both, and reports the
/// true size. (RTS of short messages: transport/peer/short_rts.hpp.) Ordinary messages may have the same length
/// ("plain" messages): while one is under way to a process, no RTS of that length is sent there
/// (transport/peer/plain_messages.cpp).
inline constexpr int rts_lengths = 128;
inline constexpr RtsLengths ordinary_rts{515, rts_lengths};
inline constexpr std::int64_t shortest_rts = ordinary_rts.shortest, longest_rts = ordinary_rts.longest();
inline constexpr std::int64_t rts_bytes(int index) {
  return ordinary_rts.of(index);
}
inline constexpr int rts_index(std::int64_t bytes) {
  return ordinary_rts.find(bytes);
}
/// Of a compact RTS (transport/peer/short_rts.hpp). Each belongs to as many of the ordinary ones.
inline constexpr RtsLengths compact_rts{33, 32};
static_assert(rts_lengths % compact_rts.number == 0);
/// Whether an ordinary message of `bytes` bytes is as long as an RTS may be.
inline constexpr bool is_plain(std::int64_t bytes) {
  return ordinary_rts.find(bytes) >= 0 || compact_rts.find(bytes) >= 0;
}
/// The shortest message with an ordinary RTS: every receive that is long enough for the message has room for the RTS.
/// Shorter ones have the RTS of short messages, or a compact one (transport/peer/short_rts.hpp).
inline constexpr std::int64_t least_offered = longest_rts + 1;

/// The RTS as MPI sends it; padded to rts_bytes(index).
struct RendezvousRequest {
  std::uint64_t mark;      ///< rts_mark
  std::uint64_t nonce[2];  ///< of the sender's segment
  std::int32_t sender;     ///< rank in MPI_COMM_WORLD
  std::int32_t index;
  std::uint32_t generation;
  std::uint32_t flags;          ///< rts_remote or 0
  std::int64_t bytes;           ///< of the message
  std::int64_t fragment_bytes;  ///< rts_remote: Descriptor::fragment_bytes
};
inline constexpr std::uint64_t rts_mark = 0x9e4b1f27d3a86c55;
inline constexpr std::uint32_t rts_remote =
    1;  ///< the offer has been made by control message (transport/internode/control_messages.hpp)

/// The data by which MPI matches a message at its receiver; the same on both sides.
struct Envelope {
  std::uint32_t context;  ///< of the communicator (context_of())
  std::int32_t source;    ///< the sender's rank in the communicator, as the receiver's status has it
  std::int32_t tag;
  bool operator==(const Envelope&) const = default;
};

/// Whether the RTS has been given to MPI.
enum class Issue : std::uint32_t {
  not_yet,
  being_issued,  ///< MPI may have it
  issued,        ///< MPI has it, before all messages that are sent from now on
};

/// Values of Descriptor::found.
inline constexpr std::uint32_t found_on_one_gpu = 1;  ///< both processes use one GPU
inline constexpr std::uint32_t found_on_gpu = 2;   ///< the receiver would have fetched what the sender has not packed
inline constexpr std::uint32_t found_on_host = 3;  ///< it receives into host memory, or several memories

/// Values of Descriptor::unmappable.
inline constexpr std::uint32_t unmappable_gpu = 1;
inline constexpr std::uint32_t unmappable_host = 2;

/// Bytes that belong to each descriptor, for a layout or a short message. They lie apart, so that descriptors of many
/// messages share pages.
inline constexpr std::size_t descriptor_data = 6784;
/// A message of at most this length is copied to the segment if it is not fetched for a while, so that its send can
/// end: programs expect this of short messages.
inline constexpr std::int64_t longest_buffered = 4096;
static_assert(longest_buffered <= std::int64_t(descriptor_data));

inline constexpr int parts_in_flight = 4;
struct Part {
  std::int32_t chunk;  ///< of the segment; negative: in the descriptor's data
  std::int64_t bytes;
};

/// A buffer in the memory of the process that has written this.
struct RemoteBuffer {
  std::int64_t count;       ///< elements of the layout
  std::uint64_t address;    ///< the buffer, or for contiguous data their first byte, in that process's address space
  LayoutName layout;        ///< a short one is in the descriptor's data
  device::Exported memory;  ///< the memory with the data
};

struct alignas(64) Descriptor {
  RendezvousState state;
  std::uint32_t generation;
  std::int32_t destination;  ///< rank in MPI_COMM_WORLD
  std::atomic<Issue> issue;
  std::uint64_t number;  ///< counts the messages that the process has offered
  Envelope envelope;
  std::atomic<std::uint16_t> matched;  ///< the receiver has the RTS, or MPI_Mprobe has matched it
  std::uint16_t compact;               ///< 1: the RTS is compact
  std::int64_t bytes;                  ///< of the message
  std::uint64_t from_version;          ///< incremented whenever `from` changes (peer/descriptors.hpp)
  /// For a message to another node: bytes of each fragment except the last, which may be shorter.
  std::int64_t fragment_bytes;

  // The members above fill a cache line, and some of them change with each message. Of those below only `rts` does if a
  // message is repeated.
  RemoteBuffer from;  ///< the sender's buffer, from state `offered` on
  /// Number of bytes from the start that the receiver can fetch; negative if the sender has given up.
  std::atomic<std::int64_t> ready;
  RemoteBuffer to;                   ///< the receiver's buffer, from state `asked` on
  std::atomic<std::uint32_t> found;  ///< what the receiver has found out: found_...
  /// Not 0: other processes cannot map the memory of the data. unmappable_gpu: they are being packed for the receiver,
  /// unless it asks the sender to write them; unmappable_host: they are in host memory.
  std::atomic<std::uint32_t> unmappable;
  /// Number of bytes that the receiver wants, if it shares no memory or has asked; negative: not known yet.
  std::atomic<std::int64_t> wanted_bytes;
  std::uint64_t data_layout;  ///< the number of the layout in the descriptor's data; 0: they are something else
  std::int32_t data_owner;    ///< the process that the number belongs to: either of the two

  // In state fragments_wanted: the number of parts that the sender has put into the segment, and that the receiver has
  // taken from it.
  alignas(64) std::atomic<std::uint64_t> produced;
  Part parts[parts_in_flight];  ///< part i, from 0 on, in i % parts_in_flight
  alignas(64) std::atomic<std::uint64_t> consumed;

  alignas(64) std::byte rts[longest_rts + 1];
};
struct alignas(64) DescriptorData {
  std::byte bytes[descriptor_data + 64];
};
static_assert(offsetof(Descriptor, from) == 64);
// An odd number of cache lines, so that the same members of all descriptors do not share a few sets of the caches.
static_assert(sizeof(Descriptor) / 64 % 2 == 1 && sizeof(DescriptorData) / 64 % 2 == 1);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

/// Slots for long layouts that are used again and again: each for up to 780,000 runs of an index list, or twice as many
/// of one length. They reserve address space; layout_memory limits the memory that they use.
inline constexpr int layout_slots = 16;
inline constexpr std::int64_t layout_slot_size = 12 << 20;
inline constexpr std::int64_t layout_memory = 32 << 20;

inline constexpr int chunk_count = 8;
inline constexpr std::int64_t chunk_size = 512 << 10;

/// The bit by which a process publishes that it has numbered a context (number_context()). Contexts may share a bit.
inline constexpr std::size_t context_words = 1024;
struct ContextBit {
  explicit ContextBit(std::uint32_t context) : word(context / 64 % context_words), mask(1ULL << context % 64) {}
  std::size_t word;
  std::uint64_t mask;
};

/// Where a process publishes the envelopes of long messages that came from host memory into its GPUs' memory
/// (transport/peer/from_host.hpp). Several envelopes may share a slot, where the last one stays.
inline constexpr std::size_t from_host_slots = 256;  // as many as a byte has values
struct FromHostSlot {
  explicit FromHostSlot(const Envelope& envelope) {
    std::uint64_t hash = (std::uint64_t{envelope.context} << 32) ^ static_cast<std::uint32_t>(envelope.tag);
    hash = (hash ^ (hash >> 29) ^ (static_cast<std::uint64_t>(envelope.source) << 17)) * 0x9e3779b97f4a7c15;
    index = hash >> 56;  // the upper bits depend on all
    mark = static_cast<std::uint32_t>(hash >> 24) | 1;
  }
  std::size_t index;
  std::uint32_t mark;  ///< in the slot if it has this envelope
};

/// How many plain messages of each length of an RTS a process has received from the owner of the segment.
struct PlainReceived {
  std::atomic<std::int32_t> receiver;  ///< its rank in MPI_COMM_WORLD, plus 1; 0: unused
  std::atomic<std::uint32_t> messages[rts_lengths];
};
/// Plain messages to more processes are not counted, so that no RTS of their lengths is sent there any more.
inline constexpr int plain_receivers = 128;

struct alignas(4096) Image {
  std::uint64_t magic;
  std::uint32_t version;
  std::int32_t rank;    ///< in MPI_COMM_WORLD
  std::int32_t number;  ///< of the segment among those of the job on this node
  std::uint64_t nonce[2];
  std::atomic<std::uint32_t> checking;         ///< 1: the process checks all receives for ordinary RTS messages
  std::atomic<std::uint32_t> expects_short;    ///< 1: it also checks for those of short messages, and compact ones
  std::atomic<std::uint32_t> offered;          ///< 1: another process may have sent it an RTS
  std::atomic<std::int32_t> descriptors_made;  ///< descriptors with this index and higher ones have no memory
  std::atomic<std::uint64_t> contexts[context_words];
  std::atomic<std::uint32_t> from_host[from_host_slots];  ///< FromHostSlot::mark; 0: none
  std::atomic<std::uint32_t> records_used;                ///< records with this index and higher ones are unused
  std::atomic<std::uint32_t> records_ended;  ///< 1: no record is free; the process declines calls that have none
  std::atomic<std::uint64_t> layout_numbers[layout_slots];  ///< of the layouts in `layouts`; 0: none, or incomplete
  alignas(64) PlainReceived plain_received[plain_receivers];
  alignas(4096) Descriptor descriptors[descriptors_at_a_time];
  alignas(4096) DescriptorData data[descriptors_at_a_time];
  alignas(4096) WindowLockSet window_locks[window_lock_count];
  alignas(4096) device::ExportTable exports;  ///< what the process has exported
  // The members below have memory once the owner has made them; the first records always have.
  alignas(4096) CallRecord records[record_count];
  Board boards[board_count];  ///< made one by one
  alignas(4096) std::byte chunks[chunk_count][chunk_size];
  alignas(4096) std::byte layouts[layout_slots][layout_slot_size];  ///< made one by one
  /// The descriptors from index descriptors_at_a_time on.
  alignas(4096) Descriptor further_descriptors[descriptor_count - descriptors_at_a_time];
  alignas(4096) DescriptorData further_data[descriptor_count - descriptors_at_a_time];

  /// The descriptor must have memory.
  Descriptor& descriptor(int index) {
    return index < descriptors_at_a_time ? descriptors[index] : further_descriptors[index - descriptors_at_a_time];
  }
  int index_of(const Descriptor& descriptor) const {
    const bool further = &descriptor >= further_descriptors;
    return static_cast<int>(&descriptor - (further ? further_descriptors : descriptors)) +
           (further ? descriptors_at_a_time : 0);
  }
  /// The data of one of these descriptors.
  std::span<std::byte, descriptor_data> data_of(const Descriptor& descriptor) {
    const int index = index_of(descriptor);
    DescriptorData& its = index < descriptors_at_a_time ? data[index] : further_data[index - descriptors_at_a_time];
    return std::span(its.bytes).first<descriptor_data>();
  }
  /// The data, to be filled with something else than a layout.
  std::byte* data_for_message(Descriptor& descriptor) {
    descriptor.data_layout = 0;
    return data_of(descriptor).data();
  }
};

/// Thrown if /dev/shm has no room for a segment.
class SharedMemoryFull : public Exception {
 public:
  using Exception::Exception;
};

/// A segment in this process's address space.
class Segment {
 public:
  /// Makes this process's own segment; throws Exception (SharedMemoryFull) if that is impossible. The segment stays
  /// until the process ends: messages may still be read from it while this process is in MPI_Finalize.
  static std::unique_ptr<Segment> create(const std::string& job, int rank);
  /// Opens the segment of another process, never this one's own. Null if there is none on this node, or if this process
  /// has not announced itself.
  static std::unique_ptr<Segment> open(const std::string& job, int rank);
  /// Whether another process has a segment on this node, even if it cannot be opened.
  static bool is_there(const std::string& job, int rank);
  /// Makes an image, in private memory, of the segment of a process on another node, with `checking` 0. Null if there
  /// is no memory.
  static std::unique_ptr<Segment> image(int rank, const std::uint64_t (&nonce)[2]);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  Image* operator->() const { return image_; }
  Image& operator*() const { return *image_; }
  /// To be called by the owner: these give memory to the chunks, records_at_a_time records, a board, or
  /// descriptors_at_a_time further descriptors. False if there is no memory.
  bool make_chunks();
  bool make_descriptors();
  bool make_records(std::uint32_t first);
  bool make_board(int index);
  /// Gives memory to the layouts of a slot of a board, or more memory.
  bool make_board_layouts(int index, std::size_t slot, std::size_t bytes);
  /// Gives memory to a layout slot. False, as for boards, if this would take more than half of what the node has left.
  bool make_layout_slot(int slot, std::size_t bytes);
  /// Returns the memory of a slot, which no process may be reading, to the system.
  void drop_layout_slot(int slot);
  /// Whether the process that made the segment has ended. Not for one's own segment.
  bool orphaned() const;

 private:
  Segment(const SegmentPlace& place, Image* image, std::size_t mapped)
      : place_(place), image_(image), mapped_(mapped) {}
  off_t place_of(const void* address) const;
  bool has_twice(std::size_t bytes) const;
  bool make(const void* address, std::size_t bytes);

  SegmentPlace place_;  ///< an image has no file
  Image* image_;
  std::size_t mapped_;  ///< bytes
};

}  // namespace gpudt::interpose::peer
