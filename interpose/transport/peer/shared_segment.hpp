// The memory that the processes of one node share for peer transfers (transport/peer/peer.hpp): each process has a
// segment of its own in the job's file (transport/peer/job_file.hpp), which the others map when they first need it.
// Nothing here is collective, so that processes without the library may be part of the job.
//
// A segment holds the descriptors of the messages that its process has offered. The offering process owns a descriptor
// and fills it while it is `free`; from `offered` on, `state` says whose turn it is
// (transport/peer/rendezvous_state.hpp).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/exception.hpp"
#include "device/device.hpp"
#include "interpose/transport/peer/board.hpp"
#include "interpose/transport/peer/job_file.hpp"
#include "interpose/transport/peer/rendezvous_state.hpp"
#include "interpose/transport/peer/window_lock.hpp"

namespace gpudt::interpose::peer {

/// Of segments, of control messages, and of how messages are divided: processes of other builds may be in the job.
inline constexpr std::uint32_t peer_version = 16;
/// Messages that a process can have offered at a time; what goes beyond takes other ways.
inline constexpr int descriptor_count = 128;
/// The length of an ordinary RTS (of other ones: transport/peer/short_rts.hpp) encodes its descriptor index (515 + 2 *
/// index), so that a probe, which sees only envelope and length, can report the true size. Other messages may be as
/// long ("plain" ones): as long as any is under way to a process, no RTS of that length is sent there
/// (transport/peer/plain_messages.cpp).
inline constexpr std::int64_t shortest_rts = 515;
inline constexpr std::int64_t rts_bytes(int index) {
  return shortest_rts + 2 * std::int64_t{index};
}
inline constexpr std::int64_t longest_rts = rts_bytes(descriptor_count - 1);
/// The descriptor that a message of `bytes` bytes stands for if it is an RTS, or -1.
inline constexpr int rts_index(std::int64_t bytes) {
  return bytes < shortest_rts || bytes > longest_rts || bytes % 2 == 0 ? -1
                                                                       : static_cast<int>((bytes - shortest_rts) / 2);
}
/// The least message with an ordinary RTS: every receive that may get it has room for the RTS. Of less, only short
/// messages (transport/peer/short_rts.hpp) are offered.
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

/// What MPI matches a message by, of one receiver; the same on both sides.
struct Envelope {
  std::uint32_t context;  ///< of the communicator (context_of())
  std::int32_t source;    ///< the sender's rank in the communicator, as the receiver's status has it
  std::int32_t tag;
  bool operator==(const Envelope&) const = default;
};

/// Whether a receiver can have the RTS.
enum class Issue : std::uint32_t {
  not_yet,
  being_issued,  ///< MPI may have it
  issued,        ///< MPI has it, ahead of all that it is given from now on
};

inline constexpr std::uint32_t found_on_one_gpu = 1;  ///< that both processes use one GPU
inline constexpr std::uint32_t found_not_now =
    2;  ///< that kernels currently have a start delay; a later message may succeed

/// For a layout, or a short message.
inline constexpr std::size_t descriptor_data = 6784;
/// Messages that are no longer move to the segment if they are not fetched for a while, so that their sends can end:
/// programs expect as much of short messages.
inline constexpr std::int64_t longest_buffered = 4096;
static_assert(longest_buffered <= std::int64_t(descriptor_data));

/// Of a message that goes through the segment.
inline constexpr int parts_in_flight = 4;
struct Part {
  std::int32_t chunk;  ///< of the segment; negative: in the descriptor's `data`
  std::int64_t bytes;
};

/// Where data lie, or are to lie, in memory of the process that says so.
struct RemoteBuffer {
  std::int64_t count;         ///< elements of the layout
  std::uint64_t address;      ///< the buffer, or for contiguous data their first byte, in that process's address space
  std::int64_t layout_bytes;  ///< of the layout; 0: contiguous
  std::uint64_t layout_number;  ///< that process's: a layout that the other one knows need not be read
  std::int32_t layout_slot;     ///< of that process's segment, with the layout; negative: `data` holds it
  device::Exported memory;      ///< that holds the data
};

struct alignas(64) Descriptor {
  RendezvousState state;
  std::uint32_t generation;
  std::int32_t destination;  ///< rank in MPI_COMM_WORLD
  Envelope envelope;
  std::atomic<Issue> issue;
  std::atomic<std::uint32_t> matched;  ///< the receiver has the RTS, or MPI_Mprobe has matched it
  std::int64_t bytes;                  ///< of the message
  /// Of a message to another node: bytes of each fragment but the last, which may be shorter.
  std::int64_t fragment_bytes;

  RemoteBuffer from;  ///< offered
  /// Of packed data so many bytes are there; negative: no more will come.
  std::atomic<std::int64_t> ready;
  RemoteBuffer to;                   ///< asked
  std::atomic<std::uint32_t> found;  ///< by the receiver: found_...
  /// Bytes of it, by a receiver that shares no memory, or has asked; negative: not yet.
  std::atomic<std::int64_t> wanted_bytes;

  // fragments_wanted: parts of the message that the sender has put into the segment, and that the receiver has taken.
  alignas(64) std::atomic<std::uint64_t> produced;
  Part parts[parts_in_flight];  ///< part i, from 0 on, in i % parts_in_flight
  alignas(64) std::atomic<std::uint64_t> consumed;

  alignas(64) std::byte rts[longest_rts + 1];
  std::uint64_t data_layout;  ///< the number of the layout in `data`; 0: there is something else
  std::int32_t data_owner;    ///< whose number
  alignas(16) std::byte data[descriptor_data];

  /// `data`, to be filled with something else than a layout.
  std::byte* data_for_message() {
    data_layout = 0;
    return data;
  }
};
static_assert(sizeof(Descriptor) <= 8192);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

/// For long layouts that are sent again and again: at most 780,000 runs of an index list, or twice as many equal ones.
/// This is reserved address space; the memory actually used is limited by layout_memory.
inline constexpr int layout_slots = 16;
inline constexpr std::int64_t layout_slot_size = 12 << 20;
inline constexpr std::int64_t layout_memory = 32 << 20;

inline constexpr int chunk_count = 8;
inline constexpr std::int64_t chunk_size = 512 << 10;

/// Where a process tells that it has numbered a context (number_context()); several contexts may have the same place.
inline constexpr std::size_t context_words = 1024;
struct ContextBit {
  explicit ContextBit(std::uint32_t context) : word(context / 64 % context_words), mask(1ULL << context % 64) {}
  std::size_t word;
  std::uint64_t mask;
};

/// How many plain messages of each length of an RTS a process has received from the owner of the segment.
struct PlainReceived {
  std::atomic<std::int32_t> receiver;  ///< its rank in MPI_COMM_WORLD, plus 1; 0: this is nobody's yet
  std::atomic<std::uint32_t> messages[descriptor_count];
};
/// What more processes receive is not counted, so that those lengths stay unused.
inline constexpr int plain_receivers = 128;

struct alignas(4096) Image {
  std::uint64_t magic;
  std::uint32_t version;
  std::int32_t rank;  ///< in MPI_COMM_WORLD
  std::uint64_t nonce[2];
  std::atomic<std::uint32_t> checking;       ///< the process looks for ordinary RTS messages in all that it receives
  std::atomic<std::uint32_t> expects_short;  ///< it looks for those of short messages, too
  std::atomic<std::uint32_t> offered;        ///< it may have been sent an RTS
  std::atomic<std::uint64_t> contexts[context_words];
  std::atomic<std::uint32_t> records_used;   ///< the records in use are among the first so many
  std::atomic<std::uint32_t> records_ended;  ///< 1: there can be no more; the process declines calls without one
  std::atomic<std::uint64_t> layout_numbers[layout_slots];  ///< of what is in `layouts`; 0: nothing, or in part
  alignas(64) PlainReceived plain_received[plain_receivers];
  alignas(4096) Descriptor descriptors[descriptor_count];
  alignas(4096) WindowLockSet window_locks[window_lock_count];
  alignas(4096) CallRecord records[record_count];  ///< there once the owner has made them; the first ones always are
  Board boards[board_count];                       ///< there once the owner has made them, each by itself
  alignas(4096) std::byte chunks[chunk_count][chunk_size];          ///< there once the owner has made them
  alignas(4096) std::byte layouts[layout_slots][layout_slot_size];  ///< likewise, each by itself
};

/// /dev/shm has not room enough for a segment.
class SharedMemoryFull : public Exception {
 public:
  using Exception::Exception;
};

/// A segment in this process's address space.
class Segment {
 public:
  /// This process's own, of rank `rank`; throws Exception if there cannot be one (SharedMemoryFull). It goes when the
  /// process ends, not before: messages may still be read from it while this process is in MPI_Finalize.
  static std::unique_ptr<Segment> create(const std::string& job, int rank);
  /// Another process's, never this one's own; null if there is none on this node, or this one has announced nothing.
  static std::unique_ptr<Segment> open(const std::string& job, int rank);
  /// Whether another process has a segment on this node, even if it cannot be opened.
  static bool is_there(const std::string& job, int rank);
  /// In private memory, for what a process tells that has one elsewhere; null if there is no memory. `checking` is 0.
  static std::unique_ptr<Segment> image(int rank, const std::uint64_t (&nonce)[2]);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  Image* operator->() const { return image_; }
  Image& operator*() const { return *image_; }
  /// Of the owner: gives the chunks, records_at_a_time records, or a board, memory. False if there is none.
  bool make_chunks();
  bool make_records(std::uint32_t first);
  bool make_board(int index);
  /// Nor if that would be more than half of what the node has left, which others need.
  bool make_layout_slot(int slot, std::size_t bytes);
  /// Gives its memory back; nobody may be reading it.
  void drop_layout_slot(int slot);
  /// Whether the process that made it has ended; not to be asked of one's own.
  bool orphaned() const;

 private:
  Segment(const SegmentPlace& place, Image* image, std::size_t mapped)
      : place_(place), image_(image), mapped_(mapped) {}
  off_t place_of(const void* address) const;
  bool make(const void* address, std::size_t bytes);

  SegmentPlace place_;  ///< without a file: none
  Image* image_;
  std::size_t mapped_;  ///< bytes
};

}  // namespace gpudt::interpose::peer
