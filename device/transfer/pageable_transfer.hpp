// Packing to, and unpacking from, pageable host memory, which GPUs do not reach: piece by piece, by way of pinned
// memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/memory/staging.hpp"
#include "device/transfer/stream_mark.hpp"
#include "device/transfer/transfer.hpp"

namespace gpudt::device {

class Engine;
struct Gpu;

class PageableTransfer {
 public:
  /// Moves packed bytes [begin, end) of `side`; the first of them is at `packed`. Throws Error.
  PageableTransfer(Engine& engine, Gpu& gpu, Direction direction, const Side& side, std::int64_t begin,
                   std::int64_t end, void* packed, const StreamMark& after);
  PageableTransfer(const PageableTransfer&) = delete;
  PageableTransfer& operator=(const PageableTransfer&) = delete;
  ~PageableTransfer() = default;

  /// Starts further pieces, once the mark has been reached; true if all have been moved. Throws Error.
  bool done();

  static constexpr std::int64_t shortest_piece = 64 << 10;  ///< bytes, but for the last piece

 private:
  struct Piece {
    std::byte* packed;
    std::int64_t bytes;
    Staging staging;
    Transfer transfer{};
  };
  bool begin_next();
  bool use_reserve();
  Piece begin(Staging staging);
  void finish(Piece& piece) const;

  Engine& engine_;
  Gpu& gpu_;
  const Direction direction_;
  const Side side_;
  std::int64_t at_;
  const std::int64_t end_;
  std::byte* packed_;
  const StreamMark after_;
  std::vector<Piece> pieces_;  ///< under way, oldest first
};

}  // namespace gpudt::device
