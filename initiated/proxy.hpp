// The thread of a process that carries out what its kernels put into the ring (proxy_ring.hpp), over MPI, and what the
// other processes' threads send: it stores into the memory of windows, reads from it, and acknowledges. It knows of
// GPUs only what ProxyCopies does.
//
// Messages are a command and its payload, all with one tag. A buffer that has received one is posted again when this
// process's copies are done, whatever others do, and the thread never waits in MPI, so that two proxies cannot
// deadlock. Messages of one process are looked at in the order of the receives that they match, which
// is that in which they were sent, and are stored in this order.
#pragma once

#include <mpi.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.hpp"
#include "initiated/proxy_ring.hpp"

namespace gpudt::initiated {

/// Copies between the proxy's buffers and the memory of windows. Called by the proxy's thread alone; each takes effect
/// behind those before. Failures are thrown as std::exception. Buffers stay as they are until a mark behind is reached.
class ProxyCopies {
 public:
  virtual ~ProxyCopies() = default;
  /// Before all others.
  virtual void begin() = 0;
  /// `rows` pieces of `bytes`, one behind the other in the buffer, and `stride` bytes apart in the window.
  virtual void to_window(char* window, const char* buffer, std::size_t bytes, std::size_t rows, std::size_t stride) = 0;
  virtual void from_window(char* buffer, const char* window, std::size_t bytes, std::size_t rows,
                           std::size_t stride) = 0;
  /// Stores 8 aligned bytes atomically. Kernels that see them see what was copied before.
  virtual void store(char* window, const std::uint64_t* word) = 0;
  /// Records a mark behind all earlier copies; reached(): whether they are complete. At most Proxy::buffers marks are
  /// pending.
  virtual std::uint64_t mark() = 0;
  virtual bool reached(std::uint64_t mark) = 0;
  /// Whether kernels of this process may be running, so that the thread is not to sleep.
  virtual bool busy() = 0;
};

/// Thread-safe where not said otherwise. Failures are thrown as std::runtime_error.
class Proxy {
 public:
  static constexpr int receives = 64, answers = 16, buffers = receives + answers;
  static constexpr std::size_t message_bytes = sizeof(ProxyCommand) + static_cast<std::size_t>(proxy_payload);

  /// Pinned host memory of a proxy: the ring, as in ProxyPort, zeroed, and for messages [buffers][message_bytes].
  struct Memory {
    ProxySlot* slots;
    std::uint64_t* completed;
    char* messages;
  };

  /// Starts the thread. All must stay until the Proxy ends; `comm`, with MPI_ERRORS_RETURN, is used by it alone.
  /// `timeout_ns`: after so long kernels give up waiting; 0: never, so that a failure of the thread ends the program
  /// (MPI_Abort).
  Proxy(MPI_Comm comm, const Memory& memory, ProxyCopies& copies, std::uint64_t timeout_ns);
  /// Stops the thread; not collective.
  ~Proxy();
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  /// Where memory number `memory` of this process lies, for others' commands; before there are any.
  void expose(int memory, char* base, std::int64_t bytes);
  void hide(int memory);
  /// Stores a word in another process's memory, in order with this process's other calls, not with its kernels'
  /// commands.
  void send_word(int target, int memory, std::int64_t offset, std::uint64_t word);
  /// Waits until all commands that have been published, and all words, are complete. Throws if none completes within
  /// the time-out.
  void drain() const;
  /// Ends the thread, behind drain() and a barrier of all processes, or where others do not come.
  void stop();
  /// Why the thread has given up; empty if it has not. For tests.
  std::string failure() const;

 private:
  struct Exposed {
    std::atomic<char*> base = nullptr;
    std::atomic<std::int64_t> bytes = 0;
  };
  /// A command of this process.
  struct Sent {
    MPI_Request request = MPI_REQUEST_NULL;
    bool is_get = false, done = false;
  };
  /// A word of send_word(). It stays until it is acknowledged and MPI has done with it.
  struct HostWord {
    ProxyCommand command;
    MPI_Request request = MPI_REQUEST_NULL;
    bool sent = false, done = false;
  };
  /// A message that has come, or an answer.
  struct Buffer {
    char* data = nullptr;
    MPI_Request request = MPI_REQUEST_NULL;
    int source = 0;
    std::uint64_t mark = 0;

    ProxyCommand& command() const { return *reinterpret_cast<ProxyCommand*>(data); }
    char* payload() const { return data + sizeof(ProxyCommand); }
  };
  /// A get of another process's, which waits for a buffer for its answer.
  struct PendingGet {
    int source;
    ProxyCommand command;
    std::vector<ProxyRun> runs;
  };
  /// What is between this process and another.
  struct Peer {
    std::deque<std::uint64_t> waiting;  ///< tickets of puts and words that it has not acknowledged; or host_word
    std::uint64_t to_acknowledge = 0;
    ProxyCommand acknowledgement;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  void work();
  /// One look at everything; whether there was something to do.
  bool advance();
  /// After so many looks that have found nothing.
  void rest(int looks);
  void end_requests();  ///< also of a thread that has given up

  bool take_commands();
  void send(std::uint64_t ticket);
  bool send_words();
  void complete_word(int target);
  bool complete_tickets();
  bool complete_front();

  void post(Buffer& buffer);
  bool receive();
  void handle(Buffer& buffer);
  void store(Buffer& buffer);
  bool read();
  void accept_answer(const Buffer& buffer);
  void accept_acknowledgement(const Buffer& buffer);
  bool finish_copies();
  bool finish_answers();
  bool acknowledge();

  /// Throws if it is not within what is exposed.
  char* place(int memory, std::int64_t offset, std::int64_t bytes) const;
  void check(int code, const char* call) const;
  bool test(MPI_Request& request, MPI_Status* status = MPI_STATUS_IGNORE) const;
  void give_up(const std::string& why);
  void throw_failure() const;

  MPI_Comm comm_;
  Memory memory_;
  ProxyCopies& copies_;
  std::uint64_t timeout_ns_;
  int process_ = 0;

  bool awake_ = false;  ///< kernels were running lately

  std::array<Exposed, proxy_memories> exposed_;
  std::uint64_t next_ = 0, completed_ = 0;  ///< tickets
  static constexpr std::uint64_t host_word = ~std::uint64_t{0};
  mutable Mutex words_mutex_;
  std::deque<HostWord> words_ GUARDED_BY(words_mutex_);
  std::atomic<int> words_left_ = 0;
  std::array<Sent, proxy_slots> sent_;
  std::vector<Peer> peers_;
  std::array<Buffer, buffers> buffers_;
  std::deque<Buffer*> posted_, copying_, answering_, free_;  ///< the last two are for answers
  std::deque<PendingGet> pending_gets_;

  std::string failure_;  ///< written before failed_ is set
  std::atomic<bool> failed_ = false, stop_ = false;
  std::thread thread_;
};

}  // namespace gpudt::initiated
