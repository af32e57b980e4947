// How kernels ask their process to reach the GPUs that they do not reach by loads and stores: the ring of commands
// between the kernels of a GPU and the thread of its process that carries them out (proxy.hpp), the same for kernels
// and for tests on host threads.
//
// The ring lies in pinned host memory that the GPU maps. A thread that has something to send takes a ticket from a
// counter in the GPU's memory: ticket t owns slot t modulo proxy_slots, once the proxy has completed ticket
// t - proxy_slots. It fills the slot, data included, and publishes it. The proxy takes commands in the order of
// tickets, so that of two commands to one process the one with the lower ticket is done first, and completes them in
// this order: a put when it is in the target's memory, a get when the kernel has taken the data away. So one number,
// `completed`, says which slots are free and what a flush waits for.
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
  put,          ///< the payload becomes the target's memory
  word,         ///< `word` does
  get,          ///< the target's memory becomes the payload
  answer,       ///< between proxies: what a get has asked for
  acknowledge,  ///< between proxies: so many (`word`) puts and words of yours are done
};

/// A piece of a target that is not contiguous.
struct ProxyRun {
  std::int64_t offset;   ///< bytes from the memory's begin
  std::uint32_t packed;  ///< where it is in the packed data
  std::uint32_t bytes;
};

/// What begins a slot and a message. Of a put with runs these lie behind the data, from a multiple of 16 on; of a get
/// at the payload's begin.
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
  std::uint64_t* seen = nullptr;       ///< in this GPU's memory: what somebody has seen of `completed`, which is nearer
};

GPUDT_HD std::int64_t proxy_list_at(std::int64_t bytes) {
  return (bytes + 15) / 16 * 16;
}
/// The most data of one command with a list of runs whose lengths are multiples of `align`, at most 16: at most two
/// runs are shorter. A multiple of 16.
GPUDT_HD std::int64_t proxy_listed_put(std::int64_t align) {
  return (proxy_payload - 64) * align / (align + 16) / 16 * 16;
}
GPUDT_HD std::int64_t proxy_listed_get(std::int64_t align) {
  return (proxy_payload - 64) / 16 * align / 16 * 16;
}

/// A kernel's side of the ring; each call by one thread. `Access` has
///   next(word)          one more in a counter of this GPU: what there was
///   count(word)         that counter
///   load(word)          with acquire, what the host has stored
///   seen(word)          with acquire, what raise() has stored
///   raise(word, value)  the larger of both, with release
///   publish(word, value)  with release, for the host
///   poll()              between two looks; does not return when it has taken too long
template <class Access>
class ProxyQueue {
 public:
  GPUDT_HD ProxyQueue(const ProxyPort& port, const Access& access) : port_(port), access_(access) {}

  GPUDT_HD ProxySlot& slot(std::uint64_t ticket) const { return port_.slots[ticket % proxy_slots]; }
  /// A ticket whose slot is free; to be published, whatever happens.
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
  /// Until all whose tickets were taken before are complete, also those of other threads.
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
