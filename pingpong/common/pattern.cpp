#include "pingpong/common/pattern.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace gpudt::bench {
namespace {

constexpr std::byte poison_byte{0xA5};
constexpr std::byte filler_byte{0xC3};

/// One step of splitmix64 (Steele, Lea, Flood 2014): a bijection that leaves no visible pattern.
std::uint64_t mixed(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

std::size_t footprint(const Message& message) {
  return static_cast<std::size_t>(message.span()) + 2 * guard_bytes;
}

}  // namespace

std::vector<std::byte> packed_stream(Seed seed, std::int64_t size) {
  constexpr std::uint64_t low_bits = 0x7F7F7F7F7F7F7F7Fu;
  std::vector<std::byte> stream(static_cast<std::size_t>(size));
  const std::uint64_t base =
      mixed(mixed(static_cast<std::uint64_t>(seed.round)) + static_cast<std::uint64_t>(seed.rank));
  for (std::size_t at = 0; at < stream.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t word = mixed(base + at) & low_bits;
    std::memcpy(stream.data() + at, &word, std::min(sizeof word, stream.size() - at));
  }
  return stream;
}

std::optional<std::string> first_difference(std::span<const std::byte> expected, std::span<const std::byte> seen) {
  if (std::memcmp(expected.data(), seen.data(), expected.size()) == 0) return std::nullopt;
  const auto [want, got] = std::mismatch(expected.begin(), expected.end(), seen.begin());
  return fmt::format("byte {} is {:#04x}, expected {:#04x}", want - expected.begin(), std::to_integer<int>(*got),
                     std::to_integer<int>(*want));
}

void MessageBuffer::reserve(const Message& message) {
  buffer_.reserve(footprint(message));
}

std::span<std::byte> MessageBuffer::paint(const Message& message, Seed seed, std::byte gap) {
  canvas_->image.reserve(footprint(message));
  const std::span<std::byte> image(canvas_->image.data(), footprint(message));
  std::memset(image.data(), std::to_integer<int>(gap), image.size());
  const std::vector<std::byte> stream = packed_stream(seed, message.size());
  const std::byte* from = stream.data();
  message.for_each_block([&](std::int64_t offset, std::int64_t length) {
    std::memcpy(image.data() + guard_bytes + offset, from, static_cast<std::size_t>(length));
    from += length;
  });
  return image;
}

void MessageBuffer::load(const Message& message, Seed seed) {
  buffer_.write(paint(message, seed, filler_byte));
}

void MessageBuffer::poison(const Message& message) {
  buffer_.fill(poison_byte, footprint(message));
}

std::optional<std::string> MessageBuffer::mismatch(const Message& message, Seed seed) {
  const std::span<const std::byte> expected = paint(message, seed, poison_byte);
  canvas_->seen.reserve(expected.size());
  const std::span<std::byte> seen(canvas_->seen.data(), expected.size());
  buffer_.read(seen);
  const auto difference = first_difference(expected, seen);
  if (!difference) return std::nullopt;
  return fmt::format("{} (counted from {} bytes before the buffer)", *difference, guard_bytes);
}

}  // namespace gpudt::bench
