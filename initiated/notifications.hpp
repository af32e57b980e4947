// Notified access: queues of notifications and their matching, the same for kernels and for tests on host threads.
//
// Each rank has one ring for each GPU, which the ranks of that GPU share. A notification is one word of 64 bits, stored
// straight into the ring, so that nothing needs to be ordered behind it; NVSHMEM's put with signal stores it behind
// data. Who sends takes a ticket from a counter on its own GPU: ticket t goes to slot t modulo the capacity, and
// carries the number of the lap, by which the receiver sees that it is new. A sender may be as many tickets ahead as
// the ring has slots: the receiver returns what it has consumed as credit, and a sender without credit waits. Nothing
// is ever overwritten, and a receiver that waits for what a full ring cannot hold any more is told so (Taken::stuck).
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
/// Most ranks of one GPU.
constexpr int most_local_ranks = 1 << 13;

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
constexpr unsigned laps = 255;
constexpr int chunk = 32;  // slots that are looked at together
constexpr std::uint32_t whole_chunk = ~std::uint32_t{0};

/// Never 0, which slots hold at first.
GPUDT_HD std::uint64_t lap_of(std::uint64_t ticket, int capacity_log) {
  return (ticket >> capacity_log) % laps + 1;
}
GPUDT_HD std::uint64_t encode(std::uint64_t lap, int window, int local_source, int tag) {
  return lap << 56 | static_cast<std::uint64_t>(window) << 45 | static_cast<std::uint64_t>(local_source) << 32 |
         static_cast<std::uint32_t>(tag);
}
GPUDT_HD std::uint64_t lap_in(std::uint64_t word) {
  return word >> 56;
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

/// The pattern for one ring: of the source only what its words say.
struct RingPattern {
  int window, local_source, tag;

  GPUDT_HD bool matches(std::uint64_t word) const {
    return (window == any_value || detail::window_in(word) == window) &&
           (local_source == any_value || detail::local_source_in(word) == local_source) &&
           (tag == any_value || detail::tag_in(word) == tag);
  }
};

// --- sending --------------------------------------------------------------------------------------------------------

/// The word for a ticket.
GPUDT_HD std::uint64_t notification_word(std::uint64_t ticket, int capacity_log, int window, int local_source,
                                         int tag) {
  return detail::encode(detail::lap_of(ticket, capacity_log), window, local_source, tag);
}

/// Takes a ticket of one ring, and waits until its slot is free. Access: take(counter) adds 1 and returns what was
/// there, read_credit(word) loads, go_on() says whether to wait on. False: it said no; the ring is of no use any more.
template <class Access>
GPUDT_HD bool take_ticket(const Access& access, std::uint64_t* sent, const std::uint64_t* credit, int capacity_log,
                          std::uint64_t& ticket) {
  ticket = access.take(sent);
  while (ticket - access.read_credit(credit) >= std::uint64_t{1} << capacity_log)
    if (!access.go_on()) return false;
  return true;
}

// --- receiving ------------------------------------------------------------------------------------------------------

/// The rings of one rank, one behind the other, and how far it has come in them. Only one group of threads at a time
/// may take from them.
struct Inbox {
  std::uint64_t* slots;     ///< capacity slots of GPU 0, of GPU 1 ...
  std::uint64_t* heads;     ///< of each GPU: all tickets before have been consumed
  std::uint64_t* returned;  ///< of each GPU: credit that its senders know of
  int gpus;
  int capacity_log;  ///< at least 5
  int ranks_per_gpu;

  GPUDT_HD std::uint64_t capacity() const { return std::uint64_t{1} << capacity_log; }
  GPUDT_HD std::uint64_t* slot(int gpu, std::uint64_t ticket) const {
    return slots + (static_cast<std::uint64_t>(gpu) << capacity_log) + (ticket & (capacity() - 1));
  }
};

/// One thread alone, which looks at slots one after the other. Access: acquire(word) loads, store(word, value),
/// return_credit(gpu, head) tells the senders of a GPU, behind all that was stored before.
template <class Access>
struct OneThread {
  static constexpr bool looks_at_all = false;
  const Access& access;

  GPUDT_HD detail::Look look(const Inbox& inbox, int gpu, std::uint64_t base, const RingPattern& pattern) const {
    detail::Look seen = {0, 0, 0, 0, 0};
    for (int i = 0; i < detail::chunk; ++i) {
      const std::uint64_t ticket = base + static_cast<std::uint64_t>(i), word = access.acquire(inbox.slot(gpu, ticket));
      if (detail::lap_in(word) != detail::lap_of(ticket, inbox.capacity_log)) break;
      const bool consumed = detail::window_in(word) == detail::consumed_window;
      const std::uint32_t bit = std::uint32_t{1} << i;
      seen.arrived |= bit;
      if (consumed) seen.consumed |= bit;
      if (!consumed && pattern.matches(word)) seen.matching |= bit;
    }
    return seen;
  }
  /// The word of slot `index` of the chunk that was looked at.
  GPUDT_HD std::uint64_t word(const Inbox& inbox, int gpu, std::uint64_t base, int index, const detail::Look&) const {
    return access.acquire(inbox.slot(gpu, base + static_cast<std::uint64_t>(index)));
  }
  GPUDT_HD void mark(const Inbox& inbox, int gpu, std::uint64_t base, std::uint32_t consumed) const {
    for (; consumed != 0; consumed &= consumed - 1) {
      const std::uint64_t ticket = base + static_cast<std::uint64_t>(detail::lowest_set(consumed));
      access.store(inbox.slot(gpu, ticket),
                   detail::encode(detail::lap_of(ticket, inbox.capacity_log), detail::consumed_window, 0, 0));
    }
  }
  GPUDT_HD bool leads() const { return true; }
  GPUDT_HD void sync() const {}
  GPUDT_HD void return_credit(int gpu, std::uint64_t head) const { access.return_credit(gpu, head); }
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
  const int gpu = pattern.source / inbox.ranks_per_gpu;
  return {gpu, gpu + 1};
}
GPUDT_HD RingPattern ring_pattern(const Inbox& inbox, const Pattern& pattern) {
  return {pattern.window, pattern.source == any_value ? any_value : pattern.source % inbox.ranks_per_gpu, pattern.tag};
}

GPUDT_HD Notification notification_of(const Inbox& inbox, int gpu, std::uint64_t word) {
  return {window_in(word), gpu * inbox.ranks_per_gpu + local_source_in(word), tag_in(word)};
}

/// Moves a ring's head, and tells the senders from time to time.
template <class Group>
GPUDT_HD void advance(Inbox& inbox, const Group& group, int gpu, std::uint64_t head) {
  group.sync();  // marks have been stored, and all have read the old head
  if (group.leads()) {
    inbox.heads[gpu] = head;
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
  const std::uint64_t head = inbox.heads[gpu];
  std::uint64_t new_head = head;
  bool leading = true;  // all slots so far have been consumed
  for (std::uint64_t base = head; (left > 0 || leading) && base - head < inbox.capacity(); base += chunk) {
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
      new_head += static_cast<std::uint64_t>(count);
      passed = low_bits(count);
      leading = count == chunk;
    }
    if ((mine & ~passed) != 0) group.mark(inbox, gpu, base, mine & ~passed);
    if (seen.arrived != whole_chunk) break;
  }
  if (new_head != head) advance(inbox, group, gpu, new_head);
  return left;
}

}  // namespace detail

namespace detail {

/// Most GPUs whose rings a group of threads looks at together.
constexpr int most_rings_at_once = 8;

/// The first slots of all rings at once, for waits with a wildcard for the source: Taken::all if one matches (it is
/// consumed), none if there is no other either, stuck if more must be looked at.
template <class Group>
GPUDT_HD Taken take_from_any(Inbox& inbox, const Group& group, const RingPattern& wanted, Notification& last) {
  const int each = chunk / inbox.gpus;
  const Look all = group.look_at_all(inbox, each, wanted);
  bool more = false;
  for (int gpu = 0; gpu < inbox.gpus; ++gpu) {
    const Look seen = all.part(gpu * each, each);
    more = more || seen.arrived == low_bits(each);
    if (seen.matching == 0) continue;
    // If all that was looked at has been consumed then, consume() has to look further.
    const bool enough = (seen.consumed | lowest_of(seen.matching, 1)) != low_bits(each);
    std::uint64_t word = 0;
    consume(inbox, group, gpu, wanted, 1, enough ? &seen : nullptr, word);
    last = notification_of(inbox, gpu, word);
    return Taken::all;
  }
  return more ? Taken::stuck : Taken::none;
}

}  // namespace detail

/// Consumes the first `count` (at least 1) notifications that match, if there are so many; `last` is the latest of
/// them. To be called by all threads of the group, which get the same answer.
template <class Group>
GPUDT_HD Taken take(Inbox& inbox, const Group& group, const Pattern& pattern, int count, Notification& last) {
  const detail::GpuRange gpus = detail::gpus_of(inbox, pattern);
  const RingPattern wanted = detail::ring_pattern(inbox, pattern);
  if constexpr (Group::looks_at_all) {
    if (count == 1 && gpus.end - gpus.first > 1 && inbox.gpus <= detail::most_rings_at_once) {
      const Taken taken = detail::take_from_any(inbox, group, wanted, last);
      if (taken != Taken::stuck) return taken;
    }
  }
  int found = 0;
  bool stuck = true;
  std::uint64_t word = 0;
  for (int gpu = gpus.first; gpu < gpus.end && found < count; ++gpu) {
    const std::uint64_t head = inbox.heads[gpu];
    for (std::uint64_t base = head; found < count && base - head < inbox.capacity(); base += detail::chunk) {
      const detail::Look seen = group.look(inbox, gpu, base, wanted);
      const int here = detail::count_bits(seen.matching);
      if (base == head && here >= count) {  // the usual case: one look does
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
  int left = count;
  for (int gpu = gpus.first; gpu < gpus.end && left > 0; ++gpu) {
    left = detail::consume(inbox, group, gpu, wanted, left, nullptr, word);
    if (left == 0) last = detail::notification_of(inbox, gpu, word);
  }
  return Taken::all;
}

}  // namespace gpudt::initiated
