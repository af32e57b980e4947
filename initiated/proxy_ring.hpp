// How kernels ask their process to reach the GPUs that they do not reach by loads and stores: the ring of commands
// between the kernels of a GPU and the thread of its process that carries them out (proxy.hpp), the same for kernels
// and for tests on host threads.
//
// The ring lies in pinned host memory that the GPU maps. A thread that has something to send takes a ticket from a
// counter in the GPU's memory: ticket t owns slot t modulo proxy_slots, once the proxy has completed ticket
// t - proxy_slots. It fills the slot, data included, and publishes it. Puts and words to one process take effect in the
// order of their tickets; a get sees the puts of lower tickets, and perhaps later ones. The proxy completes commands in
// the order of tickets: a put when it is in the target's memory, a get when the kernel has taken the data away. So one
// number, `completed`, says which slots are free and what a flush waits for.
#pragma once

#include <cstdint>

#include "datatype/traverse.hpp"

namespace gpudt::initiated {

/// Slots of a ring, and bytes of data that each holds: 16 MiB for each process.
constexpr std::uint64_t proxy_slots = 512;
constexpr std::int64_t proxy_payload = 32 << 10;
/// The number of the memory that has the queues, behind those of windows.
constexpr std::int32_t queue_memory = 2047, proxy_memories = 2048;

enum class ProxyCall : std::uint32_t {
  none = 0,
  put,          ///< writes the payload to the target's memory
  word,         ///< writes `word` there
  get,          ///< reads the target's memory into the payload
  answer,       ///< between proxies: the data of a get
  acknowledge,  ///< between proxies: `word` more puts and words of the receiver of this message are complete
};

/// A piece of a target that is not contiguous.
struct ProxyRun {
  std::int64_t offset;   ///< bytes from the memory's begin
  std::uint32_t packed;  ///< where it is in the packed data
  std::uint32_t bytes;
};

/// Header of a slot and of a message. The list of runs follows the data of a put at the next multiple of 16, and is the
/// whole payload of a get.
struct ProxyCommand {
  ProxyCall call = ProxyCall::none;
  std::int32_t target = 0;   ///< a process
  std::int32_t memory = 0;   ///< of the target: a window's id, or queue_memory
  std::uint32_t runs = 0;    ///< 0: the data are contiguous there, at `offset`
  std::int64_t offset = 0;   ///< bytes from the memory's begin
  std::int64_t bytes = 0;    ///< packed
  std::int64_t signal = -1;  ///< put: where in queue_memory `word` is to be stored behind the data; -1: nowhere
  std::uint64_t word = 0;
  std::uint64_t ticket = 0;
  std::uint64_t unused = 0;
};
static_assert(sizeof(ProxyCommand) == 64);

struct alignas(128) ProxySlot {
  std::uint64_t ready;     ///< ticket + 1, when the kernel has filled it
  std::uint64_t answered;  ///< ticket + 1, when the data of a get are there
  std::uint64_t released;  ///< ticket + 1, when the kernel has taken them
  std::uint64_t unused[5];
  ProxyCommand command;
  char payload[proxy_payload];
};

/// What kernels know of it; plain data. Without slots there is no proxy.
struct ProxyPort {
  ProxySlot* slots = nullptr;          ///< [proxy_slots], in host memory
  std::uint64_t* completed = nullptr;  ///< in host memory: how many tickets, in their order
  std::uint64_t* tickets = nullptr;    ///< in this GPU's memory: how many have been taken
  std::uint64_t* seen =
      nullptr;  ///< in this GPU's memory: the largest `completed` that a thread has read, to spare others PCIe
};

GPUDT_HD std::int64_t proxy_list_at(std::int64_t bytes) {
  return (bytes + 15) / 16 * 16;
}
/// The most data of a put, a multiple of 16, whose list of runs fits the payload behind them. Runs are multiples of
/// `align` bytes (at most 16), but for the first and the last: 64 bytes cover the entries of these two and the padding.
GPUDT_HD std::int64_t proxy_listed_put(std::int64_t align) {
  return (proxy_payload - 64) * align / (align + 16) / 16 * 16;
}
GPUDT_HD std::int64_t proxy_listed_get(std::int64_t align) {
  return (proxy_payload - 64) / 16 * align / 16 * 16;
}

/// A kernel's side of the ring; each call by one thread. `Access` has
///   next(word)            fetch_add(1) of a counter of this GPU
///   count(word)           relaxed load of that counter
///   load(word)            acquire load of host memory
///   seen(word)            acquire load of what raise() has stored
///   raise(word, value)    atomic maximum, release
///   publish(word, value)  release store to host memory
///   poll()                called between two reads; does not return after the time-out
template <class Access>
class ProxyQueue {
 public:
  GPUDT_HD ProxyQueue(const ProxyPort& port, const Access& access) : port_(port), access_(access) {}

  GPUDT_HD ProxySlot& slot(std::uint64_t ticket) const { return port_.slots[ticket % proxy_slots]; }
  /// A ticket whose slot is free. The caller must publish it: an unpublished ticket blocks the ring.
  GPUDT_HD std::uint64_t take() const {
    const std::uint64_t ticket = access_.next(port_.tickets);
    if (ticket >= proxy_slots) await(ticket - proxy_slots + 1);
    return ticket;
  }
  /// Behind all that the thread knows to have been written to the slot.
  GPUDT_HD void publish(std::uint64_t ticket, ProxyCommand command) const {
    command.ticket = ticket;
    slot(ticket).command = command;
    access_.publish(&slot(ticket).ready, ticket + 1);
  }
  GPUDT_HD void await_answer(std::uint64_t ticket) const {
    while (access_.load(&slot(ticket).answered) != ticket + 1) access_.poll();
  }
  /// The answer has been read.
  GPUDT_HD void release(std::uint64_t ticket) const { access_.publish(&slot(ticket).released, ticket + 1); }
  /// Returns when all commands with earlier tickets of this GPU are complete, including other threads' puts and gets.
  GPUDT_HD void flush() const { await(access_.count(port_.tickets)); }

 private:
  GPUDT_HD void await(std::uint64_t count) const {
    if (access_.seen(port_.seen) >= count) return;
    std::uint64_t completed = 0;
    while ((completed = access_.load(port_.completed)) < count) access_.poll();
    access_.raise(port_.seen, completed);
  }

  const ProxyPort& port_;
  const Access& access_;
};

}  // namespace gpudt::initiated
