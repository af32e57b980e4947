// How a message is cut into the commands of a proxy (proxy_ring.hpp), and one to a layout that is not contiguous into
// runs; the same for kernels and for tests on the host.
#pragma once

#include "initiated/layout.hpp"
#include "initiated/proxy_ring.hpp"

namespace gpudt::initiated {

/// Packed bytes [begin, end) of a message: as much of it as a command holds.
struct Piece {
  std::int64_t begin, end;
};

/// The first piece of [begin, end), of at most `most` bytes, a multiple of 16. Pieces end at multiples of 16 from the
/// packed data's begin, so that they cut no run into shorter ones than its layout's alignment allows.
GPUDT_HD Piece first_piece(std::int64_t begin, std::int64_t end, std::int64_t most) {
  const std::int64_t last = begin / 16 * 16 + most;
  return {begin, last < end ? last : end};
}

/// Calls `emit(run)` for each run of thread `index`'s part of a piece, in which `threads` take part; in memory where
/// the layout's address is at `offset`. All threads together emit at most what proxy_listed_put() and _get() leave room
/// for.
template <class Emit>
GPUDT_HD void for_runs(const SideMap& map, std::int64_t offset, const Piece& piece, std::int64_t index,
                       std::int64_t threads, const Emit& emit) {
  const std::int64_t start = piece.begin / 16 * 16;
  const std::int64_t share = ((piece.end - start + threads - 1) / threads + 15) / 16 * 16;
  const std::int64_t from = start + index * share, to = from + share;
  const std::int64_t last = to < piece.end ? to : piece.end;
  for (std::int64_t position = from < piece.begin ? piece.begin : from; position < last;) {
    const device::RunPlace run = map.place(position, device::NoTile());
    const std::int64_t bytes = run.left < last - position ? run.left : last - position;
    emit(ProxyRun{offset + run.offset, static_cast<std::uint32_t>(position - piece.begin),
                  static_cast<std::uint32_t>(bytes)});
    position += bytes;
  }
}

}  // namespace gpudt::initiated
