// A message's layout as kernels use it: the serialised form of datatype/, with the traversal of device/, in which
// places are found by packed bytes, so that neither addresses nor words need be known when it is made.
#pragma once

#include "device/batch_body.hpp"

namespace gpudt::initiated {

using device::Address;

/// The layout of `count` elements of an MPI datatype, as plain data: passed in a kernel's parameters (declared
/// `const __grid_constant__`) or kept in device memory. Made by Layout (world.hpp), which owns what it points to.
struct KernelLayout {
  device::BatchMap narrow{device::KernelArgs{}};  ///< nested strides of up to batch_dims levels, in 32-bit arithmetic
  device::AnyMap any{device::KernelArgs{}};       ///< everything else
  std::int64_t total = 0;                         ///< packed bytes
  std::int64_t low = 0, high = 0;                 ///< the bytes touched, from the data's address
  std::int64_t offset = 0;                        ///< contiguous: where they begin
  std::int32_t align = 1;  ///< a power of two, at most 16, that divides all offsets and lengths (contiguous: `offset`)
  std::int32_t form = 0;   ///< KernelForm
};

enum KernelForm : std::int32_t { not_made, contiguous_form, narrow_form, any_form };

/// `layout` at `program`, an address that kernels can read, or null if the form needs none. Throws
/// std::invalid_argument for a layout of which two runs cannot be told apart in 63 bits (count < 0).
inline KernelLayout make_kernel_layout(const datatype::Layout& layout, std::int64_t count,
                                       const datatype::Program& program) {
  using datatype::ShapeKind;
  constexpr std::int64_t narrow_limit = (std::int64_t{1} << 31) - 64;
  const datatype::Shape shape = layout.shape(count);
  KernelLayout made;
  made.total = shape.total;
  made.align = shape.align;
  made.offset = shape.offset;
  if (shape.total > 0) {
    const datatype::Span span = layout.span(count);
    made.low = span.begin;
    made.high = span.end;
  }
  if (shape.kind == ShapeKind::empty || shape.kind == ShapeKind::contiguous) {
    const std::int64_t bits = shape.offset | 16;
    made.align = static_cast<std::int32_t>(bits & -bits);
    made.form = contiguous_form;
    return made;
  }
  const bool narrow =
      shape.kind == ShapeKind::strided && shape.ndims <= device::batch_dims && shape.total < narrow_limit;
  device::KernelArgs args = device::plan_bytes(shape, narrow);
  args.program = program;
  if (narrow)
    made.narrow = device::BatchMap(args);
  else
    made.any = device::AnyMap(args);
  made.form = narrow ? narrow_form : any_form;
  return made;
}

/// AnyMap::place(), but not inlined in each of the places where it is called: it is long.
#if defined(__CUDACC__)
__host__ __device__ __noinline__
#endif
    inline device::RunPlace
    place_of_any(const device::AnyMap& map, std::int64_t position) {
  return map.place(static_cast<std::uint64_t>(position), device::NoTile());
}

/// One side of a move: a layout, or `end` contiguous bytes if that is null.
struct SideMap {
  using Index = std::int64_t;
  using Tile = device::NoTile;
  const KernelLayout* layout;
  std::int64_t end;

  GPUDT_HD device::RunPlace place(Index position, const Tile& tile) const {
    if (layout == nullptr) return {position, position, end - position};
    if (layout->form == narrow_form) return layout->narrow.place(static_cast<std::uint32_t>(position), tile);
    if (layout->form == any_form) return place_of_any(layout->any, position);
    return {layout->offset + position, position, layout->total - position};
  }
};

/// Both sides of a move, for the bodies of device/transfer_body.hpp. `from` and `to` are where position 0 of a
/// contiguous side would lie, or the address that a layout counts from.
struct Sides {
  using Map = SideMap;
  using Index = std::int64_t;
  using Tile = device::NoTile;
  static constexpr bool alike = false;
  Address from, to;
  SideMap from_map, map;

  GPUDT_HD std::int32_t unit_shift() const { return 0; }
  GPUDT_HD Tile whole() const { return {}; }
  GPUDT_HD device::PairPlace place(Index position, const Tile& tile) const {
    const auto there = static_cast<Address>(map.place(position, tile).offset);
    if (from_map.layout == map.layout) return {from + there, to + there};
    return {from + static_cast<Address>(from_map.place(position, tile).offset), to + there};
  }
};

GPUDT_HD Address side_bits(Address address, const KernelLayout* layout) {
  return layout == nullptr ? address : address | static_cast<Address>(layout->align);
}

/// Bytes per access: the widest power of two, at most 16, in which both sides can be moved.
GPUDT_HD int word_of(const Sides& sides) {
  const Address bits = side_bits(sides.from, sides.from_map.layout) | side_bits(sides.to, sides.map.layout) | 16;
  return static_cast<int>(bits & (~bits + 1));
}

/// Words that each thread loads before it stores the first.
constexpr int words_at_once = 4;

/// The words [first, last) of the packed stream, every `count`th from first + index on.
template <class Word, class Memory>
GPUDT_HD void move_words(const Sides& sides, const Memory& memory, std::int64_t first, std::int64_t last,
                         std::int64_t index, std::int64_t count) {
  constexpr auto width = static_cast<std::int64_t>(sizeof(Word));
  std::int64_t at = first + index;
  for (; at + (words_at_once - 1) * count < last; at += words_at_once * count) {
    device::PairPlace place[words_at_once];
    Word word[words_at_once];
    GPUDT_UNROLL
    for (int u = 0; u < words_at_once; ++u) place[u] = sides.place((at + u * count) * width, device::NoTile());
    GPUDT_UNROLL
    for (int u = 0; u < words_at_once; ++u) word[u] = memory.template load<Word>(place[u].from);
    GPUDT_UNROLL
    for (int u = 0; u < words_at_once; ++u) memory.template store<Word>(place[u].to, word[u]);
  }
  for (; at < last; at += count) {
    const device::PairPlace place = sides.place(at * width, device::NoTile());
    memory.template store<Word>(place.to, memory.template load<Word>(place.from));
  }
}

/// The whole words of positions [begin, end), and the bytes around them.
template <class Word, class Memory>
GPUDT_HD void move_range(const Sides& sides, const Memory& memory, std::int64_t begin, std::int64_t end,
                         std::int64_t index, std::int64_t count) {
  const device::WordRange range = device::whole_words(begin, end, static_cast<std::int32_t>(sizeof(Word)));
  move_words<Word>(sides, memory, range.first, range.last, index, count);
  const std::int64_t head = range.head_end - begin, ends = head + end - range.tail_begin;
  for (std::int64_t i = index; i < ends; i += count)
    device::transfer_byte(sides, memory, i < head ? begin + i : range.tail_begin + (i - head));
}

/// Where words would be narrower than this, longer messages are moved by pieces of runs.
constexpr std::int64_t narrow_word_bytes = 1024;

/// Moves packed bytes [begin, end) from one side to the other: the part of thread `index` of `count`, which do it
/// together without waiting for each other.
template <class Memory>
GPUDT_HD void move(const Sides& sides, const Memory& memory, std::int64_t begin, std::int64_t end, std::int64_t index,
                   std::int64_t count) {
  const int word = word_of(sides);
  if (word == 16) return move_range<device::Word16>(sides, memory, begin, end, index, count);
  if (word == 8) return move_range<std::uint64_t>(sides, memory, begin, end, index, count);
  if (word == 4) return move_range<std::uint32_t>(sides, memory, begin, end, index, count);
  if (end - begin <= narrow_word_bytes) return move_range<std::uint8_t>(sides, memory, begin, end, index, count);
  for (std::int64_t at = begin + 16 * index; at < end; at += 16 * count)
    device::transfer_pieces(sides, memory, at, end - at < 16 ? static_cast<int>(end - at) : 16, device::NoTile());
}

/// The same in words of at most 8 bytes, for memory in which each access is slow, whatever its width.
template <class Memory>
GPUDT_HD void move_by_words(const Sides& sides, const Memory& memory, std::int64_t begin, std::int64_t end,
                            std::int64_t index, std::int64_t count) {
  const int word = word_of(sides);
  if (word >= 8) return move_range<std::uint64_t>(sides, memory, begin, end, index, count);
  if (word == 4) return move_range<std::uint32_t>(sides, memory, begin, end, index, count);
  move_range<std::uint8_t>(sides, memory, begin, end, index, count);
}

}  // namespace gpudt::initiated
