#include "interpose/collectives/call_records.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bitset>
#include <utility>

#include "base/mutex.hpp"
#include "base/never_destroyed.hpp"
#include "interpose/job/presence.hpp"
#include "interpose/transport/peer/state.hpp"

namespace gpudt::interpose {
namespace {

using peer::CallRecord;
using peer::Started;

/// Processes in whose records this process has not noted yet that it no longer reads them.
struct Departure {
  std::uint64_t key;
  std::vector<int> from;  ///< ranks in MPI_COMM_WORLD
};
/// Maximum number of departures that wait; with more, the segments of the others are opened for them.
constexpr std::size_t most_departures = 64;

struct Own {
  Mutex mutex;
  std::vector<CallRecord*> idle GUARDED_BY(mutex);
  std::uint32_t made GUARDED_BY(mutex) = 0;  ///< records that have been in use
  std::uint64_t last_serial GUARDED_BY(mutex) = 0;
  std::bitset<peer::board_count> boards_taken GUARDED_BY(mutex);
  std::bitset<peer::board_count> boards_made GUARDED_BY(mutex);  ///< have memory
  /// Bytes of memory for the layouts of each slot.
  std::array<std::array<std::size_t, peer::slot_count>, peer::board_count> layouts_made GUARDED_BY(mutex){};
  std::vector<Holding> retired GUARDED_BY(mutex);  ///< others may still look at them
  std::vector<Departure> departures GUARDED_BY(mutex);
};
auto& own = never_destroyed<Own>();

constinit CallRecord all_declined{
    .key = {}, .told = peer::all_calls, .left = peer::all_calls, .board = -1, .departed = {}, .serial = 0};

/// Notes the departure in the record of process `rank`. True if this is done, or not needed.
bool depart(int rank, std::uint64_t key) {
  const Started started = presence_started(rank);
  if (started != Started::on) return started == Started::off;
  peer::Segment* const segment = peer::reach_sender(rank);
  CallRecord* const record = segment == nullptr ? &all_declined : find_record(*segment, key);
  if (record == nullptr) return false;
  record->departed.fetch_add(1, std::memory_order_acq_rel);
  return true;
}

void depart() REQUIRES(own.mutex) {
  std::erase_if(own.departures, [](Departure& departure) {
    std::erase_if(departure.from, [&departure](int rank) { return depart(rank, departure.key); });
    return departure.from.empty();
  });
}

/// Whether no other process uses the key any more. Processes that take no part never note their departure.
bool all_have_departed(const Holding& holding) {
  if (holding.record == nullptr) return true;
  const std::size_t departed = holding.record->departed.load(std::memory_order_acquire);
  if (departed == holding.others.size()) return true;
  const auto off = std::count_if(holding.others.begin(), holding.others.end(),
                                 [](int rank) { return presence_started(rank) == Started::off; });
  return departed + static_cast<std::size_t>(off) == holding.others.size();
}

void reuse_retired() REQUIRES(own.mutex) {
  std::erase_if(own.retired, [](const Holding& holding) REQUIRES(own.mutex) {
    if (!all_have_departed(holding)) return false;
    if (holding.board >= 0) own.boards_taken.reset(static_cast<std::size_t>(holding.board));
    if (holding.record != nullptr) {
      holding.record->key.store(0, std::memory_order_relaxed);
      own.idle.push_back(holding.record);
    }
    return true;
  });
}

/// Takes an idle record. Null: all records are in use, or there is no memory for more.
CallRecord* idle_record() REQUIRES(own.mutex) {
  if (!own.idle.empty()) {
    CallRecord* const record = own.idle.back();
    own.idle.pop_back();
    return record;
  }
  peer::Segment& segment = *peer::world->own;
  const bool fresh = own.made % peer::records_at_a_time == 0 && own.made != 0;  // the first ones have memory
  if (own.made == peer::record_count || (fresh && !segment.make_records(own.made))) return nullptr;
  return &segment->records[own.made++];
}

}  // namespace

CallRecord* add_record(std::uint64_t key) {
  peer::Segment& segment = *peer::world->own;
  const LockGuard lock(own.mutex);
  if (segment->records_ended.load(std::memory_order_relaxed) != 0) return nullptr;
  own.idle.reserve(peer::record_count);  // what follows must not fail
  if (own.departures.size() >= most_departures) depart();
  reuse_retired();
  CallRecord* const record = idle_record();
  if (record == nullptr) {
    segment->records_ended.store(1, std::memory_order_release);
    return nullptr;
  }
  record->told.store(0, std::memory_order_relaxed);
  record->left.store(0, std::memory_order_relaxed);
  record->board.store(-1, std::memory_order_relaxed);
  record->departed.store(0, std::memory_order_relaxed);
  record->serial = ++own.last_serial;
  record->key.store(key, std::memory_order_release);
  segment->records_used.store(own.made, std::memory_order_release);
  return record;
}

CallRecord* find_record(peer::Segment& segment, std::uint64_t key) {
  const bool ended = segment->records_ended.load(std::memory_order_acquire) != 0;  // first: all records are visible
  const std::uint32_t used = segment->records_used.load(std::memory_order_acquire);
  CallRecord* const records = segment->records;
  CallRecord* const found = std::find_if(records, records + used, [key](const CallRecord& record) {
    return record.key.load(std::memory_order_acquire) == key;
  });
  if (found != records + used) return found;
  return ended ? &all_declined : nullptr;
}

int take_board(std::size_t most_taken) {
  const LockGuard lock(own.mutex);
  depart();
  reuse_retired();
  if (own.boards_taken.count() >= most_taken) return -1;
  for (std::size_t index = 0; index < own.boards_taken.size(); ++index) {
    if (own.boards_taken.test(index)) continue;
    const int board = static_cast<int>(index);
    if (!own.boards_made.test(index) && !peer::world->own->make_board(board)) return -1;
    for (peer::Slot& slot : (*peer::world->own)->boards[board].slots)
      for (auto* const number : {&slot.call, &slot.mapped, &slot.done}) number->store(0, std::memory_order_relaxed);
    own.boards_made.set(index);
    own.boards_taken.set(index);
    return board;
  }
  return -1;
}

bool has_room_for_layouts(int board, std::uint64_t call, std::size_t bytes) {
  if (bytes > peer::block_layouts) return false;
  const LockGuard lock(own.mutex);
  const std::size_t slot = call % peer::slot_count;
  std::size_t& made = own.layouts_made[static_cast<std::size_t>(board)][slot];
  if (made >= bytes) return true;
  if (!peer::world->own->make_board_layouts(board, slot, bytes)) return false;
  made = bytes;
  return true;
}

// If the lists cannot grow, record and board stay in use.
void put_back(Holding holding, bool at_once) {
  const LockGuard lock(own.mutex);
  try {
    own.departures.push_back({holding.key, holding.others});
    own.retired.push_back(std::move(holding));
  } catch (const std::bad_alloc&) {
  }
  if (at_once) depart();
}

}  // namespace gpudt::interpose
