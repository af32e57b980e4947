// Offers to processes that share no memory with this one, for example on other nodes. Instead of the shared segment of
// a node (shared/shared_segment.hpp) they use control messages, which the program cannot see (hidden_send()).
// Each process keeps an image of the segment of every process with which it has exchanged control messages; a control
// message updates the image.
//
// The data of a message are sent in fragments when the receiver wants them, so that packing, sending, receiving and
// unpacking overlap. The fragments of all messages from one process to another share one tag. They are sent and
// received in the order in which the receiver wanted the messages.
#pragma once

#include <mpi.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/mutex.hpp"
#include "device/device.hpp"
#include "interpose/engine/engine.hpp"
#include "interpose/engine/request_set.hpp"
#include "interpose/shared/shared_segment.hpp"
#include "interpose/transport/device_buffer.hpp"
#include "interpose/transport/internode/fragments.hpp"

namespace gpudt::interpose::peer {

enum class ControlKind : std::uint32_t {
  hello,      ///< the sender can offer messages to processes that check for RTS messages
  welcome,    ///< answers hello: the sender checks for RTS messages, and can offer messages too
  met,        ///< answers welcome: the sender knows the other's segment
  offer,      ///< a descriptor, before its RTS
  withdrawn,  ///< the offer is void
  want,       ///< the receiver wants `bytes` bytes of the message
  done,       ///< the receiver needs nothing more of the message
  plain,      ///< number of plain messages that the sender has received, of the length of the descriptor's RTS
  bye,        ///< the sender no longer checks for RTS messages
};

struct ControlMessage {
  ControlKind kind;
  std::int32_t from;       ///< rank in MPI_COMM_WORLD
  std::uint64_t nonce[2];  ///< hello, welcome: of the segment
  std::int32_t index;      ///< of the descriptor
  std::uint32_t generation;
  std::uint32_t version;  ///< hello, welcome: peer_version
  Envelope envelope;      ///< offer
  std::int64_t bytes;     ///< offer, want: bytes; plain: number of messages
};

/// Bytes of each fragment but the last of a message of `message_bytes` bytes that is packed into memory of `kind`. The
/// sender puts it into its RTS.
std::int64_t fragment_size(std::int64_t message_bytes, device::StagingKind kind);

/// Identifies a message between two processes.
struct MessageId {
  std::int32_t index;
  std::uint32_t generation;
  bool operator==(const MessageId&) const = default;
};

/// A send or receive in flight inside MPI; Remote::poll() tests all of them with one call.
struct MpiTransfer {
  enum class State { under_way, done, failed };
  std::atomic<State> state{State::under_way};
  std::int64_t bytes = 0;  ///< received

  // Memory that MPI reads or writes during the transfer, if this object owns it.
  std::unique_ptr<ControlMessage> control_message;
  device::Staging staging;
  std::vector<std::byte> unwanted;
};
using MpiTransferRef = std::shared_ptr<MpiTransfer>;

/// The processes that share no memory with this one. Thread-safe, unless a function says otherwise.
class Remote final : public Polled {
 public:
  /// Needs has_hidden_messages(). From now on control messages are received, in poll().
  Remote(Segment& own, int rank);
  /// Sends bye to all known processes and waits for theirs, up to 1 s: UCX warns in MPI_Finalize about messages that
  /// were never received. To be called once, as the last function. False if MPI still uses memory.
  bool stop();

  /// Seldom true unless messages are under way.
  bool due() override;
  bool may_become_due() override { return true; }
  /// Handles the control messages that have arrived, and sends queued ones. Returns the number of messages that have
  /// arrived.
  int poll(Tests tests) override;
  void settle() override;
  /// poll() for any caller, through the engine.
  void advance();

  /// Says hello, once.
  void greet(int rank);
  /// The image of a process that has sent hello or welcome, or null. The process checks for RTS messages of this one
  /// (peer::checks()) as soon as it knows this one's segment. So a process that sends RTS messages is known here.
  Segment* image(int rank);
  /// Whether hello has been sent to the process, or received from it: it may send RTS messages.
  bool greeted(int rank);

  // --- of the sender
  /// Sends the offer of a descriptor that has been filled.
  void offer(int index);
  void withdrawn(int index);
  /// Number of plain messages, of the length of RTS `index`, whose receipt the process has reported.
  std::uint32_t plain_messages(int rank, int index);

  // --- of the receiver
  /// The descriptor in the image of the sender. The RTS may arrive before the control message.
  Descriptor& expect(const RendezvousRequest& rts);
  /// Queues a `want`, sent with the next control message or by say_all(), and the message for its turn.
  void want(int rank, const MessageId& id, std::int64_t bytes);
  void say_all() noexcept;
  void done(int rank, const MessageId& id);
  /// Reports a received plain message as long as RTS `index`.
  void received_plain(int rank, int index);

  // --- parts
  enum class Way { out, in };
  /// Whether MPI gets the fragments of this message next.
  bool has_turn(Way way, int rank, const MessageId& id);
  /// To be called when MPI has got all its fragments.
  void end_turn(Way way, int rank);
  /// Gives up the last `bytes` bytes of the message: if they were wanted, empty fragments are sent, or fragments
  /// received and dropped.
  void give_up_turn(Way way, int rank, const MessageId& id, std::int64_t bytes, std::int64_t fragment_bytes);
  /// Sends or receives a fragment of the message that has the turn. May throw MpiError.
  MpiTransferRef send(int rank, device::Staging staging, std::int64_t bytes);
  MpiTransferRef receive(int rank, void* data, std::int64_t bytes);

  /// Number of messages under way, and of callers that need control messages now.
  std::atomic<int> under_way{0};

 private:
  struct Turn {
    MessageId id;
    std::int64_t given_up =
        -1;  ///< bytes still to be sent (or received and discarded) for a cancelled message; negative: not cancelled
    std::int64_t fragment_bytes = 0;
  };
  using PlainMessages = std::array<std::uint32_t, rts_lengths>;  ///< by length
  struct Partner {
    std::unique_ptr<Segment> image;
    bool greeted = false;
    bool gone = false;  ///< it has said bye
    std::deque<Turn> out, in;
    std::unique_ptr<PlainMessages> plain_in, plain_out;  ///< received; sent, and reported as received
  };
  struct GivenUp {
    Way way;
    int rank;
    Turn turn;
  };
  std::deque<Turn>& turns(Way way, int rank) REQUIRES(mutex_);
  ControlMessage control_message(ControlKind kind, const MessageId& id = {}) const;
  ControlMessage plain_count_message(int index, std::uint32_t messages) const;
  void say(int rank, const ControlMessage& message);
  void enter(int rank, const ControlMessage& message) REQUIRES(mutex_);
  void say_one(int rank, const ControlMessage& message);
  void watch(MPI_Request request, MpiTransferRef handed);
  void listen();
  void take_new();
  void test();
  void ended(const RequestSet<MpiTransferRef>::Ended& ended);
  bool quiet();
  bool all_gone();
  void take(const ControlMessage& message);
  bool note_greeted(Partner& partner) REQUIRES(mutex_);
  void meet(const ControlMessage& message);
  void take_offer(const ControlMessage& message);
  void take_want(const ControlMessage& message);
  std::vector<GivenUp> given_up();
  void make_up_for(const GivenUp& message);

  Segment& own_;
  const int rank_;

  // Only for the thread that polls.
  ControlMessage received_ = {};
  MpiTransferRef listening_;
  int receive_failures_ = 0;  ///< receives of control messages that failed one after another
  bool stopping_ = false;
  RequestSet<MpiTransferRef> requests_;

  std::atomic<bool> saying_{false};

  // Whether there is something to look at under the mutex.
  std::atomic<bool> to_say_{false}, any_new_{false}, any_given_up_{false};

  Mutex mutex_;
  std::unordered_map<int, Partner> partners_ GUARDED_BY(mutex_);
  std::deque<std::pair<int, ControlMessage>> outbox_ GUARDED_BY(mutex_);
  std::vector<std::pair<MPI_Request, MpiTransferRef>> new_ GUARDED_BY(mutex_);
};

}  // namespace gpudt::interpose::peer
