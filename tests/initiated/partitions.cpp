// Partitioned communication as kernels and their hosts share it (initiated/partitions.hpp, partition_calls.hpp): which
// calls match, which partitions belong together and where they lie, against plain models; and rounds among host threads
// in the place of blocks, which ThreadSanitizer may watch.
#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "datatype/decode.hpp"
#include "device/kernels/kernel_host.hpp"
#include "initiated/partition_calls.hpp"
#include "initiated/partitions.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/random_type.hpp"
#include "tests/support/unit.hpp"

namespace {

using namespace gpudt::initiated;
using gpudt::test::RandomType;
using gpudt::test::unit_random;

int below(std::mt19937_64& random, int limit) {
  return static_cast<int>(random() % static_cast<unsigned>(limit));
}

PartitionedCall call_of(bool sends, int partner, int tag, int partitions, std::int64_t bytes) {
  PartitionedCall call;
  call.sends = sends ? 1 : 0;
  call.partner = partner;
  call.tag = tag;
  call.partitions = partitions;
  call.bytes = bytes;
  return call;
}

TEST_CASE("partitioned calls match in order, by process and tag", "[initiated]") {
  std::mt19937_64 random = unit_random(1);
  constexpr int processes = 3, messages = 40;
  PartitionedCalls calls(processes);
  struct Expected {
    int from, send, to, receive;
  };
  std::vector<Expected> expected;
  // Receives come behind their sends by random delays, in the order of each process and tag.
  std::deque<Expected> pending;
  const auto receive = [&](std::size_t which) {
    Expected message = pending[which];
    pending.erase(pending.begin() + static_cast<std::ptrdiff_t>(which));
    const PartitionedCall& send = calls[static_cast<std::size_t>(message.from)][static_cast<std::size_t>(message.send)];
    auto& theirs = calls[static_cast<std::size_t>(message.to)];
    message.receive = static_cast<int>(theirs.size());
    theirs.push_back(call_of(false, message.from, send.tag, send.partitions * 2, send.bytes / 2));
    expected.push_back(message);
  };
  const auto first_like = [&](std::size_t which) {
    const auto tag = [&](const Expected& each) {
      return calls[static_cast<std::size_t>(each.from)][static_cast<std::size_t>(each.send)].tag;
    };
    for (std::size_t i = 0;; ++i)
      if (pending[i].from == pending[which].from && pending[i].to == pending[which].to &&
          tag(pending[i]) == tag(pending[which]))
        return i;
  };
  for (int i = 0; i < messages; ++i) {
    const int from = below(random, processes), to = below(random, processes);
    auto& mine = calls[static_cast<std::size_t>(from)];
    pending.push_back({from, static_cast<int>(mine.size()), to, -1});
    mine.push_back(call_of(true, to, below(random, 2), 1 + below(random, 4), 8 * below(random, 4)));
    while (!pending.empty() && below(random, 2) == 0)
      receive(first_like(static_cast<std::size_t>(below(random, static_cast<int>(pending.size())))));
  }
  while (!pending.empty()) receive(0);
  calls[0].push_back(call_of(true, -1, 0, 3, 8));

  const CallMatcher matcher(calls);
  std::int64_t most = 0;
  int most_receives = 0;
  for (int process = 0; process < processes; ++process) {
    std::int64_t end = 0;  // the words of a process's calls lie one behind the other
    int receives = 0;
    const auto& mine = calls[static_cast<std::size_t>(process)];
    for (int i = 0; i < static_cast<int>(mine.size()); ++i) {
      const PartitionedCall& call = mine[static_cast<std::size_t>(i)];
      const PartitionedMatch& match = matcher.of(process, i);
      CHECK(match.words == end);
      CHECK(match.words % words_step == 0);
      end += first_word + (call.sends != 0 ? (call.partitions + 1) / 2 : call.partitions / 2);
      end = (end + words_step - 1) / words_step * words_step;
      receives += call.sends != 0 ? 0 : 1;
    }
    most = std::max(most, end);
    most_receives = std::max(most_receives, receives);
  }
  CHECK(matcher.most_words() == most);
  CHECK(matcher.most_receives() == most_receives);
  for (const Expected& each : expected) {
    CHECK(matcher.of(each.from, each.send).call == each.receive);
    CHECK(matcher.of(each.to, each.receive).call == each.send);
  }
  CHECK(matcher.of(0, static_cast<int>(calls[0].size()) - 1).call == -1);
}

TEST_CASE("calls that do not match are refused", "[initiated]") {
  const auto refusal = [](const PartitionedCalls& calls) -> std::string {
    try {
      const CallMatcher matcher(calls);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  CHECK(refusal({{call_of(true, 1, 3, 1, 8)}, {}}) ==
        "World::match: 1 calls of psend_init and 0 of precv_init from process 0 to process 1 with tag 3");
  CHECK(refusal({{call_of(true, 1, 3, 1, 8)}, {call_of(false, 0, 4, 1, 8)}}).find("with tag 3") != std::string::npos);
  CHECK(refusal({{call_of(true, 1, 3, 2, 8)}, {call_of(false, 0, 3, 3, 4)}}) ==
        "World::match: 2 partitions of 8 bytes, and of the receive 3 of 4, from process 0 to process 1 with tag 3");
  CHECK(refusal({{call_of(true, 1, 3, 2, 8)}, {call_of(false, 0, 3, 4, 4)}}).empty());
}

TEST_CASE("a partition that is received waits for those that it consists of", "[initiated]") {
  std::mt19937_64 random = unit_random(2);
  for (int trial = 0; trial < 2000; ++trial) {
    const int sent = 1 + below(random, 12), received = 1 + below(random, 12);
    const std::int64_t all = std::lcm(sent, received) * below(random, 4);
    KernelRequest receive;
    receive.partitions = received;
    receive.flags = sent;
    receive.bytes = all / received;
    receive.sent_bytes = all / sent;
    for (int partition = 0; partition < received; ++partition) {
      PartitionRange expected = {sent, 0};
      for (int part = 0; part < sent; ++part)
        if (all == 0 || (part * receive.sent_bytes < (partition + 1) * receive.bytes &&
                         partition * receive.bytes < (part + 1) * receive.sent_bytes))
          expected = {std::min(expected.first, part), part + 1};
      const PartitionRange parts = parts_of(receive, partition);
      REQUIRE((parts.first == expected.first && parts.end == expected.end));
    }
  }
}

/// Where packed bytes [begin, begin + bytes) of so many elements are.
std::vector<std::int64_t> places_of(const gpudt::datatype::Layout& layout, std::int64_t count, std::int64_t begin,
                                    std::int64_t bytes) {
  const KernelLayout kernel = make_kernel_layout(layout, count, layout.program());
  const SideMap map = {&kernel, begin + bytes};
  std::vector<std::int64_t> places;
  for (std::int64_t i = begin; i < begin + bytes; ++i) places.push_back(map.place(i, gpudt::device::NoTile()).offset);
  return places;
}

TEST_CASE("partitions lie where those of the whole message do", "[initiated]") {
  std::mt19937_64 random = unit_random(3);
  int alike = 0;
  for (int trial = 0; trial < 200; ++trial) {
    const RandomType from(random, {.max_span = 200, .max_runs = 20}), to(random, {.max_span = 200, .max_runs = 20});
    if (from.size() == 0 || to.size() == 0) continue;
    const std::int64_t unit = std::lcm(from.size(), to.size()), times = 1 + below(random, 4);
    if (unit * times > 5000) continue;
    const auto side = [&](bool sends, std::int64_t size) {
      const std::int64_t elements = unit * times / size;
      int partitions = 1 + below(random, 8);
      while (elements % partitions != 0) --partitions;
      PartitionedCall call = call_of(sends, 0, 0, partitions, elements / partitions * size);
      call.count = elements / partitions;
      return call;
    };
    const PartitionedCall send = side(true, from.size()), receive = side(false, to.size());
    const auto from_layout = gpudt::datatype::decode(from.handle()), to_layout = gpudt::datatype::decode(to.handle());
    const PartitionSteps steps = steps_of(send, from_layout->extent(), receive, to_layout->extent());
    alike += steps.begin_step == 0 && send.partitions > 1 ? 1 : 0;
    for (int partition = 0; partition < send.partitions; ++partition) {
      const auto check = [&](const auto& layout, std::int64_t all, std::int64_t count, std::int64_t step) {
        std::vector<std::int64_t> places = places_of(layout, count, partition * steps.begin_step, send.bytes);
        for (std::int64_t& place : places) place += partition * step;
        REQUIRE(places == places_of(layout, all, partition * send.bytes, send.bytes));
      };
      check(*from_layout, send.partitions * send.count, steps.from_count, steps.from_step);
      check(*to_layout, receive.partitions * receive.count, steps.to_count, steps.to_step);
    }
  }
  CHECK(alike > 10);
}

// --- rounds ---------------------------------------------------------------------------------------------------------

/// What partitions.hpp asks of memory, of threads of the host.
struct ThreadAccess {
  static Ticket count_up(Ticket* counter) { return std::atomic_ref(*counter).fetch_add(1, std::memory_order_relaxed); }
  static void count_down(Ticket* counter) { std::atomic_ref(*counter).fetch_sub(1, std::memory_order_relaxed); }
  static std::uint64_t load(const std::uint64_t* word) {
    return std::atomic_ref(*const_cast<std::uint64_t*>(word)).load(std::memory_order_acquire);
  }
  static void acquire() {}  // load() has: ThreadSanitizer knows no fences
  static void poll() { std::this_thread::yield(); }
};
void store(std::uint64_t& word, std::uint64_t value) {
  std::atomic_ref(word).store(value, std::memory_order_release);
}

/// Partitions of some ints, from a sender's threads to a receiver's.
class ThreadedMessage {
 public:
  static constexpr int sent = 12, received = 8, ints = 24 * sent;

  ThreadedMessage() {
    send_.round = &sender_round_;
    send_.sends = 1;
    send_.partitions = sent;
    send_.partner = 0;
    send_.bytes = ints / sent * 4;
    send_.granted = &granted_;
    send_.claimed = claimed_.data();
    receive_.round = &receiver_round_;
    receive_.partitions = received;
    receive_.partner = 0;
    receive_.flags = sent;
    receive_.bytes = ints / received * 4;
    receive_.sent_bytes = send_.bytes;
    receive_.arrived = arrived_.data();
  }
  void start_send(std::uint64_t round) { store(sender_round_, round); }
  void start_receive(std::uint64_t round) {
    store(receiver_round_, round);
    store(granted_, round);
  }
  Status pready(int partition) {
    std::uint64_t round = 0;
    const Status status = claim_partition(send_, partition, ThreadAccess(), round);
    if (status != Status::ok) return status;
    for (int i = 0; i < ints / sent; ++i)
      data_[at(partition, sent, i)] = static_cast<int>(round) * ints + i + partition;
    store(arrived_[static_cast<std::size_t>(partition)], round);
    return status;
  }
  bool parrived(int partition) const {
    const ThreadAccess access;
    return have_arrived(receive_, parts_of(receive_, partition), access.load(receive_.round), access, 0, 1);
  }
  bool is_right(int partition, std::uint64_t round) const {
    for (int i = 0; i < ints / received; ++i) {
      const std::size_t place = at(partition, received, i);
      const int part = static_cast<int>(place) / (ints / sent);
      if (data_[place] != static_cast<int>(round) * ints + static_cast<int>(place) - part * (ints / sent) + part)
        return false;
    }
    return true;
  }

 private:
  static std::size_t at(int partition, int partitions, int i) {
    return static_cast<std::size_t>(partition * (ints / partitions) + i);
  }

  std::uint64_t sender_round_ = 0, receiver_round_ = 0, granted_ = 0;
  std::vector<Ticket> claimed_ = std::vector<Ticket>(sent);
  std::vector<std::uint64_t> arrived_ = std::vector<std::uint64_t>(sent);
  std::vector<int> data_ = std::vector<int>(ints);
  KernelRequest send_, receive_;
};

TEST_CASE("rounds of partitions among threads do not overtake", "[initiated]") {
  static constexpr int senders = 3, receivers = 2;
  constexpr std::uint64_t rounds = 100;
  ThreadedMessage message;
  std::atomic<int> wrong = 0;
  REQUIRE(message.pready(0) == Status::not_started);
  REQUIRE(message.parrived(0));  // not active
  // The hosts' threads start rounds; the others are their kernels of one round.
  std::thread sender([&] {
    for (std::uint64_t round = 1; round <= rounds; ++round) {
      message.start_send(round);
      std::vector<std::thread> kernel;
      for (int thread = 0; thread < senders; ++thread)
        kernel.emplace_back([&message, &wrong, thread] {
          for (int i = thread; i < ThreadedMessage::sent; i += senders)
            wrong += message.pready(ThreadedMessage::sent - 1 - i) == Status::ok ? 0 : 1;
        });
      for (std::thread& thread : kernel) thread.join();
      wrong += message.pready(static_cast<int>(round) % ThreadedMessage::sent) == Status::not_started ? 0 : 1;
    }
  });
  std::thread receiver([&] {
    for (std::uint64_t round = 1; round <= rounds; ++round) {
      for (int i = 0; i < ThreadedMessage::received && round > 1; ++i)  // still there
        wrong += message.is_right(i, round - 1) ? 0 : 1;
      message.start_receive(round);
      std::vector<std::thread> kernel;
      for (int thread = 0; thread < receivers; ++thread)
        kernel.emplace_back([&message, &wrong, thread, round] {
          for (int i = thread; i < ThreadedMessage::received; i += receivers) {
            while (!message.parrived(i)) std::this_thread::yield();
            wrong += message.is_right(i, round) ? 0 : 1;
          }
        });
      for (std::thread& thread : kernel) thread.join();
    }
  });
  sender.join();
  receiver.join();
  CHECK(wrong == 0);
  CHECK(message.pready(-1) == Status::bad_partition);
  CHECK(message.pready(ThreadedMessage::sent) == Status::bad_partition);
  CHECK(check_partition(KernelRequest{}, true, 0) == Status::bad_request);
}

}  // namespace
