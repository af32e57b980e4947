// A message's layout as kernels use it: the serialised form of datatype/, with the traversal of device/, in which
// places are found by packed bytes, so that neither addresses nor words need be known when it is made.
#pragma once

#include "device/kernels/batch_body.hpp"

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
  // repeated_form: as many elements as a move takes, each of another form. `total` is no limit; low, high: of one.
  std::int32_t element_form = 0;
  device::Divisor element{};  ///< by its packed bytes
  std::int64_t extent = 0;    ///< from one to the next
};

enum KernelForm : std::int32_t { not_made, contiguous_form, narrow_form, any_form, repeated_form };

/// The predefined datatypes whose elements kernels combine (accumulate), as C++ knows them; `other`: all else.
enum class Element : std::int32_t { other, int32, uint32, int64, uint64, float32, float64 };

/// Bytes of an element that kernels combine; 0: they do not.
GPUDT_HD int width_of(Element element) {
  if (element == Element::other) return 0;
  return element == Element::int32 || element == Element::uint32 || element == Element::float32 ? 4 : 8;
}

/// An MPI datatype for calls that take a count (mpi_calls.cuh): plain data, as a KernelLayout is. Made by Datatype
/// (world.hpp), which owns what it points to.
struct KernelType {
  KernelLayout one, many;            ///< of one element; of as many as a call takes. Not made if `plain`
  std::int64_t size = -1;            ///< packed bytes of an element; negative: no Datatype has made it
  std::int64_t most = 0;             ///< elements that a call takes
  Element element = Element::other;  ///< all that it is made of
  std::int32_t plain = 0;            ///< 1: elements without gaps, one behind the other, from the data's address on
};

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

/// Of any number of elements. `program` as above.
inline KernelLayout make_repeated_layout(const datatype::Layout& layout, const datatype::Program& program) {
  KernelLayout made = make_kernel_layout(layout, 1, program);
  if (layout.size() == 0) return made;
  made.element_form = made.form;
  made.form = repeated_form;
  made.extent = layout.extent();
  made.total = INT64_MAX;
  made.element = device::make_divisor(static_cast<std::uint64_t>(layout.size()));
  // The packed bytes of an element are in whole words, too, where these do not straddle runs.
  const std::int64_t bits = made.align | made.extent | layout.size();
  made.align = static_cast<std::int32_t>(bits & -bits);
  return made;
}

/// A type of elements of `element`. `program` as above.
inline KernelType make_kernel_type(const datatype::Layout& layout, Element element, const datatype::Program& program) {
  constexpr std::int64_t farthest = std::int64_t{1} << 61;  // bytes, packed or not, that calls number
  KernelType made;
  made.size = layout.size();
  made.element = element;
  made.most = farthest / std::max({layout.size(), std::abs(layout.extent()), std::int64_t{1}});
  made.plain = made.size == 0 || (layout.is_contiguous(2) && layout.shape(1).offset == 0) ? 1 : 0;
  if (made.plain != 0) return made;
  made.one = make_kernel_layout(layout, 1, program);
  made.many = make_repeated_layout(layout, program);
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

/// The place in one element. Not inlined either: neither is a repeated layout the usual one.
#if defined(__CUDACC__)
__host__ __device__ __noinline__
#endif
    inline device::RunPlace
    place_of_repeated(const KernelLayout& layout, std::int64_t position) {
  const auto size = static_cast<std::int64_t>(layout.element.value);
  const auto index = static_cast<std::int64_t>(divide(static_cast<std::uint64_t>(position), layout.element));
  const std::int64_t rest = position - index * size;
  device::RunPlace place = {layout.offset + rest, rest, size - rest};
  if (layout.element_form == narrow_form)
    place = layout.narrow.place(static_cast<std::uint32_t>(rest), device::NoTile());
  else if (layout.element_form == any_form)
    place = place_of_any(layout.any, rest);
  place.offset += index * layout.extent;
  return place;
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
    if (layout->form == repeated_form) return place_of_repeated(*layout, position);
    return {layout->offset + position, position, layout->total - position};
  }
};

/// Both sides of a move, for the bodies of device/kernels/transfer_body.hpp. `from` and `to` are where position 0 of a
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

GPUDT_HD bool is_contiguous(const KernelLayout* layout) {
  return layout == nullptr || layout->form == contiguous_form;
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

// --- moves that are made again and again ----------------------------------------------------------------------------

// To find a place takes a chain of loads, from the layout and its lists, which what was received has thrown out of the
// caches: as long as the data themselves take. But a halo is sent again and again, and each thread moves the same words
// of it. So blocks keep the places of their latest short moves, one for each word, and read those instead.

/// Moves whose places a block keeps, and the words of each: at least as many as a block has threads.
constexpr int known_moves = 4, known_words = 1024;

/// Where a word lies on both sides, from the addresses that Sides has.
struct alignas(8) WordPlace {
  std::int32_t from, to;
};

/// Threads that move a message together: each takes every `count`th word from its `index` on. It is number `thread` of
/// a block of `threads`, each of which does so.
struct Movers {
  std::int64_t index, count;
  std::int32_t thread, threads;
};

/// The bytes that a side touches, from its address.
struct Touched {
  std::int64_t low, high;
};
GPUDT_HD Touched touched(const KernelLayout* layout, std::int64_t end) {
  if (layout == nullptr) return {0, end};
  if (layout->form != repeated_form) return {layout->low, layout->high};
  if (end <= 0) return {0, 0};
  const std::int64_t last =
      static_cast<std::int64_t>(divide(static_cast<std::uint64_t>(end - 1), layout->element)) * layout->extent;
  return {layout->low + (last < 0 ? last : 0), layout->high + (last > 0 ? last : 0)};
}

/// A move of which places are kept: what it is known by, which includes the layouts' addresses, and what it takes to
/// make it again without a look at the layouts.
struct alignas(16) KnownMove {  // in shared memory, and so without initialisers
  const KernelLayout* from;
  const KernelLayout* to;  ///< both null: there is none
  std::int64_t begin, bytes;
  std::int64_t count;  ///< of threads
  Touched from_touched, to_touched;
  std::int32_t align;  ///< of both layouts, one or the other
  std::int32_t word;   ///< bytes: 1, 4, 8 or 16

  GPUDT_HD bool is(const KernelLayout* its_from, const KernelLayout* its_to, std::int64_t its_begin,
                   std::int64_t its_bytes, std::int64_t its_count) const {
    // All at once: the loads do not wait for each other.
    return (static_cast<int>(from == its_from) & static_cast<int>(to == its_to) & static_cast<int>(begin == its_begin) &
            static_cast<int>(bytes == its_bytes) & static_cast<int>(count == its_count)) != 0;
  }
  /// Whether the places suit these addresses. Other ones may need narrower words.
  GPUDT_HD bool suits(Address from_address, Address to_address) const {
    return word == known_word(from_address | to_address | static_cast<Address>(align));
  }
  /// Bytes per access for so many bits of addresses and alignments.
  static GPUDT_HD std::int32_t known_word(Address bits) {
    bits |= 16;
    const auto word = static_cast<std::int32_t>(bits & (~bits + 1));
    return word == 2 ? 1 : word;
  }
};

/// The move of packed bytes [begin, end), if its places can be kept: it is short, of whole words, and not too wide.
GPUDT_HD bool make_known(const Sides& sides, std::int64_t begin, std::int64_t end, const Movers& movers,
                         KnownMove& made) {
  constexpr std::int64_t widest = std::int64_t{1} << 31;
  const KernelLayout *const from = sides.from_map.layout, *const to = sides.map.layout;
  made.from = from;
  made.to = to;
  made.begin = begin;
  made.bytes = end - begin;
  made.count = movers.count;
  made.from_touched = touched(from, end);
  made.to_touched = touched(to, end);
  made.align = (from != nullptr ? from->align : 0) | (to != nullptr ? to->align : 0);
  made.word = KnownMove::known_word(sides.from | sides.to | static_cast<Address>(made.align));
  for (const Touched& side : {made.from_touched, made.to_touched})
    if (side.low < -widest || side.high > widest) return false;
  if (end <= begin || begin % made.word != 0 || end % made.word != 0) return false;
  const std::int64_t words = made.bytes / made.word, each = (words + movers.count - 1) / movers.count;
  return each * movers.threads <= known_words;
}

/// The calling thread's places, in `places` of its block.
GPUDT_HD void keep_places(const Sides& sides, const KnownMove& move, const Movers& movers, WordPlace* places) {
  const Sides offsets = {0, 0, sides.from_map, sides.map};
  WordPlace* mine = places + movers.thread;
  const std::int64_t words = move.bytes / move.word;
  for (std::int64_t at = movers.index; at < words; at += movers.count, mine += movers.threads) {
    const device::PairPlace place = offsets.place(move.begin + at * move.word, device::NoTile());
    *mine = {static_cast<std::int32_t>(place.from), static_cast<std::int32_t>(place.to)};
  }
}

/// The calling thread's part of a move whose places it has kept, of which it has loaded the first one, if it has any.
/// So few words are numbered in 32 bits.
template <class Word, class Memory>
GPUDT_HD void move_known_words(Address from, Address to, std::int32_t words, const Movers& movers,
                               const WordPlace* places, WordPlace first, const Memory& memory) {
  const auto count = static_cast<std::int32_t>(movers.count);
  const WordPlace* mine = places + movers.thread;
  for (std::int32_t left = words - static_cast<std::int32_t>(movers.index); left > 0; left -= words_at_once * count) {
    WordPlace place[words_at_once] = {first};
    Word word[words_at_once] = {};
    GPUDT_UNROLL
    for (int u = 1; u < words_at_once; ++u)
      if (left > u * count) place[u] = mine[u * movers.threads];
    GPUDT_UNROLL
    for (int u = 0; u < words_at_once; ++u)
      if (left > u * count)
        word[u] = memory.template load<Word>(from + static_cast<Address>(std::int64_t{place[u].from}));
    GPUDT_UNROLL
    for (int u = 0; u < words_at_once; ++u)
      if (left > u * count) memory.template store<Word>(to + static_cast<Address>(std::int64_t{place[u].to}), word[u]);
    mine += words_at_once * movers.threads;
    if (left > words_at_once * count) first = *mine;
  }
}
template <class Memory>
GPUDT_HD void move_known(Address from, Address to, std::int64_t bytes, int word, const Movers& movers,
                         const WordPlace* places, WordPlace first, const Memory& memory) {
  const auto few = static_cast<std::int32_t>(bytes);
  if (word == 16) return move_known_words<device::Word16>(from, to, few / 16, movers, places, first, memory);
  if (word == 8) return move_known_words<std::uint64_t>(from, to, few / 8, movers, places, first, memory);
  if (word == 4) return move_known_words<std::uint32_t>(from, to, few / 4, movers, places, first, memory);
  move_known_words<std::uint8_t>(from, to, few, movers, places, first, memory);
}

// --- short contiguous messages --------------------------------------------------------------------------------------

/// The calling thread's part of so few words that each thread moves at most words_at_once.
template <class Word, class Memory>
GPUDT_HD void copy_few_words(Address from, Address to, std::int32_t words, std::int32_t index, std::int32_t count,
                             const Memory& memory) {
  constexpr auto width = static_cast<std::int64_t>(sizeof(Word));
  const std::int32_t left = words - index;
  const auto first = static_cast<Address>(index * width), step = static_cast<Address>(count * width);
  Word word[words_at_once] = {};
  GPUDT_UNROLL
  for (int u = 0; u < words_at_once; ++u)
    if (left > u * count) word[u] = memory.template load<Word>(from + first + static_cast<Address>(u) * step);
  GPUDT_UNROLL
  for (int u = 0; u < words_at_once; ++u)
    if (left > u * count) memory.template store<Word>(to + first + static_cast<Address>(u) * step, word[u]);
}

/// Bytes from one address to another, if they are few for `count` threads, each of which does its part; else false, and
/// nothing is done.
template <class Memory>
GPUDT_HD bool copy_short(Address from, Address to, std::int64_t bytes, std::int64_t index, std::int64_t count,
                         const Memory& memory) {
  const int word = KnownMove::known_word(from | to);
  if (bytes > words_at_once * word * count) return false;
  const auto few = static_cast<std::int32_t>(bytes), words = few / word;
  const auto mine = static_cast<std::int32_t>(index), all = static_cast<std::int32_t>(count);
  if (word == 16) copy_few_words<device::Word16>(from, to, words, mine, all, memory);
  if (word == 8) copy_few_words<std::uint64_t>(from, to, words, mine, all, memory);
  if (word == 4) copy_few_words<std::uint32_t>(from, to, words, mine, all, memory);
  if (word == 1) copy_few_words<std::uint8_t>(from, to, words, mine, all, memory);
  for (std::int32_t at = words * word + mine; at < few; at += all)
    memory.template store<std::uint8_t>(to + static_cast<Address>(at),
                                        memory.template load<std::uint8_t>(from + static_cast<Address>(at)));
  return true;
}

}  // namespace gpudt::initiated
