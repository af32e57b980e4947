#include "device/transfer/pageable_transfer.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "device/transfer/engine.hpp"

namespace gpudt::device {
namespace {

constexpr std::int64_t longest_piece = 4 << 20;
constexpr std::size_t pieces_under_way = 2;

}  // namespace

PageableTransfer::PageableTransfer(Engine& engine, Gpu& gpu, Direction direction, const Side& side, std::int64_t begin,
                                   std::int64_t end, void* packed, const StreamMark& after)
    : engine_(engine),
      gpu_(gpu),
      direction_(direction),
      side_(side),
      at_(begin),
      end_(end),
      packed_(static_cast<std::byte*>(packed)),
      after_(after) {
  done();
}

bool PageableTransfer::done() {
  if (!after_.reached()) return false;
  for (; !pieces_.empty() && pieces_.front().transfer.done(); pieces_.erase(pieces_.begin())) finish(pieces_.front());
  while (at_ < end_ && pieces_.size() < pieces_under_way && begin_next()) {
  }
  return at_ == end_ && pieces_.empty();
}

/// False if there is no pinned memory before another piece is done.
bool PageableTransfer::begin_next() {
  Staging staging;
  for (std::int64_t bytes = std::min(end_ - at_, longest_piece); !staging;
       bytes = std::max(bytes / 4, shortest_piece)) {
    staging = engine_.staging().try_acquire(StagingKind::mapped, gpu_.ordinal, static_cast<std::size_t>(bytes));
    if (bytes <= shortest_piece) break;
  }
  if (!staging && !pieces_.empty()) return false;
  if (!staging && use_reserve()) return true;
  if (!staging)  // throws the reason
    staging = engine_.staging().acquire(StagingKind::mapped, gpu_.ordinal, shortest_piece);
  pieces_.push_back(begin(std::move(staging)));
  return true;
}

/// Moves one piece by way of the reserve and waits until it is moved, so that the reserve is free again without a poll
/// of this transfer. False if there is no reserve.
bool PageableTransfer::use_reserve() {
  const LockGuard lock(gpu_.reserve_mutex);
  if (!gpu_.reserve) return false;
  Piece piece = begin(std::move(gpu_.reserve));
  piece.transfer.wait();
  finish(piece);
  gpu_.reserve = std::move(piece.staging);
  return true;
}

/// Starts to move as much as goes into `staging`.
PageableTransfer::Piece PageableTransfer::begin(Staging staging) {
  const std::int64_t bytes = std::min(end_ - at_, static_cast<std::int64_t>(staging.capacity()));
  Piece piece{packed_, bytes, std::move(staging)};
  void* const data = piece.staging.data();
  if (direction_ == Direction::unpack) std::memcpy(data, packed_, static_cast<std::size_t>(bytes));
  piece.transfer = engine_.start(direction_, gpu_.ordinal, *side_.layout, side_.count, side_.user, at_, at_ + bytes,
                                 data, MemoryKind::pinned);
  packed_ += bytes;
  at_ += bytes;
  return piece;
}

void PageableTransfer::finish(Piece& piece) const {
  if (direction_ == Direction::pack)
    std::memcpy(piece.packed, piece.staging.data(), static_cast<std::size_t>(piece.bytes));
}

}  // namespace gpudt::device
