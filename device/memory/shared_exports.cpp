// Exports of memory in pieces: physical memory (cuMemCreate) that the program has mapped one behind the other, as a
// segment that grows. An export has all neighbouring pieces of a GPU, at most most_pieces. The program may map others
// in place of some at any time: so each use looks whether those that it needs are still the same.
#include <algorithm>
#include <iterator>
#include <utility>

#include "device/memory/exports.hpp"

namespace gpudt::device {
namespace {

/// Exports may overlap where there are more pieces than one may have: so many are looked at for one that holds all.
constexpr int most_overlapping = 8;
/// What tells the ids of these exports from the driver's ids of allocations.
constexpr std::uint64_t of_pieces = std::uint64_t{1} << 63;

std::uint64_t end_of(const Piece& piece) {
  return piece.base + piece.size;
}

bool find_piece(Runtime& runtime, std::uint64_t address, Piece& piece) {
  return runtime.piece_of(reinterpret_cast<const void*>(address), piece);
}

/// The pieces of one GPU that neighbour each other and hold `first`: those behind it come before those in front of it.
std::vector<Piece> pieces_around(Runtime& runtime, std::uint64_t first) {
  std::vector<Piece> behind(1), before;
  if (!find_piece(runtime, first, behind.front())) return {};
  const int ordinal = behind.front().ordinal;
  Piece next;
  while (behind.size() < most_pieces && find_piece(runtime, end_of(behind.back()), next) && next.ordinal == ordinal &&
         next.base == end_of(behind.back()))
    behind.push_back(next);
  const auto begin = [&] { return before.empty() ? behind.front().base : before.back().base; };
  while (behind.size() + before.size() < most_pieces && find_piece(runtime, begin() - 1, next) &&
         next.ordinal == ordinal && end_of(next) == begin())
    before.push_back(next);
  std::reverse(before.begin(), before.end());
  before.insert(before.end(), behind.begin(), behind.end());
  return before;
}

}  // namespace

bool Exports::is_there(const Piece& piece) {
  Piece now;
  return find_piece(runtime_, piece.base, now) && now == piece;
}

/// Whether the pieces with bytes of [first, end) are still there.
bool Exports::are_there(const Export& entry, std::uint64_t first, std::uint64_t end) {
  return std::all_of(entry.pieces.begin(), entry.pieces.end(), [&](const Piece& piece) {
    return piece.base >= end || end_of(piece) <= first || is_there(piece);
  });
}

/// Whether another export could have more of [first, end): one that has a piece which has been mapped behind it since,
/// or one that begins later.
bool Exports::is_too_short(const Export& entry, std::uint64_t first, std::uint64_t end) {
  const Piece& last = entry.pieces.back();
  if (end <= end_of(last)) return false;
  Piece next;
  const bool goes_on = find_piece(runtime_, end_of(last), next) && next.ordinal == last.ordinal;
  return goes_on && (entry.pieces.size() < most_pieces || first >= end_of(entry.pieces.front()));
}

/// Of several exports one that holds all of the bytes. Forgets one of whose pieces some have gone. One that is too
/// short stays: windows and messages under way have it.
Exports::Allocations::iterator Exports::find_pieces(std::uint64_t first, std::uint64_t bytes) {
  const std::uint64_t end = first + bytes;
  auto best = exports_.end();
  auto next = in_pieces_.upper_bound(first);
  for (int left = most_overlapping; left > 0 && next != in_pieces_.begin(); --left) {
    --next;
    const auto at = exports_.find(next->second);
    if (!at->second.holds(first, first + 1)) continue;
    if (best == exports_.end() || at->second.holds(first, end)) best = at;
    if (best->second.holds(first, end)) break;
  }
  if (best == exports_.end()) return best;
  const bool whole = are_there(best->second, first, end);
  if (whole && !is_too_short(best->second, first, end)) return best;
  if (!whole) forget(best);
  return exports_.end();
}

/// exports_.end() if there are no pieces.
Exports::Allocations::iterator Exports::add_pieces(int ordinal, std::uint64_t first) {
  std::vector<Piece> pieces = pieces_around(runtime_, first);
  if (pieces.empty()) return exports_.end();
  make_room();
  const std::uint64_t base = pieces.front().base, id = of_pieces | ++made_in_pieces_;
  Export entry{Allocation{id, base, end_of(pieces.back()) - base, true}};
  entry.pieces = std::move(pieces);
  const auto made = exports_.emplace(id, std::move(entry)).first;
  in_pieces_[base] = id;
  try_export(ordinal, made->second);
  return made;
}

/// Starts the server if there is none. Throws Error.
IpcHandle Exports::handle_of_pieces(std::uint64_t id) {
  if (!server_) server_ = std::make_unique<HandleServer>([this](std::uint64_t asked) { return pass(asked); });
  return server_->handle(id);
}

/// For the server's thread, which may wait for launches: the mutex is not held meanwhile. A piece that is still there
/// after it has been shared is the one that was.
std::vector<PassedPiece> Exports::pass(std::uint64_t id) try {
  std::vector<Piece> pieces;
  {
    const LockGuard lock(mutex_);
    if (const auto at = exports_.find(id); at != exports_.end()) pieces = at->second.pieces;
  }
  std::vector<PassedPiece> passed;
  for (const Piece& piece : pieces) {
    passed.push_back({OwnedFile(runtime_.share_piece(piece.ordinal, piece.base)), piece.size});
    if (is_there(piece)) continue;
    const LockGuard lock(mutex_);
    if (const auto at = exports_.find(id); at != exports_.end()) forget(at);
    return {};
  }
  return passed;
} catch (const Error&) {
  return {};
}

}  // namespace gpudt::device
