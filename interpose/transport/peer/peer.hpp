// Peer transfer: a message in device memory is offered, and on one node the receiver's GPU fetches it from the
// sender's, by one kernel from the sender's layout to the receiver's.
//
// What travels through MPI, with the program's communicator and tag, is an RTS (shared/shared_segment.hpp) that
// names the offer, so that matching, order, wildcards and probes stay MPI's business. A process that offers messages
// also checks everything that it receives for RTS messages, wherever a receive puts it: in device or host memory, by
// blocking, nonblocking, matched or persistent receives, of C and of Fortran. Only such processes are sent RTS
// messages. Messages in host memory, and short ones, go as they are; those as long as RTS messages are noted
// (transport/peer/plain_messages.cpp), so that an RTS is known by its envelope and its length.
//
// Data of many short runs, which are slow to read from afar, are packed on the sender's GPU first, and fetched part by
// part while the rest is being packed.
//
// Of two processes on one GPU, whose kernels take turns in time slices, only the lower-ranked process launches kernels.
// It fetches what it receives, and writes what it sends directly into the receiver's memory when the receiver asks for
// that.
//
// Contiguous data and rows go into pinned host memory by the copy engine of one of the receiver's GPUs. A receiver that
// cannot reach the sender's memory, or receives into other host memory, gets the data through the sender's segment
// instead (transport/internode/fragments.hpp). A short message that nobody receives for a while moves there, too, so
// that its send can end. Where processes share no memory, long messages are offered, and come in fragments, by messages
// (transport/internode/control_messages.hpp).
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/recycled.hpp"
#include "datatype/decode.hpp"
#include "device/device.hpp"
#include "interpose/mpi/workarounds.hpp"
#include "interpose/shared/layout_exchange.hpp"
#include "interpose/shared/shared_segment.hpp"
#include "interpose/support/errors.hpp"
#include "interpose/support/nvtx.hpp"
#include "interpose/transport/device_buffer.hpp"
#include "interpose/transport/internode/control_messages.hpp"
#include "interpose/transport/internode/fragments.hpp"
#include "interpose/transport/payload.hpp"
#include "interpose/transport/peer/short_rts.hpp"

namespace gpudt::interpose {

/// To be called in MPI_Init when a device is there. If there can be no peer transfers, the trace tells why.
/// `unmap_freed`: what other processes have freed is unmapped as soon as possible (peer/freed_memory.hpp), in place of
/// when other memory is mapped.
void peer_start(ForcedProtocol forced, int world_rank, bool unmap_freed);
/// After this no message is offered. Other processes may still fetch earlier ones. False if MPI still uses staging
/// memory.
bool peer_stop();

/// What another process has described (peer::RemoteBuffer), as this process's GPU sees it.
struct MappedBuffer {
  datatype::LayoutRef layout;
  std::int64_t count = 0;
  device::Mapping mapping;
  void* user = nullptr;

  device::Side side() const { return {layout.get(), count, user}; }
};

extern std::atomic<bool> peer_checking, peer_collecting, peer_threading;
/// Whether what the program receives may be an RTS.
inline bool peer_checks() {
  return peer_checking.load(std::memory_order_relaxed);
}
/// Whether what collectives receive by hidden messages may be an RTS.
inline bool peer_checks_hidden() {
  return peer_collecting.load(std::memory_order_relaxed);
}

bool peer_may_exchange_rts(int other, MPI_Comm comm);
/// Whether a message between this process and process `other` of `comm`, which may be MPI_ANY_SOURCE, may be an RTS of
/// processes that share memory, where MPI would otherwise be given device memory. If not known, `comm` is
/// MPI_COMM_NULL.
inline bool peer_exchanges_rts(int other, MPI_Comm comm) {
  return peer_checks() && mpi_takes_device_memory() && peer_may_exchange_rts(other, comm);
}

/// Whether this process may get an RTS from one that shares no memory with it, and so must look for RTS messages in
/// device memory, too (transport/received_on_device.hpp).
bool peer_takes_fragments();

/// Whether several threads may call MPI at a time. False where peer_start() has made no segment.
inline bool peer_has_threads() {
  return peer_threading.load(std::memory_order_relaxed);
}

/// Whether `messages` hidden messages can be offered now.
bool peer_has_room(std::size_t messages);

/// Whether process `other` of `comm` is this one, and there are peer transfers.
bool peer_is_itself(MPI_Comm comm, int other);

/// To be called before an ordinary message is passed to MPI: those as long as an RTS are noted (plain_messages.cpp).
/// May wait for another thread to give MPI an RTS. Arguments that MPI will reject do no harm.
void peer_sends_plain(int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm);
void peer_note_plain(std::int64_t bytes, int dest, int tag, MPI_Comm comm);
inline void peer_sends_plain(std::int64_t bytes, int dest, int tag, MPI_Comm comm) {
  if (peer::is_plain(bytes) && peer_checks()) peer_note_plain(bytes, dest, tag, comm);
}
/// peer_sends_plain() for all messages of a persistent request that is about to be made.
void peer_sends_plain_again(int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm);

/// To be called once for each received message that is no RTS. `comm`: MPI_COMM_NULL if it is not known.
void peer_note_received(std::int64_t bytes, int source, MPI_Comm comm);
inline void peer_received_plain(std::int64_t bytes, int source, MPI_Comm comm) {
  if (peer::rts_index(bytes) >= 0 && peer_checks()) peer_note_received(bytes, source, comm);
}

/// What a probe has found.
enum class Probed {
  plain,              ///< a message as the program has sent it
  rts,                ///< an RTS
  plain_or_received,  ///< one as long as an RTS, for which there is no offer, or no offer any more
  received,  ///< one that another thread received before MPI had read its length (Open MPI); never by MPI_Mprobe
};

/// In the status of a probe, replaces the length of an RTS by that of the message that it stands for. `matched`: the
/// probe is MPI_Mprobe, so that later ones do not find the message; then `status` may not be MPI_STATUS_IGNORE.
Probed peer_probed(MPI_Comm comm, MPI_Status* status, bool matched);
/// The number of RTS messages that receives and matching probes of this process have got; 0 if only one thread at a
/// time calls MPI.
std::uint64_t peer_received_rts();
/// A lock that a thread holds from a matching probe until peer_probed() has returned: a message behind an RTS may be as
/// long. Empty if only one thread at a time calls MPI.
std::unique_lock<std::recursive_mutex> peer_matching();

/// What a receive matches; no value if a probe has matched its message.
struct Selector {
  int source, tag;
};
using Selects = std::optional<Selector>;

/// Registers a receive while it is unknown whether it matched an RTS, because a probe in another thread may follow it.
/// Does nothing if only one thread at a time calls MPI.
class PendingReceive {
 public:
  /// May throw std::bad_alloc.
  PendingReceive(const Selects& selects, MPI_Comm comm) : noted_(peer_has_threads() && note(selects, comm)) {}
  ~PendingReceive() { over(); }
  /// To be called once it is known.
  void over() {
    if (std::exchange(noted_, false)) forget();
  }
  PendingReceive(const PendingReceive&) = delete;
  PendingReceive& operator=(const PendingReceive&) = delete;

 private:
  static bool note(const Selects& selects, MPI_Comm comm);
  static void forget();
  bool noted_;
};

/// To be called when a receive on `comm` has failed with `status` because the message was too long: releases the sender
/// if it was an RTS. Does nothing if the communicator is not known (MPI_COMM_NULL).
void peer_truncated(MPI_Comm comm, const MPI_Status& status);
/// peer_truncated() by the context of the communicator (request_context()); negative if that is not known.
void peer_truncated_in(std::int64_t context, const MPI_Status& status);

/// For the report: why a short message went through the segment, and how those between nodes go.
inline constexpr const char* late_receiver = "the receiver was not there in time, and short messages do not wait";
inline Went went_pipelined(const DeviceBuffer& operand) {
  const bool on_host = goes_through_host(operand.protocol);
  return {protocol_name(Protocol::pipelined), on_host ? "the processes share no memory" : nullptr};
}

/// The sender side of a rendezvous message: MPI is given the RTS alone, and done() is true when the receiver has the
/// data.
class RendezvousSender final : public SendPayload, public Recycled<RendezvousSender> {
 public:
  ~RendezvousSender() override;

  bool done() override {
    return !sent_ || device::moving(operand_, [this] { return step(); });
  }
  bool sent() override;
  Outgoing message() const override;
  /// So that the receive fails if it is too short. A shorter message must be sent before it is received.
  bool goes_synchronously() const override;
  void given() override { descriptor_.issue.store(peer::Issue::issued, std::memory_order_release); }
  /// So that give_up() retracts it.
  void recalled() override { descriptor_.issue.store(peer::Issue::not_yet, std::memory_order_release); }
  void each_reported(VisitReported visit) const override { report_visit(operand_.reported, visit); }

 private:
  friend MakeSender make_offer;
  /// What a message needs to be offered: place.cpp.
  struct Place {
    int world;
    int index;
    bool remote;               ///< the receiver shares no memory with this process
    bool afar;                 ///< the receiver is another process, which presumably fetches what is offered
    bool wanted_in_fragments;  ///< presumably it does not: packing data for that would be in vain
  };
  /// Takes a descriptor. No value if the message is to go another way, for a reason that is now in `message` or
  /// `route`.
  static std::optional<Place> place_for(const DeviceBuffer& operand, const Destination& to, Message& message,
                                        Route& route);
  RendezvousSender(const Place& place, const DeviceBuffer& operand);
  void offer(const Place& place);
  void open();
  void give_up();
  void describe(bool better_packed, bool may_pack);
  void describe_nothing(std::uint32_t unmappable);
  bool describe_in_place();
  void make_ready();
  bool step();
  void pack_next_part();
  void pack_on();
  void withdraw();
  void buffer();
  void answer();
  bool is_willing(const peer::Segment& receiver);
  bool put();
  bool is_on_host() const { return operand_.ordinal < 0; }  ///< the data (from_host.hpp)
  bool is_short() const { return descriptor_.bytes < peer::least_offered; }
  bool is_named() const { return is_short() || descriptor_.compact != 0; }  ///< the RTS is a ShortRequest
  bool may_be_buffered() const { return !remote_ && operand_.bytes() <= peer::longest_buffered; }
  bool note_what_receiver_found();  ///< true: both processes use one GPU
  bool is_receiver_on_gpu() const { return descriptor_.found.load(std::memory_order_relaxed) == peer::found_on_gpu; }
  void note_outcome(bool refused) const;
  const char* why_refused() const;
  void stream();
  bool step_remote();
  bool receiver_gone();

  const int index_;
  peer::Descriptor& descriptor_;
  const int world_;    ///< rank of the receiver in MPI_COMM_WORLD
  const bool remote_;  ///< the receiver shares no memory with this process
  const DeviceBuffer operand_;
  struct Packing {
    std::int64_t end;  ///< bytes of the message, up to the end of this part
    device::Transfer transfer;
  };
  peer::PublishedRef published_;                        ///< the layout, if it is long
  device::Staging packed_;                              ///< for data that cannot be fetched from where they are
  std::vector<Packing> packing_;                        ///< to packed_, oldest first
  std::int64_t packing_bytes_ = 0;                      ///< up to the end of the last part begun
  bool sent_ = false;                                   ///< MPI has sent the RTS
  bool opened_ = false;                                 ///< the receiver may have the RTS
  std::chrono::steady_clock::time_point offered_at_{};  ///< when the RTS had been sent
  std::chrono::steady_clock::time_point checked_at_{};
  unsigned polls_ = 0;                      ///< calls of receiver_gone()
  device::Staging staging_;                 ///< withdrawing: what is on its way to the segment
  device::Transfer moving_;                 ///< withdrawing: from the program's buffer to staging_
  MappedBuffer receivers_;                  ///< putting: where the data go
  device::Transfer putting_;                ///< putting; after receivers_, which it uses
  std::unique_ptr<peer::Outflow> outflow_;  ///< fragments_wanted; remote, or on the host: from the beginning
  bool streams_ = false;                    ///< the receiver has wanted fragments of this node
  bool not_packed_ = false;  ///< the receiver presumably wants fragments, for which data are packed later
  bool all_sent_ = false;    ///< remote: MPI has sent the data
  NvtxMessage range_;
};

/// A message that has been announced by an RTS and is fetched.
class RendezvousReceiver : public Recycled<RendezvousReceiver> {
 public:
  /// For a message of `bytes` bytes that was too long for a receive, its first `there` bytes at `data`: releases the
  /// sender if it is the RTS of a short message, or a compact one. Returns whether it is.
  static bool release_named(const void* data, std::int64_t bytes, std::int64_t there);
  /// The message of the oldest RTS of `rts_length` bytes with this envelope that has not been received, on this node;
  /// null if there is none. For a receive whose data another message may have overwritten.
  static std::unique_ptr<RendezvousReceiver> recognise_next(const peer::Envelope& envelope, std::int64_t rts_length);
  /// Gives up what is not done, and releases the sender.
  ~RendezvousReceiver();
  Announced announced(std::int64_t capacity) const;

  /// Starts to fetch at most `into.bytes()` bytes. May throw device::Error, as done() may.
  void start(const DeviceBuffer& into);
  /// Starts to fetch into host memory.
  void start(const datatype::LayoutRef& layout, std::int64_t count, void* user);
  bool done();

 private:
  RendezvousReceiver(const peer::Segment& segment, peer::Descriptor& descriptor, const peer::MessageId& id,
                     bool remote);
  friend Recognise recognise_offer;
  /// This process has got the RTS of the descriptor, one of this node.
  static std::unique_ptr<RendezvousReceiver> match(const peer::Segment& segment, peer::Descriptor& descriptor,
                                                   int index);
  static std::unique_ptr<RendezvousReceiver> recognise_named(const void* data, std::int64_t bytes, std::int64_t there);
  bool claim();
  bool may_fetch() const;
  bool fetch(const DeviceBuffer& into);
  bool better_written() const;
  bool needs_sender() const;
  bool fetch_to_host();
  bool fetch_from_memory();
  bool fetch_mapped();
  bool fetch_what_is_ready();
  device::Transfer fetch_to_gpu(const device::Side& to, std::int64_t end);
  device::Transfer fetch_up_to(std::int64_t end);
  void abandon_copies(const device::Error& why);
  bool is_on_host() const { return target_.ordinal < 0; }  ///< the receive buffer
  /// Whether the sender has the data in host memory.
  bool is_from_host() const { return descriptor_.unmappable.load(std::memory_order_relaxed) == peer::unmappable_host; }
  bool step();
  bool all_come();
  bool ask();
  bool answered();
  void go_on_alone();
  void take_back();
  Went went_in_fragments() const;
  void want();
  void want_on_host();
  bool collect();
  void take_buffered();
  void release();
  void check_sender();

  enum class Source { none, memory, segment, sender };

  const peer::Segment& segment_;
  peer::Descriptor& descriptor_;
  const peer::MessageId id_;
  const bool remote_;  ///< segment_ is an image
  Source source_ = Source::none;
  bool released_ = false;
  DeviceBuffer into_;                      ///< receive buffer in device memory
  datatype::LayoutRef layout_;             ///< of one in host memory
  int gpu_ = -1;                           ///< which fetches the data
  std::int64_t wanted_ = 0, fetched_ = 0;  ///< bytes
  MappedBuffer senders_;                   ///< if the data are fetched
  device::KeptPlan plan_;                  ///< of the latest message from these data into a buffer of this layout
  peer::PublishedRef published_;           ///< the layout of into_, if it is long and the sender has been asked
  device::Staging buffered_;               ///< a short message that the sender has moved to the segment
  std::list<device::Transfer, RecyclingAllocator<device::Transfer>> transfers_;  ///< under way, oldest first
  peer::Target target_ = {};
  std::unique_ptr<peer::Inflow> inflow_;
  std::chrono::steady_clock::time_point asked_at_, checked_at_;
  unsigned polls_ = 0;  ///< calls of check_sender()
  NvtxMessage range_;
};

/// A receive into host memory. It has work to do only if an RTS comes, or if MPI could not put one into the buffer as
/// elements, since it may end within one (widest_received_in_parts()). Then MPI receives bytes: into the buffer if that
/// is contiguous, or into packed memory.
class HostReceive : public ReceivePayload {
 public:
  /// `apart`: bytes are never received into the program's buffer, only into packed memory.
  HostReceive(void* buf, int count, MPI_Datatype type, datatype::TypeInfoRef info, bool apart = false);
  Outgoing message() const override;
  bool truncated(std::int64_t bytes) override;
  /// Whether message() is the program's buffer, as elements of its type.
  bool is_as_it_is() const { return is_in_place() && bytes_at_ == nullptr; }
  /// Whether message() is the program's buffer.
  bool is_in_place() const { return packed_ == nullptr; }
  Announced announced(std::int64_t bytes) override;
  void start_unpack(std::int64_t bytes) override;
  bool done() override { return !receiver_ || receiver_->done(); }
  void abandon() override { receiver_.reset(); }
  /// MPI has received into the program's buffer after all.
  void came_in_place() {
    packed_.reset();
    bytes_at_ = nullptr;
  }
  /// What is in the buffer may be another message: an RTS is to be known by its envelope and length.
  void know_by(const peer::Envelope& envelope) { envelope_ = envelope; }

 private:
  std::int64_t bytes() const { return count_ * info_->layout().size(); }
  std::unique_ptr<RendezvousReceiver> recognised(std::int64_t bytes) const;

  void* buf_;
  int count_;
  MPI_Datatype type_;
  datatype::TypeInfoRef info_;
  std::byte* bytes_at_ = nullptr;
  std::unique_ptr<std::byte[]> packed_;
  std::optional<peer::Envelope> envelope_;
  std::unique_ptr<RendezvousReceiver> receiver_;
};

/// The program has made communicator `made` (or MPI_COMM_NULL) from `of`: where contexts are numbered, those that have
/// numbered it too may offer messages on it.
void peer_has_communicator(MPI_Comm of, MPI_Comm made);

/// Whether a process may have sent this one an RTS.
bool peer_was_offered();
/// Least number of bytes that MPI is given for a receive, so that an RTS can be read: MPICH returns neither length nor
/// data of a message that was too long. 0 if any number will do.
inline std::int64_t rts_room() {
  return !truncated_statuses_tell && peer_checks() ? peer::longest_rts : 0;
}
/// Whether MPI is to be given more room than the `bytes` bytes of a receive into host memory, which costs a copy: only
/// if this process may be sent an RTS by now, or if the receive is persistent (`lasts`). Over all MPI libraries
/// processes that look for the RTS of short messages must be able to read these, too.
inline bool peer_wants_room(std::int64_t bytes, bool lasts = false) {
  return (bytes < rts_room() && (lasts || peer_was_offered())) ||
         (bytes < peer::least_short && peer_expects_short() && peer_checks());
}
/// rts_room() for receives of collectives.
inline std::int64_t hidden_rts_room() {
  return hidden_messages_share_comm && peer_checks_hidden() ? peer::longest_rts : 0;
}

/// A receive into host memory whose buffer is shorter than an RTS may be: MPI is given memory with room for one. The
/// message of an RTS is fetched; if it is too long, the receive is truncated and the sender released.
class ReceiveWithRoom : public ReceivePayload {
 public:
  static constexpr std::int64_t most_room = peer::longest_rts;
  ReceiveWithRoom(void* buf, std::int64_t count, datatype::TypeInfoRef info)
      : buf_(buf), count_(count), info_(std::move(info)) {}
  Outgoing message() const override { return {rts_, sizeof rts_, MPI_BYTE}; }
  Announced announced(std::int64_t bytes) override;
  void start_unpack(std::int64_t bytes) override;
  bool done() override { return !receiver_ || receiver_->done(); }
  void abandon() override { receiver_.reset(); }
  /// Unpacks the first `bytes` bytes of an ordinary message into the program's buffer.
  void deliver(std::int64_t bytes) const;

 private:
  void* const buf_;
  const std::int64_t count_;
  const datatype::TypeInfoRef info_;
  alignas(peer::RendezvousRequest) mutable std::byte rts_[peer::longest_rts];
  std::unique_ptr<RendezvousReceiver> receiver_;  ///< of a message that is not too long
};

/// Whether only bytes may be received of a message that ends within an element, as an RTS may: MPICH's datatype engine,
/// yaksa, ends the program if a part of an element comes.
inline bool peer_receives_bytes_alone() {
  return widest_received_in_parts() == 0;
}
/// Whether an RTS may come to a nonblocking receive into host memory; if not, MPI can have the receive unchanged.
bool peer_may_reach_host(int count, MPI_Datatype type);
/// The payload for such a receive; null if no RTS may come.
std::shared_ptr<HostReceive> peer_host_receive(void* buf, int count, MPI_Datatype type, bool apart = false);
/// The payload for a blocking one; null unless it is to be received as bytes or with more room.
std::shared_ptr<ReceivePayload> peer_blocking_receive(void* buf, int count, MPI_Datatype type, bool apart = false);

bool is_truncation(int code);

}  // namespace gpudt::interpose
