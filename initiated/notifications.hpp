// Notified access: queues of notifications and their matching, the same for kernels and for tests on host threads.
//
// Each rank has one ring for each GPU, which the ranks of that GPU share. A notification is one word of 64 bits, stored
// straight into the ring, so that nothing needs to be ordered behind it; NVSHMEM's put with signal stores it behind
// data. Who sends takes a ticket from a counter on its own GPU: ticket t goes to slot t modulo the capacity, and
// carries the number of the lap, by which the receiver sees that it is new: what the slot held before is of the lap
// before, and at first all slots hold lap 0. A sender may be as many tickets ahead as the ring has slots: the receiver
// returns what it has consumed as credit, and a sender without credit waits. Nothing is ever overwritten, and a
// receiver that waits for what a full ring cannot hold any more is told so (Taken::stuck).
//
// Notifications are matched in the order of their tickets, which for one sender is that of its calls. What is consumed
// out of this order leaves a mark in its slot, and the slot is given back when all before it have been consumed.
#pragma once

#include <cstdint>

#include "datatype/traverse.hpp"

namespace gpudt::initiated {

/// A wildcard for the window, the source or the tag of a pattern.
constexpr int any_value = -1;
/// The window of notifications that belong to none.
constexpr int no_window = 2046;
constexpr int most_windows = no_window;
/// Most ranks of one GPU, and slots of a ring.
constexpr int most_local_ranks = 1 << 13;
constexpr int most_notifications = 1 << 23;

/// Tickets, heads and credit, modulo 2^32: they are at most a ring and its waiting senders apart.
using Ticket = std::uint32_t;

/// What a receiver waits for: numbers, or `any_value`.
struct Pattern {
  int window = any_value;
  int source = any_value;  ///< a rank
  int tag = any_value;
};

struct Notification {
  int window;
  int source;  ///< the rank that sent it
  int tag;     ///< from 0 on
};

namespace detail {

constexpr int consumed_window = 2047;
constexpr int chunk = 32;  // slots that are looked at together
constexpr std::uint32_t whole_chunk = ~std::uint32_t{0};

/// From 1 on, modulo 256. A ticket has bits for it in any ring: most_notifications.
GPUDT_HD std::uint32_t lap_of(Ticket ticket, int capacity_log) {
  return ((ticket >> capacity_log) + 1) & 255;
}
GPUDT_HD std::uint64_t encode(std::uint32_t lap, int window, int local_source, int tag) {
  const std::uint32_t high =
      lap << 24 | static_cast<std::uint32_t>(window) << 13 | static_cast<std::uint32_t>(local_source);
  return static_cast<std::uint64_t>(high) << 32 | static_cast<std::uint32_t>(tag);
}
GPUDT_HD std::uint32_t lap_in(std::uint64_t word) {
  return static_cast<std::uint32_t>(word >> 56);
}
GPUDT_HD int window_in(std::uint64_t word) {
  return static_cast<int>(word >> 45 & 2047);
}
GPUDT_HD int local_source_in(std::uint64_t word) {
  return static_cast<int>(word >> 32 & (most_local_ranks - 1));
}
GPUDT_HD int tag_in(std::uint64_t word) {
  return static_cast<int>(word & 0xFFFFFFFFu);
}

GPUDT_HD int count_bits(std::uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __popc(bits);
#else
  return __builtin_popcount(bits);
#endif
}
/// Of the lowest bit that is set; 32 if none is.
GPUDT_HD int lowest_set(std::uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return bits == 0 ? 32 : __ffs(static_cast<int>(bits)) - 1;
#else
  return bits == 0 ? 32 : __builtin_ctz(bits);
#endif
}
GPUDT_HD std::uint32_t low_bits(int count) {
  return count >= 32 ? whole_chunk : (std::uint32_t{1} << count) - 1;
}
/// The lowest `count` of those that are set.
GPUDT_HD std::uint32_t lowest_of(std::uint32_t bits, int count) {
  std::uint32_t taken = 0;
  for (; count > 0 && bits != 0; --count) {
    taken |= bits & (~bits + 1);
    bits &= bits - 1;
  }
  return taken;
}

/// A chunk of a ring: a bit for each slot, none behind the first that is still empty.
struct Look {
  std::uint32_t arrived, matching, consumed;
  std::uint64_t word;  ///< a group of threads: what each one has read
  int first_thread;    ///< a group of threads: which one has read the chunk's first slot

  /// Of a look at several rings: the slots that `count` threads from `first` on have read.
  GPUDT_HD Look part(int first, int count) const {
    const std::uint32_t bits = low_bits(count);
    Look mine = {arrived >> first & bits, matching >> first & bits, consumed >> first & bits, word, first};
    mine.cut();
    return mine;
  }
  GPUDT_HD void cut() {
    arrived = low_bits(lowest_set(~arrived));
    matching &= arrived;
    consumed &= arrived;
  }
};

}  // namespace detail

/// The pattern for one ring: of the source only what its words say. As bits that a word must have.
struct RingPattern {
  std::uint64_t mask, value;

  GPUDT_HD RingPattern(int window, int local_source, int tag)
      : mask(detail::encode(0, window == any_value ? 0 : 2047, local_source == any_value ? 0 : most_local_ranks - 1,
                            tag == any_value ? 0 : -1)),
        value(detail::encode(0, window == any_value ? 0 : window, local_source == any_value ? 0 : local_source,
                             tag == any_value ? 0 : tag)) {}
  /// A word that has not been consumed.
  GPUDT_HD bool matches(std::uint64_t word) const { return (word & mask) == value; }
};

// --- sending --------------------------------------------------------------------------------------------------------

/// The word for a ticket.
GPUDT_HD std::uint64_t notification_word(Ticket ticket, int capacity_log, int window, int local_source, int tag) {
  return detail::encode(detail::lap_of(ticket, capacity_log), window, local_source, tag);
}

/// Whether the slot of a ticket is free, for a sender that knows of so much credit.
GPUDT_HD bool has_credit(Ticket ticket, Ticket credit, int capacity_log) {
  return ticket - credit < Ticket{1} << capacity_log;
}

/// Waits until the slot of a ticket is free; `known` is the credit that was seen last. Access: read_credit(word) loads
/// and acquires, go_on() says whether to wait on. False: it said no; the ring is of no use any more.
template <class Access>
GPUDT_HD bool await_credit(const Access& access, const std::uint64_t* credit, int capacity_log, Ticket ticket,
                           Ticket& known) {
  while (!has_credit(ticket, known, capacity_log)) {
    if (!access.go_on()) return false;
    known = access.read_credit(credit);
  }
  return true;
}

/// Which GPU a rank belongs to, without a division: ranks are less than most_gpus * most_local_ranks = 2^19 and those
/// of a GPU at most 2^13, so that the error of the reciprocal, less than 2^13 / 2^32, does not reach the next integer.
struct RankDivision {
  std::int32_t per_gpu = 1;
  std::uint32_t magic = 0;  ///< 2^32 / per_gpu, rounded up

  RankDivision() = default;
  explicit RankDivision(int ranks_per_gpu)
      : per_gpu(ranks_per_gpu),
        magic(static_cast<std::uint32_t>(0xFFFFFFFFu / static_cast<std::uint32_t>(ranks_per_gpu) + 1)) {}
  GPUDT_HD int gpu_of(int rank) const {
    if (per_gpu == 1) return rank;
    return static_cast<int>(static_cast<std::uint64_t>(static_cast<std::uint32_t>(rank)) * magic >> 32);
  }
};

// --- receiving ------------------------------------------------------------------------------------------------------

/// The rings of one rank, one behind the other, and how far it has come in them. Only one group of threads at a time
/// may take from them.
struct Inbox {
  std::uint64_t* slots;  ///< capacity slots of GPU 0, of GPU 1 ...
  Ticket* heads;         ///< of each GPU: all tickets before have been consumed
  Ticket* returned;      ///< of each GPU: credit that its senders know of
  int gpus;
  int capacity_log;  ///< at least 5
  RankDivision ranks;

  GPUDT_HD Ticket capacity() const { return Ticket{1} << capacity_log; }
  GPUDT_HD std::uint64_t* slot(int gpu, Ticket ticket) const {
    return slots + (static_cast<std::uint64_t>(gpu) << capacity_log) + (ticket & (capacity() - 1));
  }
};

/// One thread alone, which looks at slots one after the other. Access: acquire(word) loads, store(word, value),
/// moved(gpu, head) is told of each new head, return_credit(gpu, head) tells the senders of a GPU, behind all that was
/// stored before.
template <class Access>
struct OneThread {
  static constexpr bool looks_at_all = false;
  const Access& access;

  GPUDT_HD detail::Look look(const Inbox& inbox, int gpu, Ticket base, const RingPattern& pattern) const {
    detail::Look seen = {0, 0, 0, 0, 0};
    for (int i = 0; i < detail::chunk; ++i) {
      const Ticket ticket = base + static_cast<Ticket>(i);
      const std::uint64_t word = access.acquire(inbox.slot(gpu, ticket));
      if (detail::lap_in(word) != detail::lap_of(ticket, inbox.capacity_log)) break;
      const bool consumed = detail::window_in(word) == detail::consumed_window;
      const std::uint32_t bit = std::uint32_t{1} << i;
      seen.arrived |= bit;
      if (consumed) seen.consumed |= bit;
      if (!consumed && pattern.matches(word)) seen.matching |= bit;
    }
    return seen;
  }
  /// What was seen has happened, for all threads of the group: its loads acquired.
  GPUDT_HD void acquire() const {}
  /// The word of slot `index` of the chunk that was looked at.
  GPUDT_HD std::uint64_t word(const Inbox& inbox, int gpu, Ticket base, int index, const detail::Look&) const {
    return access.acquire(inbox.slot(gpu, base + static_cast<Ticket>(index)));
  }
  GPUDT_HD void mark(const Inbox& inbox, int gpu, Ticket base, std::uint32_t consumed) const {
    for (; consumed != 0; consumed &= consumed - 1) {
      const Ticket ticket = base + static_cast<Ticket>(detail::lowest_set(consumed));
      access.store(inbox.slot(gpu, ticket),
                   detail::encode(detail::lap_of(ticket, inbox.capacity_log), detail::consumed_window, 0, 0));
    }
  }
  GPUDT_HD bool leads() const { return true; }
  GPUDT_HD void sync() const {}
  GPUDT_HD void moved(int gpu, Ticket head) const { access.moved(gpu, head); }
  GPUDT_HD void return_credit(int gpu, Ticket head) const { access.return_credit(gpu, head); }
};

enum class Taken : std::int32_t {
  none,   ///< there are not enough, and none was consumed
  all,    ///< so many were consumed
  stuck,  ///< there are not enough, and no more can come: all rings that could hold them are full of others
};

namespace detail {

struct GpuRange {
  int first, end;
};
GPUDT_HD GpuRange gpus_of(const Inbox& inbox, const Pattern& pattern) {
  if (pattern.source == any_value) return {0, inbox.gpus};
  const int gpu = inbox.ranks.gpu_of(pattern.source);
  return {gpu, gpu + 1};
}
GPUDT_HD RingPattern ring_pattern(const Inbox& inbox, const Pattern& pattern, int first_gpu) {
  const bool any = pattern.source == any_value;
  return {pattern.window, any ? any_value : pattern.source - first_gpu * inbox.ranks.per_gpu, pattern.tag};
}

GPUDT_HD Notification notification_of(const Inbox& inbox, int gpu, std::uint64_t word) {
  return {window_in(word), gpu * inbox.ranks.per_gpu + local_source_in(word), tag_in(word)};
}

/// Moves a ring's head, and tells the senders from time to time.
template <class Group>
GPUDT_HD void advance(Inbox& inbox, const Group& group, int gpu, Ticket head) {
  group.sync();  // marks have been stored, and all have read the old head
  if (group.leads()) {
    inbox.heads[gpu] = head;
    group.moved(gpu, head);
    if (head - inbox.returned[gpu] >= inbox.capacity() / 4) {
      inbox.returned[gpu] = head;
      group.return_credit(gpu, head);
    }
  }
  group.sync();
}

/// Consumes the first `left` that match in one ring; returns how many are still to be consumed. `first`: the look at
/// the first chunk if that was the last one taken, or null.
template <class Group>
GPUDT_HD int consume(Inbox& inbox, const Group& group, int gpu, const RingPattern& pattern, int left, const Look* first,
                     std::uint64_t& last) {
  const Ticket head = inbox.heads[gpu];
  Ticket new_head = head;
  bool leading = true;  // all slots so far have been consumed
  for (Ticket base = head; (left > 0 || leading) && base - head < inbox.capacity(); base += chunk) {
    const Look seen = base == head && first != nullptr ? *first : group.look(inbox, gpu, base, pattern);
    const std::uint32_t mine = lowest_of(seen.matching, left);
    left -= count_bits(mine);
    if (mine != 0 && left == 0) {
      int highest = 0;
      for (std::uint32_t bits = mine; bits != 0; bits &= bits - 1) highest = lowest_set(bits);
      last = group.word(inbox, gpu, base, highest, seen);
    }
    std::uint32_t passed = 0;
    if (leading) {
      const int count = lowest_set(~(seen.consumed | mine));
      new_head += static_cast<Ticket>(count);
      passed = low_bits(count);
      leading = count == chunk;
    }
    if ((mine & ~passed) != 0) group.mark(inbox, gpu, base, mine & ~passed);
    if (seen.arrived != whole_chunk) break;
  }
  if (new_head != head) advance(inbox, group, gpu, new_head);
  return left;
}

/// Most GPUs whose rings a group of threads looks at together.
constexpr int most_rings_at_once = 8;

}  // namespace detail

/// A wait for one notification by a group of threads that look at slots together, each always at the same: the first
/// ones of one ring, or of all. The usual case, in few instructions; heads may not move meanwhile.
template <class Group>
class FirstSlots {
 public:
  static GPUDT_HD bool suit(const Inbox& inbox, const Pattern& pattern, int count) {
    return count == 1 && (pattern.source != any_value || inbox.gpus <= detail::most_rings_at_once);
  }
  GPUDT_HD FirstSlots(const Inbox& inbox, const Group& group, const Pattern& pattern)
      : gpus_(detail::gpus_of(inbox, pattern)),
        each_(gpus_.end - gpus_.first == 1 ? detail::chunk : detail::chunk / inbox.gpus),
        wanted_(detail::ring_pattern(inbox, pattern, gpus_.first)),
        aim_(each_ == detail::chunk ? group.aim(inbox, gpus_.first, inbox.heads[gpus_.first])
                                    : group.aim_at_all(inbox, each_)) {}

  /// Taken::all: one was consumed, and `last` is it; none: there is no other either; stuck: more must be looked at, by
  /// take().
  GPUDT_HD Taken take(Inbox& inbox, const Group& group, Notification& last) const {
    using namespace detail;
    const Look all = group.look(aim_, wanted_);
    if (all.arrived == 0) return Taken::none;
    bool more = false;
    for (int gpu = gpus_.first; gpu < gpus_.end; ++gpu) {
      const Look seen = all.part((gpu - gpus_.first) * each_, each_);
      more = more || seen.arrived == low_bits(each_);
      if (seen.matching != 0) return take_first(inbox, group, gpu, seen, last);
    }
    return more ? Taken::stuck : Taken::none;
  }

 private:
  /// The first one that matches.
  GPUDT_HD Taken take_first(Inbox& inbox, const Group& group, int gpu, const detail::Look& seen,
                            Notification& last) const {
    using namespace detail;
    const std::uint32_t mine = lowest_of(seen.matching, 1);
    const int passed = lowest_set(~(seen.consumed | mine));
    if (passed >= each_) return Taken::stuck;  // the head comes to slots that were not looked at
    group.acquire();
    const Ticket head = inbox.heads[gpu];
    last = notification_of(inbox, gpu, group.word(inbox, gpu, head, lowest_set(mine), seen));
    if ((mine & ~low_bits(passed)) != 0) group.mark(inbox, gpu, head, mine);
    if (passed > 0) advance(inbox, group, gpu, head + static_cast<Ticket>(passed));
    return Taken::all;
  }

  detail::GpuRange gpus_;
  int each_;
  RingPattern wanted_;
  typename Group::Aim aim_;
};

/// Consumes the first `count` (at least 1) notifications that match, if there are so many; `last` is the latest of
/// them. To be called by all threads of the group, which get the same answer.
template <class Group>
GPUDT_HD Taken take(Inbox& inbox, const Group& group, const Pattern& pattern, int count, Notification& last) {
  const detail::GpuRange gpus = detail::gpus_of(inbox, pattern);
  const RingPattern wanted = detail::ring_pattern(inbox, pattern, gpus.first);
  int found = 0;
  bool stuck = true;
  std::uint64_t word = 0;
  for (int gpu = gpus.first; gpu < gpus.end && found < count; ++gpu) {
    const Ticket head = inbox.heads[gpu];
    for (Ticket base = head; found < count && base - head < inbox.capacity(); base += detail::chunk) {
      const detail::Look seen = group.look(inbox, gpu, base, wanted);
      const int here = detail::count_bits(seen.matching);
      if (base == head && here >= count) {  // the usual case: one look does
        group.acquire();
        detail::consume(inbox, group, gpu, wanted, count, &seen, word);
        last = detail::notification_of(inbox, gpu, word);
        return Taken::all;
      }
      found += here;
      if (seen.arrived != detail::whole_chunk) {
        stuck = false;
        break;
      }
    }
  }
  if (found < count) return stuck ? Taken::stuck : Taken::none;
  group.acquire();
  int left = count;
  for (int gpu = gpus.first; gpu < gpus.end && left > 0; ++gpu) {
    left = detail::consume(inbox, group, gpu, wanted, left, nullptr, word);
    if (left == 0) last = detail::notification_of(inbox, gpu, word);
  }
  return Taken::all;
}

}  // namespace gpudt::initiated
