// Offers to processes that share no memory with this one, as on other nodes. What such processes tell each other by a
// shared segment on one node (peer_segment.hpp), they do here by notices, which travel where the program cannot see
// them (hidden_send()). Each keeps an image of the segment of every process that it has exchanged notices with; what a
// notice says is written there.
//
// The data of a message come when the receiver has asked for them, in parts, so that packing, sending, receiving and
// unpacking overlap. The parts of all messages from one process to another share one tag: they are sent, and received,
// in the order in which the receiver has asked for the messages.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "device/device.hpp"
#include "interpose/operand.hpp"
#include "interpose/peer_parts.hpp"
#include "interpose/peer_segment.hpp"

namespace gpudt::interpose::peer {

/// What a process says to another about a message that it offers, or is offered.
enum class Saying : std::uint32_t {
  hello,      ///< would offer messages to those who look for tokens
  welcome,    ///< looks for tokens, and would offer messages, too: the answer to hello
  offer,      ///< of a descriptor, ahead of its token; the data follow if they are short
  withdrawn,  ///< the offer is void
  want,       ///< is ready for so many bytes of the message
  done,       ///< needs nothing more of the message
  bye,        ///< looks for tokens no longer
};

struct Notice {
  Saying saying;
  std::int32_t from;       ///< rank in MPI_COMM_WORLD
  std::uint64_t nonce[2];  ///< hello, welcome: of the segment
  std::int32_t index;      ///< of the descriptor
  std::uint32_t generation;
  std::int32_t source, tag;  ///< offer: as the receiver's status has them
  std::int64_t bytes;        ///< offer, want
  std::int32_t data_bytes;   ///< offer: in `data`
  std::byte data[longest_token];
};

/// A message among those between two processes.
struct MessageId {
  std::int32_t index;
  std::uint32_t generation;
  bool operator==(const MessageId&) const = default;
};

/// All other processes, as far as this one shares no memory with them. Thread-safe, but for what says otherwise.
class Remote {
 public:
  /// Needs has_hidden_messages(). From now on notices are received, in progress().
  Remote(Segment& own, int rank);
  /// Says goodbye. To be called once, when nobody calls anything else any more.
  void stop();

  /// Whether progress() should be called: rarely, unless messages are under way.
  bool due();
  /// Takes what notices have come, and sends what is to be sent. By one thread at a time. Returns their number.
  int progress();

  /// Says hello, once.
  void greet(int rank);
  /// Of a process that has said hello or welcome; else null.
  Segment* image(int rank);

  // --- of the sender
  /// Of a descriptor that has been filled; `data`, which may be null, are all of the message's.
  void offer(int index, const std::byte* data);
  void withdrawn(int index);

  // --- of the receiver
  /// The descriptor in the image of the sender. The token may have come before the notice.
  Descriptor& expect(const Token& token);
  void want(int rank, const MessageId& id, std::int64_t bytes);
  void done(int rank, const MessageId& id);

  // --- turns
  enum class Way { out, in };
  /// Whether parts of this message are the next to be given to MPI.
  bool has_turn(Way way, int rank, const MessageId& id);
  /// All of its parts have been.
  void end_turn(Way way, int rank);
  /// The receiver gets empty parts for those that are missing, if it has asked for the message.
  void give_up_turn(int rank, const MessageId& id, std::int64_t missing_parts);
  /// A send that nobody waits for any more.
  void adopt(device::Staging staging, MPI_Request request);

  std::atomic<int> under_way{0};  ///< messages

 private:
  struct Turn {
    MessageId id;
    std::int64_t empty_parts = -1;  ///< still to be sent, of a message that has been given up
  };
  struct Partner {
    std::unique_ptr<Segment> image;
    bool greeted = false;
    std::deque<Turn> out, in;
  };
  struct Sending {
    std::unique_ptr<Notice> notice;
    device::Staging staging;
    MPI_Request request;
  };
  std::deque<Turn>& turns(Way way, int rank);
  Notice notice(Saying saying) const;
  void say(int rank, const Notice& notice);
  void pump();
  void send_outbox();
  void receive_next();
  void take(const Notice& notice);
  void meet(const Notice& notice);
  void take_offer(const Notice& notice);
  void take_want(const Notice& notice);
  void send_empty_parts();

  Segment& own_;
  const int rank_;
  std::atomic<unsigned> turns_asked_{0};

  // progress() alone
  MPI_Request receiving_ = MPI_REQUEST_NULL;
  Notice received_ = {};

  std::atomic<bool> pumping_{false};
  std::vector<Sending> sending_;  ///< of who pumps

  std::mutex mutex_;  // of what follows
  std::unordered_map<int, Partner> partners_;
  std::deque<std::pair<int, Notice>> outbox_;
  std::vector<Sending> adopted_;
  bool given_up_ = false;  ///< some turn is
};

/// The sender's end of a message that goes in parts: packs ahead, and sends when it has been asked to.
class MessageOutflow : public Outflow {
 public:
  /// `rank`: of the receiver.
  MessageOutflow(Remote& remote, int rank, int index, Descriptor& descriptor, Operand operand);
  ~MessageOutflow() override;
  bool step() override;

 private:
  struct Part {
    std::int64_t bytes;
    device::Staging staging;
    device::Transfer packing;
    MPI_Request sending = MPI_REQUEST_NULL;
  };
  bool begin(std::int64_t limit);
  void send(std::int64_t wanted);
  bool send_next(std::int64_t wanted);
  void reap();

  Remote& remote_;
  const int rank_;
  const MessageId id_;
  Descriptor& descriptor_;
  const Operand operand_;
  std::deque<Part> parts_;                           ///< oldest first
  std::size_t given_parts_ = 0;                      ///< of these, to MPI
  std::int64_t begun_ = 0, given_ = 0, reaped_ = 0;  ///< bytes
  bool turn_ended_ = false;
};

/// The receiver's end. What it has asked for it takes, whatever happens.
class MessageInflow : public Inflow {
 public:
  /// Asks for the beginning of the message, as much as the target has room for.
  MessageInflow(Remote& remote, int rank, const Descriptor& descriptor, int index, const Target& target);
  ~MessageInflow() override;
  bool step() override;

 private:
  struct Part {
    std::int64_t begin, end;
    std::byte* data;
    MPI_Request receiving = MPI_REQUEST_NULL;
  };
  void receive();
  bool receive_next();
  std::byte* room_for(std::int64_t begin);
  void take(const Part& part, std::int64_t bytes);
  void unpack(const Part& part);
  void note_failure();

  Remote& remote_;
  const int rank_;
  const MessageId id_;
  const Target target_;
  const std::int64_t part_bytes_;
  std::byte* direct_ = nullptr;  ///< where data are received that lie in host memory as they come
  std::vector<std::byte> room_;  ///< for data that lie otherwise there
  std::deque<Part> coming_;      ///< oldest first
  std::deque<device::Transfer> unpacking_;
  std::int64_t asked_ = 0, taken_ = 0;  ///< bytes
  std::exception_ptr failure_;
};

}  // namespace gpudt::interpose::peer
