// Queues of notifications and their matching (initiated/notifications.hpp): against a model, and among host threads in
// the place of ranks, which ThreadSanitizer may watch. A capacity of 32 lets rings wrap, fill and run out of credit.
#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "initiated/notifications.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/unit.hpp"

namespace {

using namespace gpudt::initiated;
using gpudt::test::unit_random;

struct Shape {
  int gpus, ranks, capacity_log;  // ranks of each GPU
};

/// The last of lap 1, the first one, before tickets begin again at 0.
Ticket first_ticket(Shape shape) {
  return Ticket{0} - (Ticket{256} << shape.capacity_log);
}

/// The memory of all GPUs.
class Queues {
 public:
  explicit Queues(Shape shape)
      : shape_(shape),
        rings_(count(shape.gpus * shape.ranks * shape.gpus) << shape.capacity_log),
        heads_(count(shape.gpus * shape.ranks * shape.gpus), first_ticket(shape)),
        returned_(heads_.size(), first_ticket(shape)),
        credit_(heads_.size(), first_ticket(shape)),
        sent_(heads_.size(), first_ticket(shape)) {}

  Shape shape() const { return shape_; }
  /// Counters of the ranks of GPU `from` for a target.
  Ticket* sent(int from, int target) { return &sent_[pair(from, target)]; }
  std::uint64_t* credit(int from, int target) { return &credit_[pair(from, target)]; }
  Inbox inbox(int rank) {
    const std::size_t first = count(rank * shape_.gpus);
    return {&rings_[first << shape_.capacity_log],
            &heads_[first],
            &returned_[first],
            shape_.gpus,
            shape_.capacity_log,
            RankDivision(shape_.ranks)};
  }

 private:
  static std::size_t count(int n) { return static_cast<std::size_t>(n); }
  std::size_t pair(int from, int target) const { return count(from * shape_.gpus * shape_.ranks + target); }

  Shape shape_;
  std::vector<std::uint64_t> rings_;
  std::vector<Ticket> heads_, returned_;
  std::vector<std::uint64_t> credit_;
  std::vector<Ticket> sent_;
};

struct HostAccess {
  Queues* queues;
  int rank;
  const std::atomic<bool>* stop = nullptr;

  static std::uint64_t acquire(const std::uint64_t* word) {
    return std::atomic_ref(*const_cast<std::uint64_t*>(word)).load(std::memory_order_acquire);
  }
  static Ticket read_credit(const std::uint64_t* word) { return static_cast<Ticket>(acquire(word)); }
  static void store(std::uint64_t* word, std::uint64_t value) {
    std::atomic_ref(*word).store(value, std::memory_order_release);
  }
  bool go_on() const {
    std::this_thread::yield();
    return stop == nullptr || !*stop;
  }
  static void moved(int, Ticket) {}
  void return_credit(int gpu, Ticket head) const { store(queues->credit(gpu, rank), head); }
};

/// As a warp looks: at all slots of a chunk, and at several rings at once.
struct HostWarp : OneThread<HostAccess> {
  static constexpr bool looks_at_all = true;

  /// Where each of its threads looks, if anywhere, and for which lap.
  struct Aim {
    struct Slot {
      const std::uint64_t* slot = nullptr;
      std::uint32_t lap = 0;
    };
    std::array<Slot, detail::chunk> slots;
  };
  Aim aim(const Inbox& inbox, int gpu, Ticket base) const {
    return aim_at(inbox, {gpu, gpu + 1}, detail::chunk, &base);
  }
  Aim aim_at_all(const Inbox& inbox, int each) const { return aim_at(inbox, {0, inbox.gpus}, each, inbox.heads); }
  detail::Look look(const Aim& aim, const RingPattern& pattern) const {
    detail::Look seen = {0, 0, 0, 0, 0};
    for (int i = detail::chunk - 1; i >= 0; --i) {
      const Aim::Slot& mine = aim.slots[static_cast<std::size_t>(i)];
      if (mine.slot == nullptr) continue;
      const std::uint64_t word = access.acquire(mine.slot);
      const bool there = detail::lap_in(word) == mine.lap;
      const bool consumed = there && detail::window_in(word) == detail::consumed_window;
      seen.arrived |= std::uint32_t{there} << i;
      seen.consumed |= std::uint32_t{consumed} << i;
      seen.matching |= std::uint32_t{there && !consumed && pattern.matches(word)} << i;
    }
    return seen;
  }
  detail::Look look(const Inbox& inbox, int gpu, Ticket base, const RingPattern& pattern) const {
    detail::Look seen = look(aim(inbox, gpu, base), pattern);
    seen.cut();
    return seen;
  }

 private:
  static Aim aim_at(const Inbox& inbox, detail::GpuRange gpus, int each, const Ticket* bases) {
    Aim made;
    for (int i = 0; i < (gpus.end - gpus.first) * each; ++i) {
      const Ticket ticket = bases[i / each] + static_cast<Ticket>(i % each);
      made.slots[static_cast<std::size_t>(i)] = {inbox.slot(gpus.first + i / each, ticket),
                                                 detail::lap_of(ticket, inbox.capacity_log)};
    }
    return made;
  }
};

/// As a rank takes: the first slots, then what is behind them.
template <class Group>
Taken take_once(Inbox& inbox, const Group& group, const Pattern& pattern, int count, Notification& last) {
  if constexpr (Group::looks_at_all)
    if (FirstSlots<Group>::suit(inbox, pattern, count)) {
      const Taken taken = FirstSlots<Group>(inbox, group, pattern).take(inbox, group, last);
      if (taken != Taken::stuck) return taken;
    }
  return take(inbox, group, pattern, count, last);
}

bool send(Queues& queues, const HostAccess& access, int from, int target, int window, int tag) {
  const int ranks = queues.shape().ranks, gpu = from / ranks, log = queues.shape().capacity_log;
  const Ticket ticket = std::atomic_ref(*queues.sent(gpu, target)).fetch_add(1);
  const std::uint64_t* const credit = queues.credit(gpu, target);
  Ticket known = HostAccess::read_credit(credit);
  if (!await_credit(access, credit, log, ticket, known)) return false;
  access.store(queues.inbox(target).slot(gpu, ticket), notification_word(ticket, log, window, from % ranks, tag));
  return true;
}

bool has_room(Queues& queues, int from, int target) {
  const int gpu = from / queues.shape().ranks;
  return has_credit(*queues.sent(gpu, target), static_cast<Ticket>(*queues.credit(gpu, target)),
                    queues.shape().capacity_log);
}

TEST_CASE("what a word of a notification holds", "[initiated]") {
  for (const int window : {0, 7, most_windows - 1, no_window})
    for (const int source : {0, most_local_ranks - 1})
      for (const int tag : {0, 1, 0x7FFFFFFF}) {
        const std::uint64_t word = notification_word((254u << 5) + 3, 5, window, source, tag);
        CHECK(RingPattern(window, source, tag).matches(word));
        CHECK(RingPattern(any_value, source, tag).matches(word));
        CHECK(RingPattern(window, any_value, tag).matches(word));
        CHECK(RingPattern(window, source, any_value).matches(word));
        CHECK(RingPattern(any_value, any_value, any_value).matches(word));
        CHECK(!RingPattern(window ^ 1, source, any_value).matches(word));
        CHECK(!RingPattern(any_value, source ^ 1, tag).matches(word));
        CHECK(!RingPattern(window, any_value, tag ^ 1).matches(word));
        CHECK(detail::lap_in(word) == 255);
        CHECK(detail::window_in(word) == window);
        CHECK(detail::local_source_in(word) == source);
        CHECK(detail::tag_in(word) == tag);
      }
  CHECK(detail::lap_of(0, 5) == 1);
  CHECK(detail::lap_of(Ticket{255} << 5, 5) == 0);
  CHECK(detail::lap_of(Ticket{256} << 5, 5) == 1);
  CHECK(detail::lap_of(~Ticket{0}, 23) == detail::lap_of((Ticket{511} << 23), 23));
  CHECK(detail::lap_of(~Ticket{0}, 23) == 0);  // and that of ticket 0, which follows, is 1
}

TEST_CASE("the GPU of a rank without a division", "[initiated]") {
  for (int ranks = 1; ranks <= most_local_ranks; ranks += ranks < 300 ? 1 : 61)
    for (int gpu = 0; gpu < 64; ++gpu)
      for (const int rank : {gpu * ranks, gpu * ranks + ranks - 1}) REQUIRE(RankDivision(ranks).gpu_of(rank) == gpu);
  for (int rank = 0; rank < 64 * most_local_ranks; ++rank)
    REQUIRE(RankDivision(most_local_ranks - 1).gpu_of(rank) == rank / (most_local_ranks - 1));
}

/// What a rank should find: for each GPU the notifications in their order.
struct Model {
  std::vector<std::deque<Notification>> queue;

  static bool matches(const Pattern& pattern, const Notification& n) {
    return (pattern.window == any_value || pattern.window == n.window) &&
           (pattern.source == any_value || pattern.source == n.source) &&
           (pattern.tag == any_value || pattern.tag == n.tag);
  }
  int count(const Pattern& pattern) const {
    int found = 0;
    for (const auto& ring : queue)
      for (const Notification& n : ring) found += matches(pattern, n) ? 1 : 0;
    return found;
  }
  /// Takes the first of the rings [first, end) of GPUs.
  Notification take(const Pattern& pattern, std::size_t first, std::size_t end) {
    for (std::size_t gpu = first; gpu < end; ++gpu)
      for (auto n = queue[gpu].begin(); n != queue[gpu].end(); ++n)
        if (matches(pattern, *n)) {
          const Notification taken = *n;
          queue[gpu].erase(n);
          return taken;
        }
    return {};
  }
};

template <class Group>
void check_against_model(Shape shape, int most_count, std::uint64_t seed) {
  std::mt19937_64 random = unit_random(seed);
  const auto number = [&](int below) { return static_cast<int>(random() % static_cast<unsigned>(below)); };
  Queues queues(shape);
  const int target = number(shape.gpus * shape.ranks), all = shape.gpus * shape.ranks;
  const HostAccess access{&queues, target};
  const Group group{access};
  Model model{std::vector<std::deque<Notification>>(static_cast<std::size_t>(shape.gpus))};
  Inbox inbox = queues.inbox(target);
  for (int step = 0; step < 12000; ++step) {
    const int from = number(all);
    if (number(5) < 3 && has_room(queues, from, target)) {
      const Notification sent = {number(3), from, number(4)};
      REQUIRE(send(queues, access, from, target, sent.window, sent.tag));
      model.queue[static_cast<std::size_t>(from / shape.ranks)].push_back(sent);
      continue;
    }
    const auto maybe = [&](int below) { return number(2) == 0 ? any_value : number(below); };
    const Pattern pattern = {maybe(3), maybe(all), maybe(4)};
    const int count = 1 + number(most_count);
    Notification last = {-2, -2, -2};
    const Taken taken = take_once(inbox, group, pattern, count, last);
    CAPTURE(step, pattern.window, pattern.source, pattern.tag, count);
    REQUIRE((taken == Taken::all) == (model.count(pattern) >= count));
    if (taken != Taken::all) continue;
    Notification expected = {};
    // A single one may be any GPU's, but its first; more are taken of one GPU after the other.
    const std::size_t gpus = model.queue.size(), gpu = static_cast<std::size_t>(last.source / shape.ranks);
    REQUIRE(gpu < gpus);
    for (int i = 0; i < count; ++i)
      expected = count == 1 ? model.take(pattern, gpu, gpu + 1) : model.take(pattern, 0, gpus);
    REQUIRE((last.window == expected.window && last.source == expected.source && last.tag == expected.tag));
  }
}

TEST_CASE("notifications are matched in order, with wildcards", "[initiated]") {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    check_against_model<OneThread<HostAccess>>({3, 4, 5}, 1, seed);
    check_against_model<HostWarp>({3, 4, 6}, 1, seed);
    check_against_model<OneThread<HostAccess>>({1, 3, 7}, 9, seed);
    check_against_model<HostWarp>({1, 3, 5}, 9, seed);
    check_against_model<HostWarp>({8, 2, 5}, 1, seed);
    check_against_model<HostWarp>({9, 2, 5}, 1, seed);
  }
}

TEST_CASE("a full queue is told, and its places come back", "[initiated]") {
  Queues queues({1, 2, 5});
  const HostAccess access{&queues, 0};
  const HostWarp group{{access}};
  Inbox inbox = queues.inbox(0);
  Notification last;
  for (int lap = 0; lap < 600; ++lap) {  // more laps than a word can count
    for (int i = 0; i < 32; ++i) REQUIRE(send(queues, access, 1, 0, 0, i));
    CHECK(!has_room(queues, 1, 0));
    REQUIRE(take_once(inbox, group, {0, any_value, 99}, 1, last) == Taken::stuck);
    // From behind: nothing can be given back before the first is consumed.
    for (int i = 31; i > 0; --i) REQUIRE(take_once(inbox, group, {0, any_value, i}, 1, last) == Taken::all);
    CHECK(!has_room(queues, 1, 0));
    REQUIRE(take_once(inbox, group, {0, 1, any_value}, 1, last) == Taken::all);
    CHECK(last.tag == 0);
    CHECK(has_room(queues, 1, 0));
    REQUIRE(take_once(inbox, group, {0, 1, any_value}, 1, last) == Taken::none);
  }
}

TEST_CASE("a sender without credit waits until it is told not to", "[initiated]") {
  Queues queues({1, 2, 5});
  std::atomic<bool> stop = false;
  const HostAccess access{&queues, 0, &stop};
  for (int i = 0; i < 32; ++i) REQUIRE(send(queues, access, 1, 0, 0, 0));
  std::thread ends([&] { stop = true; });
  CHECK(!send(queues, access, 1, 0, 0, 0));
  ends.join();
}

/// Every rank sends to every rank: data in plain memory first, then the notification. Receivers take by random
/// patterns.
TEST_CASE("notifications among threads carry the data before them", "[initiated]") {
  constexpr int tags = 3, each = 400;
  constexpr Shape shape = {2, 3, 5};
  constexpr int all = shape.gpus * shape.ranks;
  Queues queues(shape);
  // [target][source][tag][number]: written before the notification of that number.
  std::vector<int> data(static_cast<std::size_t>(all * all * tags * each), -1);
  const auto place = [&](int target, int source, int tag, int number) -> int& {
    return data[static_cast<std::size_t>(((target * all + source) * tags + tag) * each + number)];
  };
  std::atomic<int> wrong = 0;
  const auto receiver = [&](int rank, const auto& group) {
    std::mt19937_64 random = unit_random(static_cast<std::uint64_t>(100 + rank));
    Inbox inbox = queues.inbox(rank);
    std::vector<int> seen(static_cast<std::size_t>(all * tags), 0);
    for (int left = all * tags * each; left > 0;) {
      const auto maybe = [&](int below) {
        return random() % 2 == 0 ? any_value : static_cast<int>(random() % static_cast<unsigned>(below));
      };
      Notification last;
      if (take_once(inbox, group, {any_value, maybe(all), maybe(tags)}, 1, last) != Taken::all) {
        std::this_thread::yield();
        continue;
      }
      --left;
      int& number = seen[static_cast<std::size_t>(last.source * tags + last.tag)];
      if (place(rank, last.source, last.tag, number) != number) ++wrong;
      ++number;
    }
  };
  const auto sender = [&](int rank) {
    const HostAccess access{&queues, rank};
    for (int number = 0; number < each; ++number)
      for (int tag = 0; tag < tags; ++tag)
        for (int target = 0; target < all; ++target) {
          place(target, rank, tag, number) = number;
          if (!send(queues, access, rank, target, 1, tag)) ++wrong;
        }
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < all; ++rank) {
    threads.emplace_back([&receiver, &queues, rank] {
      const HostAccess access{&queues, rank};
      if (rank % 2 == 0)
        receiver(rank, OneThread<HostAccess>{access});
      else
        receiver(rank, HostWarp{{access}});
    });
    threads.emplace_back(sender, rank);
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

}  // namespace
