// The proxies' protocol (initiated/proxy.hpp) without a GPU: threads in the place of kernels, host memory in that of
// windows, copies that are made late. Every process sends to every other at once: data of random layouts with a
// notification behind them, which their receiver compares with what the same random numbers make of them, gets, and
// gets behind a flush of what was put. At last a command for memory that there is not: its target's proxy gives up, and
// the one that waits says so. usage: mpirun -np 3 proxy [STEPS [SEED]]
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <vector>

#include "initiated/proxy.hpp"

namespace {

using namespace gpudt::initiated;
using Bytes = std::vector<char>;

constexpr int kernels = 3;
constexpr std::int64_t area_bytes = 150'000, pattern_bytes = 200'000;

std::uint64_t acquire(const std::uint64_t* word) {
  return std::atomic_ref(*const_cast<std::uint64_t*>(word)).load(std::memory_order_acquire);
}

/// Copies in their order, but late.
class LateCopies final : public ProxyCopies {
 public:
  explicit LateCopies(unsigned seed) : random_(seed) {}
  void begin() override {}
  void to_window(char* window, const char* buffer, std::size_t bytes, std::size_t rows, std::size_t stride) override {
    copies_.push_back({window, buffer, bytes, rows, stride, bytes, false});
  }
  void from_window(char* buffer, const char* window, std::size_t bytes, std::size_t rows, std::size_t stride) override {
    copies_.push_back({buffer, window, bytes, rows, bytes, stride, false});
  }
  void store(char* window, const std::uint64_t* word) override {
    copies_.push_back({window, reinterpret_cast<const char*>(word), sizeof *word, 1, 0, 0, true});
  }
  std::uint64_t mark() override { return done_ + copies_.size(); }
  bool reached(std::uint64_t mark) override {
    for (auto left = random_() % 8; left > 0 && !copies_.empty(); --left) copy();
    return done_ >= mark;
  }
  bool busy() override { return random_() % 64 != 0; }

 private:
  struct Copy {
    char* to;
    const char* from;
    std::size_t bytes, rows, to_stride, from_stride;
    bool is_word;
  };
  void copy() {
    const Copy& copy = copies_.front();
    if (copy.is_word) {
      std::uint64_t word = 0;
      std::memcpy(&word, copy.from, sizeof word);
      std::atomic_ref(*reinterpret_cast<std::uint64_t*>(copy.to)).store(word, std::memory_order_release);
    } else {
      for (std::size_t row = 0; row < copy.rows; ++row)
        std::memcpy(copy.to + row * copy.to_stride, copy.from + row * copy.from_stride, copy.bytes);
    }
    copies_.pop_front();
    ++done_;
  }

  std::minstd_rand random_;
  std::deque<Copy> copies_;
  std::uint64_t done_ = 0;
};

/// What a kernel's thread does with memory.
struct HostAccess {
  static std::uint64_t next(std::uint64_t* word) { return std::atomic_ref(*word).fetch_add(1); }
  static std::uint64_t count(std::uint64_t* word) { return acquire(word); }
  static std::uint64_t load(const std::uint64_t* word) { return acquire(word); }
  static std::uint64_t seen(const std::uint64_t* word) { return acquire(word); }
  static void raise(std::uint64_t* word, std::uint64_t value) {
    std::uint64_t old = acquire(word);
    while (old < value && !std::atomic_ref(*word).compare_exchange_weak(old, value)) {
    }
  }
  static void publish(std::uint64_t* word, std::uint64_t value) {
    std::atomic_ref(*word).store(value, std::memory_order_release);
  }
  static void poll() { std::this_thread::yield(); }
};

/// Where packed data lie: pieces with ascending `packed`.
struct Layout {
  std::int64_t bytes = 0, align = 1;
  bool listed = false;  ///< else one piece
  std::vector<ProxyRun> runs;
};

Layout random_layout(std::mt19937_64& random, std::int64_t room) {
  const auto up_to = [&](std::int64_t most) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most + 1));
  };
  Layout made;
  made.listed = up_to(1) == 0;
  if (!made.listed) {
    made.bytes = up_to(3) == 0 ? up_to(room) : up_to(500);
    const std::int64_t offset = up_to(room - made.bytes);
    made.runs.push_back({offset, 0, static_cast<std::uint32_t>(made.bytes)});
    return made;
  }
  made.align = std::int64_t{1} << up_to(4);
  const bool regular = up_to(1) == 0;
  const std::int64_t most = up_to(1) == 0 ? 3 : 600, length = 1 + up_to(15), gap = up_to(5);
  for (std::int64_t at = up_to(100) * made.align, i = up_to(most); i >= 0; --i) {
    const std::int64_t bytes = (regular ? length : 1 + up_to(15)) * made.align;
    at += (regular ? gap : up_to(5)) * made.align;
    if (at + bytes > room) break;
    made.runs.push_back({at, static_cast<std::uint32_t>(made.bytes), static_cast<std::uint32_t>(bytes)});
    at += bytes;
    made.bytes += bytes;
  }
  return made;
}

/// Packed bytes [begin, end) of a layout.
std::vector<ProxyRun> cut(const Layout& layout, std::int64_t begin, std::int64_t end) {
  std::vector<ProxyRun> cut;
  for (const ProxyRun& run : layout.runs) {
    const std::int64_t first = std::max<std::int64_t>(run.packed, begin);
    const std::int64_t last = std::min<std::int64_t>(std::int64_t{run.packed} + run.bytes, end);
    if (first < last)
      cut.push_back({run.offset + first - run.packed, static_cast<std::uint32_t>(first - begin),
                     static_cast<std::uint32_t>(last - first)});
  }
  return cut;
}

/// What one process sends to a kernel of another, and what that makes of its area.
struct Message {
  Layout layout;
  Bytes data;
  bool signalled = false, flushed = false;

  Message(int from, int to, int kernel, std::uint64_t number, unsigned seed)
      : Message(std::mt19937_64(((seed * 64 + static_cast<unsigned>(from)) * 64 + static_cast<unsigned>(to)) * 64 +
                                static_cast<unsigned>(kernel) + number * 0x9E3779B97F4A7C15u)) {}
  explicit Message(std::mt19937_64 random) : layout(random_layout(random, area_bytes)) {
    data.resize(static_cast<std::size_t>(layout.bytes));
    for (char& byte : data) byte = static_cast<char>(random());
    signalled = random() % 2 == 0;
    flushed = random() % 4 == 0;
  }
  void unpack(char* area) const {
    for (const ProxyRun& run : layout.runs) std::memcpy(area + run.offset, data.data() + run.packed, run.bytes);
  }
};

/// What a process has: its memory, its ring, its proxy.
struct Process {
  Process(MPI_Comm comm, unsigned seed, std::uint64_t timeout_ns) : copies(seed) {
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    window.resize(static_cast<std::size_t>(pattern_bytes + area_bytes * size * kernels));
    for (std::int64_t i = 0; i < pattern_bytes; ++i) window[static_cast<std::size_t>(i)] = pattern(rank, i);
    queues.resize(static_cast<std::size_t>(2 * size * kernels));
    slots = std::unique_ptr<ProxySlot[]>(new ProxySlot[proxy_slots]());
    messages.resize(Proxy::buffers * Proxy::message_bytes + 64);
    const auto misaligned = reinterpret_cast<std::uintptr_t>(messages.data()) % 64;
    port = {slots.get(), &completed, &tickets, &seen};
    proxy = std::make_unique<Proxy>(comm, Proxy::Memory{slots.get(), &completed, messages.data() + (64 - misaligned)},
                                    copies, timeout_ns);
    proxy->expose(0, window.data(), static_cast<std::int64_t>(window.size()));
    proxy->expose(queue_memory, reinterpret_cast<char*>(queues.data()), static_cast<std::int64_t>(queues.size() * 8));
  }
  static char pattern(int process, std::int64_t at) { return static_cast<char>(at * 31 + at / 251 + process); }
  std::int64_t area(int from, int kernel) const { return pattern_bytes + area_bytes * (from * kernels + kernel); }
  static std::int64_t arrival(int from, int kernel) { return 16 * (from * kernels + kernel); }
  static std::int64_t credit(int of, int kernel) { return arrival(of, kernel) + 8; }
  std::uint64_t word(std::int64_t offset) const { return acquire(&queues[static_cast<std::size_t>(offset / 8)]); }

  int rank = 0, size = 1;
  Bytes window, messages;
  std::vector<std::uint64_t> queues;
  std::unique_ptr<ProxySlot[]> slots;
  std::uint64_t completed = 0, tickets = 0, seen = 0;
  ProxyPort port;
  LateCopies copies;
  std::unique_ptr<Proxy> proxy;
};

/// A thread in the place of a block.
class Kernel {
 public:
  Kernel(Process& process, int number, std::uint64_t steps, unsigned seed)
      : process_(process),
        number_(number),
        steps_(steps),
        seed_(seed),
        random_(seed + static_cast<unsigned>(process.rank * kernels + number)),
        sent_(static_cast<std::size_t>(process.size)),
        got_(sent_.size()),
        model_(sent_.size(), Bytes(static_cast<std::size_t>(area_bytes))) {}

  void run() {
    for (bool more = true; more;) {
      more = false;
      for (int other = 0; other < process_.size; ++other) {
        const auto i = static_cast<std::size_t>(other);
        if (got_[i] < steps_) receive_from(other);
        if (sent_[i] < steps_ && process_.word(Process::credit(other, number_)) == sent_[i]) send_to(other);
        more = more || got_[i] < steps_ || sent_[i] < steps_;
      }
      std::this_thread::yield();
    }
    queue_.flush();
  }

 private:
  void receive_from(int other) {
    const auto i = static_cast<std::size_t>(other);
    const std::uint64_t word = process_.word(Process::arrival(other, number_));
    if (word == got_[i]) return;
    if (word != got_[i] + 1) throw std::runtime_error("a notification that was not sent");
    const Message message(other, process_.rank, number_, ++got_[i], seed_);
    message.unpack(model_[i].data());
    if (std::memcmp(model_[i].data(), process_.window.data() + process_.area(other, number_), area_bytes) != 0)
      throw std::runtime_error("wrong data behind a notification");
    send_word(other, Process::credit(process_.rank, number_), got_[i]);
  }
  void send_to(int other) {
    const std::uint64_t number = ++sent_[static_cast<std::size_t>(other)];
    const Message message(process_.rank, other, number_, number, seed_);
    const std::int64_t area = process_.area(process_.rank, number_);
    const std::int64_t notification = Process::arrival(process_.rank, number_);
    const bool signalled = message.signalled && !message.layout.listed && message.layout.bytes > 0 && !message.flushed;
    put(other, area, message, signalled ? notification : -1, number);
    if (message.flushed) {
      queue_.flush();
      if (get(other, area, message.layout) != message.data) throw std::runtime_error("wrong data behind a flush");
    }
    if (!signalled) send_word(other, notification, number);
    if (random_() % 3 == 0) get_pattern(other);
  }
  void send_word(int target, std::int64_t offset, std::uint64_t value) {
    ProxyCommand command = {ProxyCall::word, target, queue_memory};
    command.offset = offset;
    command.word = value;
    queue_.publish(queue_.take(), command);
  }
  /// The command for some of a layout's bytes; its list, in any order, at `list`.
  ProxyCommand command_of(ProxyCall call, int target, std::int64_t base, const Layout& layout, std::int64_t begin,
                          std::int64_t end, char* list) {
    std::vector<ProxyRun> runs = cut(layout, begin, end);
    for (ProxyRun& run : runs) run.offset += base;
    ProxyCommand command = {call, target, 0};
    command.bytes = end - begin;
    command.offset = runs.empty() ? base : runs.front().offset;
    if (!layout.listed) return command;
    std::shuffle(runs.begin(), runs.end(), random_);
    command.runs = static_cast<std::uint32_t>(runs.size());
    std::memcpy(list, runs.data(), runs.size() * sizeof(ProxyRun));
    return command;
  }
  void put(int target, std::int64_t base, const Message& message, std::int64_t signal, std::uint64_t word) {
    const Layout& layout = message.layout;
    const std::int64_t step = layout.listed ? proxy_listed_put(layout.align) : proxy_payload;
    for (std::int64_t begin = 0, end = 0; begin < layout.bytes; begin = end) {
      end = std::min(begin + step, layout.bytes);
      const std::uint64_t ticket = queue_.take();
      ProxySlot& slot = queue_.slot(ticket);
      std::memcpy(slot.payload, message.data.data() + begin, static_cast<std::size_t>(end - begin));
      ProxyCommand command =
          command_of(ProxyCall::put, target, base, layout, begin, end, slot.payload + proxy_list_at(end - begin));
      if (end == layout.bytes) {
        command.signal = signal;
        command.word = word;
      }
      queue_.publish(ticket, command);
    }
  }
  Bytes get(int target, std::int64_t base, const Layout& layout) {
    Bytes data(static_cast<std::size_t>(layout.bytes));
    const std::int64_t step = layout.listed ? proxy_listed_get(layout.align) : proxy_payload;
    for (std::int64_t begin = 0, end = 0; begin < layout.bytes; begin = end) {
      end = std::min(begin + step, layout.bytes);
      const std::uint64_t ticket = queue_.take();
      ProxySlot& slot = queue_.slot(ticket);
      queue_.publish(ticket, command_of(ProxyCall::get, target, base, layout, begin, end, slot.payload));
      queue_.await_answer(ticket);
      std::memcpy(data.data() + begin, slot.payload, static_cast<std::size_t>(end - begin));
      queue_.release(ticket);
    }
    return data;
  }
  void get_pattern(int target) {
    const Layout layout = random_layout(random_, pattern_bytes);
    const Bytes data = get(target, 0, layout);
    for (const ProxyRun& run : layout.runs)
      for (std::uint32_t i = 0; i < run.bytes; ++i)
        if (data[run.packed + i] != Process::pattern(target, run.offset + i)) throw std::runtime_error("a wrong get");
  }

  Process& process_;
  int number_;
  std::uint64_t steps_;
  unsigned seed_;
  std::mt19937_64 random_;
  HostAccess access_;
  ProxyQueue<HostAccess> queue_{process_.port, access_};
  std::vector<std::uint64_t> sent_, got_;
  std::vector<Bytes> model_;
};

void run(Process& process, std::uint64_t steps, unsigned seed) {
  std::vector<std::thread> threads;
  for (int kernel = 0; kernel < kernels; ++kernel)
    threads.emplace_back([&, kernel] {
      try {
        Kernel(process, kernel, steps, seed).run();
      } catch (const std::exception& error) {
        std::fprintf(stderr, "process %d, kernel %d: %s\n", process.rank, kernel, error.what());
        std::_Exit(1);
      }
    });
  for (std::thread& thread : threads) thread.join();
}

bool verified(MPI_Comm comm, std::uint64_t steps, unsigned seed) {
  Process process(comm, seed, 0);
  MPI_Barrier(MPI_COMM_WORLD);  // all have exposed their memory
  run(process, steps, seed);
  process.proxy->drain();
  MPI_Barrier(MPI_COMM_WORLD);
  process.proxy->stop();
  if (process.rank == 0)
    std::printf("%d processes of %d kernels, %llu messages to each: verified; %llu commands of process 0\n",
                process.size, kernels, static_cast<unsigned long long>(steps),
                static_cast<unsigned long long>(process.tickets));
  return process.proxy->failure().empty();
}

/// The last process gets a command for a window that it does not have.
bool failure_is_told(MPI_Comm comm) {
  Process process(comm, 1, 300'000'000);
  MPI_Barrier(MPI_COMM_WORLD);
  bool told = process.rank != 0 && process.rank != process.size - 1;
  if (process.rank == 0) {
    const HostAccess access;
    const ProxyQueue<HostAccess> queue(process.port, access);
    queue.publish(queue.take(), {ProxyCall::word, process.size - 1, 7});
    try {
      process.proxy->drain();
    } catch (const std::runtime_error&) {
      told = true;
    }
  }
  MPI_Barrier(MPI_COMM_WORLD);
  if (process.rank == process.size - 1) told = process.proxy->failure() == "a command for window 7, which there is not";
  process.proxy->stop();
  return told;
}

}  // namespace

int main(int argc, char** argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  if (level < MPI_THREAD_MULTIPLE) return 77;
  const auto steps = static_cast<std::uint64_t>(argc > 1 ? std::atoi(argv[1]) : 150);
  const auto seed = static_cast<unsigned>(argc > 2 ? std::atoi(argv[2]) : 1);
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  const bool right = verified(comm, steps, seed) && failure_is_told(comm);
  MPI_Comm_free(&comm);
  MPI_Finalize();
  return right ? 0 : 1;
}
