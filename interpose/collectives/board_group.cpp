#include "interpose/collectives/board_group.hpp"

#include <algorithm>
#include <array>
#include <bitset>
#include <memory>
#include <new>
#include <utility>

#include "base/mutex.hpp"
#include "base/never_destroyed.hpp"
#include "device/reduction.hpp"
#include "interpose/collectives/comm_state.hpp"

namespace gpudt::interpose {
namespace {

using peer::Board;

/// A board whose communicator has gone; others may still read what it says.
struct Retired {
  int index;
  std::uint64_t last_call;
  std::vector<Board*> readers;
};

/// Of this process.
struct OwnBoards {
  Mutex mutex;
  std::bitset<peer::board_count> taken GUARDED_BY(mutex);
  std::vector<Retired> retired GUARDED_BY(mutex);
};
auto& own_boards = never_destroyed<OwnBoards>();

/// Or -1.
int take_board() {
  const LockGuard lock(own_boards.mutex);
  std::erase_if(own_boards.retired, [](const Retired& board) REQUIRES(own_boards.mutex) {
    const bool all_have_left = std::all_of(board.readers.begin(), board.readers.end(), [&](const Board* reader) {
      return reader->left.load(std::memory_order_acquire) >= board.last_call;
    });
    if (all_have_left) own_boards.taken.reset(static_cast<std::size_t>(board.index));
    return all_have_left;
  });
  for (std::size_t index = 0; index < own_boards.taken.size(); ++index) {
    if (own_boards.taken.test(index)) continue;
    own_boards.taken.set(index);
    return static_cast<int>(index);
  }
  return -1;
}

/// Without memory the board stays taken.
void put_board(const BoardGroup& group) noexcept try {
  const LockGuard lock(own_boards.mutex);
  const auto index = static_cast<std::size_t>(group.own_board);
  if (group.boards.empty())
    own_boards.taken.reset(index);  // nobody has been told anything
  else
    own_boards.retired.push_back({group.own_board, group.call, group.boards});
} catch (const std::bad_alloc&) {
}

/// What each process tells the others of its board.
struct Offer {
  std::int64_t board;      ///< negative: none
  std::int64_t last_call;  ///< that the board has told of, of any communicator's
};

}  // namespace

void BoardGroupEnd::operator()(BoardGroup* group) const noexcept {
  if (group->own_board >= 0) put_board(*group);
  delete group;
}

namespace {

BoardGroup* make_board_group(MPI_Comm comm) {
  std::unique_ptr<BoardGroup, BoardGroupEnd> group(new BoardGroup);
  group->world_ranks = peer::world_ranks(comm);
  PMPI_Comm_rank(comm, &group->rank);
  const std::size_t size = group->world_ranks.size();
  const std::vector<peer::Segment*> segments = peer::segments_of(group->world_ranks);
  std::vector<Offer> offers(size);
  std::vector<Board*> boards(size);
  if (!segments.empty() && size <= device::Reduction::most_ranks) group->own_board = take_board();
  Offer mine = {group->own_board, 0};
  if (mine.board >= 0) {
    const Board& own = (*segments[static_cast<std::size_t>(group->rank)])->boards[mine.board];
    mine.last_call = static_cast<std::int64_t>(own.told.load(std::memory_order_relaxed));
  }
  const int code = PMPI_Allgather(&mine, 2, MPI_INT64_T, offers.data(), 2, MPI_INT64_T, comm);
  const bool all_have = std::all_of(offers.begin(), offers.end(), [](const Offer& offer) { return offer.board >= 0; });
  if (code != MPI_SUCCESS || !all_have) return group.release();
  for (std::size_t rank = 0; rank < size; ++rank) {
    boards[rank] = &(*segments[rank])->boards[offers[rank].board];
    group->call = std::max(group->call, static_cast<std::uint64_t>(offers[rank].last_call));
  }
  group->boards = std::move(boards);
  return group.release();
}

}  // namespace

BoardGroup& boards_of(CommState& state, MPI_Comm comm) {
  if (!state.boards) state.boards.reset(make_board_group(comm));
  return *state.boards;
}

void BoardGroup::tell(const peer::Contribution& mine) {
  ++call;
  own().contributions[call % 2] = mine;
  own().told.store(call, std::memory_order_release);
}

void BoardGroup::read(std::vector<peer::Contribution>& all) const {
  for (std::size_t other = 0; other < boards.size(); ++other) {
    const Board& board = *boards[other];
    wait_for_others([&] { return board.told.load(std::memory_order_acquire) >= call; });
    all[other] = board.contributions[call % 2];
  }
}

bool BoardGroup::all_succeed(const std::vector<int>& ranks, std::atomic<std::uint64_t> Board::*outcomes) const {
  bool succeed = true;
  for (const int rank : ranks) {
    const std::atomic<std::uint64_t>& outcome = boards[static_cast<std::size_t>(rank)]->*outcomes;
    wait_for_others([&] { return Board::has(outcome.load(std::memory_order_acquire), call); });
    if (outcome.load(std::memory_order_acquire) == Board::outcome(call, /*failed=*/true)) succeed = false;
  }
  return succeed;
}

}  // namespace gpudt::interpose
