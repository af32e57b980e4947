// Filling messages with data that tells who sent it and when, and checking every byte of what arrives: the blocks
// against that data, the gaps between them and guard zones at both ends against what was there before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pingpong/common/layouts.hpp"
#include "pingpong/common/memory.hpp"

namespace gpudt::bench {

/// Which data: no two (rank, round) give the same bytes.
struct Seed {
  int rank = 0;
  std::int64_t round = 0;
};

/// The packed bytes of a message of `size` bytes. All are below 0x80, which no poisoned byte is.
std::vector<std::byte> packed_stream(Seed seed, std::int64_t size);

/// Bytes before and behind each buffer that must stay as they are.
inline constexpr std::size_t guard_bytes = 256;

/// Host memory in which buffers are painted and compared; shared, since a message may span gigabytes.
struct Canvas {
  explicit Canvas(Place place) : image(place), seen(place) {}
  Buffer image;  ///< what is written, or expected
  Buffer seen;   ///< what was read back
};

/// A message's memory: guard zone, span, guard zone. Keeps a reference to its canvas.
class MessageBuffer {
 public:
  MessageBuffer(Place place, Canvas& canvas) : buffer_(place), canvas_(&canvas) {}

  /// Makes room for `message`.
  void reserve(const Message& message);
  /// The address that goes to MPI.
  void* address() const { return buffer_.data() + guard_bytes; }
  Place place() const { return buffer_.place(); }

  /// Writes the seed's data to the blocks and a filler to the gaps.
  void load(const Message& message, Seed seed);
  /// Overwrites everything.
  void poison(const Message& message);
  /// After poison() and the arrival of the seed's data: nothing, or what is wrong.
  std::optional<std::string> mismatch(const Message& message, Seed seed);

 private:
  std::span<std::byte> paint(const Message& message, Seed seed, std::byte gap);
  Buffer buffer_;
  Canvas* canvas_;
};

/// Nothing, or where `seen` first differs from `expected`.
std::optional<std::string> first_difference(std::span<const std::byte> expected, std::span<const std::byte> seen);

}  // namespace gpudt::bench
