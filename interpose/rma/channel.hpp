// The messages of one served window: sent, received, and applied at the target.
//
// They travel on a communicator of the window's own. Only the engine (registry.cpp) calls MPI for them; the program's
// threads queue operations and wait until these are complete. The target applies the messages of one process in the
// order in which they were sent.
#pragma once

#include <mpi.h>

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/mutex.hpp"
#include "datatype/decode.hpp"
#include "interpose/engine/request_set.hpp"
#include "interpose/rma/data.hpp"
#include "interpose/rma/direct.hpp"
#include "interpose/rma/message.hpp"
#include "interpose/rma/target.hpp"
#include "interpose/rma/window_memory.hpp"

namespace gpudt::interpose {

/// An operation of this process on a remote window, from the MPI call to its local completion.
struct OriginOperation {
  int rank = MPI_PROC_NULL;
  MessageHeader header;
  datatype::TypeInfoRef target_type;      ///< of an access
  std::optional<UserBuffer> source;       ///< the data, unless they are in `packed`; packing has been started
  std::vector<std::byte> packed;          ///< the data, ready to be sent
  std::optional<UserBuffer> destination;  ///< where fetched data go
  bool with_request = false;              ///< the request reports the operation's error
  int forbidden = MPI_SUCCESS;            ///< the error for the request if GPUDT_REQUIRE forbids the way of the access
  DirectAccessRef direct;                 ///< if a GPU of this process makes the access; other members are unused then

  /// The program may use the buffers again. Set last.
  std::atomic<bool> complete{false};
  int error = MPI_SUCCESS;

 private:
  friend class WindowChannel;
  int unsent_ = 0;
  bool answered_ = false;
  std::uint64_t before_ = 0;  ///< number of accesses to the rank before it
};

using OriginOperationRef = std::shared_ptr<OriginOperation>;

/// Layouts that have arrived in messages. A cached layout keeps its copy on the device.
class LayoutCache {
 public:
  /// Null if the bytes are no layout.
  datatype::LayoutRef find(std::span<const std::byte> bytes);

 private:
  std::map<std::string, datatype::LayoutRef, std::less<>> layouts_;  ///< by their bytes
};

class WindowChannel {
 public:
  /// Collective over `comm`, an intracommunicator.
  WindowChannel(MPI_Comm comm, WindowMemory& memory);
  ~WindowChannel();
  WindowChannel(const WindowChannel&) = delete;
  WindowChannel& operator=(const WindowChannel&) = delete;

  MPI_Comm comm() const { return comm_; }
  int ranks() const { return static_cast<int>(peers_.size()); }

  /// Lets this process apply accumulates only while it holds `lock`. To be called before anything is received.
  void share_turn(peer::WindowLock& lock) { turn_.share(lock); }

  // --- any thread
  void submit(const OriginOperationRef& operation);
  /// Number of accesses to `rank` that are not complete.
  int outstanding(int rank) const { return peer(rank).outstanding.load(std::memory_order_acquire); }
  /// Number of accesses to `rank` up to now.
  std::uint64_t submitted(int rank) const { return peer(rank).submitted.load(std::memory_order_acquire); }
  /// Number of these that have certainly been applied there.
  std::uint64_t applied(int rank) const { return peer(rank).applied.load(std::memory_order_acquire); }
  /// The first error of accesses to `rank` since the last call of this function.
  int take_error(int rank) { return peer(rank).error.exchange(MPI_SUCCESS); }
  /// Number of messages of these kinds that have arrived from `rank`.
  int posts(int rank) const { return peer(rank).posts.load(std::memory_order_acquire); }
  int completes(int rank) const { return peer(rank).completes.load(std::memory_order_acquire); }
  /// True if no message is queued, sent or being applied.
  bool quiet() const { return live_.load(std::memory_order_acquire) == 0; }

  // --- the engine
  int progress();

 private:
  struct Incoming;
  struct Peer {
    std::atomic<int> outstanding{0}, posts{0}, completes{0}, error{MPI_SUCCESS};
    std::atomic<std::uint64_t> submitted{0}, applied{0};
    // Only for the engine.
    std::deque<OriginOperationRef> outgoing;
    std::deque<std::shared_ptr<Incoming>> incoming;
    int target_error = MPI_SUCCESS;  ///< of this peer's accesses since the last answer
  };
  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  const Peer& peer(int rank) const { return peers_[static_cast<std::size_t>(rank)]; }

  /// Called when a request of MPI's has ended.
  using Then = std::function<void(int error)>;
  /// `code`: what the call that made the request returned; `then` gets it at once if it is an error.
  void follow(int code, MPI_Request request, Then then);
  int test_requests();

  // Out.
  void take_mailbox();
  int send_ready();
  bool ready(const OriginOperationRef& operation);
  void send(const OriginOperationRef& operation);
  void send_answer(int rank, MessageHeader header, Block data);
  void send_message(int rank, MessageHeader header, const std::vector<std::byte>& layout, const std::byte* data,
                    std::function<void(int)> then);
  int next_tag();
  void sent(const OriginOperationRef& operation, int error);
  void finish(const OriginOperationRef& operation);

  // In.
  int receive();
  void arrived(const std::shared_ptr<Incoming>& message);
  void find_place(const Incoming& message, TargetAccess& access);
  void access_arrived(const std::shared_ptr<Incoming>& message);
  void answer_arrived(const Incoming& message);
  void result_arrived(const OriginOperationRef& operation, const Incoming& message);
  void start_unpack(const OriginOperationRef& operation, int error);
  int finish_unpacked();
  int apply();
  bool apply(Incoming& message);
  void acknowledge(const Incoming& message);

  MPI_Comm comm_ = MPI_COMM_NULL;
  WindowMemory& memory_;
  AtomicTurn turn_;  // destroyed after the accesses that hold it
  std::vector<Peer> peers_;
  std::atomic<int> live_{0};

  Mutex mailbox_mutex_;
  std::vector<OriginOperationRef> mailbox_ GUARDED_BY(mailbox_mutex_);
  std::atomic<bool> mail_{false};

  // Only for the engine.
  RequestSet<Then> requests_;
  std::unordered_map<std::uint64_t, OriginOperationRef> expected_;
  std::vector<OriginOperationRef> unpacking_;
  std::vector<int> sending_, applying_;  ///< peers with something outgoing, or incoming
  LayoutCache layouts_;
  LockQueue locks_;
  std::uint64_t next_id_ = 0;
  int next_tag_ = 0;
};

}  // namespace gpudt::interpose
