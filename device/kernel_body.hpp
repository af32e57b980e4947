// The bodies of the pack and unpack kernels: everything that computes a place from an index and everything that
// puts words together or takes them apart, written once as host+device inline functions.
//
// cuda/kernels.cu runs these bodies on GPU threads; run_on_host() below does the work of a whole launch serially,
// which is what the simulated device and the tests on machines without a GPU use. Terms: a *position* is an index
// into the packed stream of the whole message; a *unit* is what the map counts in (a word for Method::words, else
// a byte); a *run* is a contiguous piece of the user's data.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>

#include "datatype/traverse.hpp"
#include "device/kernel_args.hpp"

#if defined(__CUDA_ARCH__)
#define GPUDT_UNROLL _Pragma("unroll")
#else
#define GPUDT_UNROLL
#endif

namespace gpudt::device {

// --- division by invariants ----------------------------------------------------------------------------------------

GPUDT_HD std::uint64_t multiply_high(std::uint64_t a, std::uint64_t b) {
#if defined(__CUDA_ARCH__)
  return __umul64hi(a, b);
#else
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>((static_cast<Wide>(a) * b) >> 64);
#endif
}

GPUDT_HD std::uint32_t multiply_high(std::uint32_t a, std::uint32_t b) {
#if defined(__CUDA_ARCH__)
  return __umulhi(a, b);
#else
  return static_cast<std::uint32_t>((static_cast<std::uint64_t>(a) * b) >> 32);
#endif
}

/// For dividends of 63 bits, or of 31 if `narrow` (then for divide(uint32_t) only). value >= 1.
/// With N bits of dividend and l = ceil(log2 value), magic = ceil(2^(N+l) / value) < 2^(N+1) makes
/// (2n * magic) >> (N+1+l) exact for all n < 2^N (Granlund and Montgomery, theorem 4.2).
inline Divisor make_divisor(std::uint64_t value, bool narrow = false) {
  Divisor divisor;
  divisor.value = value;
  std::uint32_t log = 0;
  while (log < 63 && (std::uint64_t{1} << log) < value) ++log;
  if (!narrow) {
    __extension__ using Wide = unsigned __int128;
    const bool power = (value & (value - 1)) == 0;
    divisor.magic =
        power ? std::uint64_t{1} << 63 : static_cast<std::uint64_t>(((Wide{1} << (63 + log)) + value - 1) / value);
    divisor.shift = log;
  } else if (log <= 31) {
    divisor.magic = ((std::uint64_t{1} << (31 + log)) + value - 1) / value;
    divisor.shift = log;
  }  // else no dividend reaches the divisor: magic 0 gives the quotient 0
  return divisor;
}

GPUDT_HD std::uint64_t divide(std::uint64_t n, const Divisor& divisor) {
  return multiply_high(n << 1, divisor.magic) >> divisor.shift;
}

GPUDT_HD std::uint32_t divide(std::uint32_t n, const Divisor& divisor) {
  return multiply_high(n << 1, static_cast<std::uint32_t>(divisor.magic)) >> divisor.shift;
}

// --- maps: from a unit of the packed stream to its place in the user's data -----------------------------------------
//
// What every place needs comes first in a map, and what only repetitions need last: kernels.cu says why.

using Address = std::uintptr_t;

/// A unit lies `offset` bytes from the user's address; its run has `before` bytes before that and `left` from there
/// on. A map that does not know what lies before says 0.
struct RunPlace {
  std::int64_t offset;
  std::int64_t before;
  std::int64_t left;
};

/// Maps that need no preparation of a tile of the stream.
struct NoTile {};

/// A word of a list in global memory, which nothing writes while kernels run.
GPUDT_HD std::int64_t list_word(const std::int64_t* at) {
#if defined(__CUDA_ARCH__)
  return __ldg(at);
#else
  return *at;
#endif
}

/// Nested strides of at most `most` levels.
template <int most>
struct Levels {
  struct Level {
    std::int64_t stride;
    Divisor count;
  };
  std::int32_t ndims;
  Level level[most];

  template <class Index>
  GPUDT_HD std::int64_t offset(Index index) const {
    std::int64_t offset = 0;
    GPUDT_UNROLL
    for (int d = most - 1; d > 0; --d) {
      if (d < ndims) {
        const Index outer = divide(index, level[d].count);
        offset += static_cast<std::int64_t>(index - outer * static_cast<Index>(level[d].count.value)) * level[d].stride;
        index = outer;
      }
    }
    return offset + static_cast<std::int64_t>(index) * level[0].stride;
  }

  void set(const KernelArgs& args) {
    ndims = args.shape.ndims;
    for (int d = 0; d < most; ++d) {
      level[d].stride = d < ndims ? args.shape.dims[d].stride : 0;
      level[d].count = d > 0 && d < ndims ? args.divide[d] : Divisor{};
    }
  }
};

inline std::int32_t unit_shift_of(const KernelArgs& args) {
  std::int32_t shift = 0;
  if (args.method == Method::words)
    while ((1 << shift) < args.word) ++shift;
  return shift;
}

/// Runs at nested strides.
template <class Index_, int most>
struct StridedMap {
  using Index = Index_;
  using Tile = NoTile;
  static constexpr int dims = most;
  std::int64_t base;
  std::int64_t run_bytes;
  Divisor run;
  std::int32_t unit_shift;
  Levels<most> levels;

  explicit StridedMap(const KernelArgs& args)
      : base(args.shape.offset), run_bytes(args.shape.run), run(args.divide[0]), unit_shift(unit_shift_of(args)) {
    levels.set(args);
  }
  GPUDT_HD Tile whole() const { return {}; }
  GPUDT_HD RunPlace place(Index unit, const Tile&) const {
    const Index index = divide(unit, run);
    const std::int64_t inner = static_cast<std::int64_t>(unit - index * static_cast<Index>(run.value)) << unit_shift;
    return {base + levels.offset(index) + inner, inner, run_bytes - inner};
  }
  /// Where a run begins.
  GPUDT_HD std::int64_t run_offset(Index index) const { return base + levels.offset(index); }
};

/// One run. plan() rebases its positions, so that only those from begin to end have bytes behind them.
template <class Index_>
struct StridedMap<Index_, 0> {
  using Index = Index_;
  using Tile = NoTile;
  static constexpr int dims = 0;
  std::int64_t base;
  std::int64_t begin, end;
  std::int32_t unit_shift;

  explicit StridedMap(const KernelArgs& args)
      : base(args.shape.offset), begin(args.begin), end(args.end), unit_shift(unit_shift_of(args)) {}
  GPUDT_HD Tile whole() const { return {}; }
  GPUDT_HD RunPlace place(Index unit, const Tile&) const {
    const std::int64_t position = static_cast<std::int64_t>(unit) << unit_shift;
    return {base + position, position - begin, end - position};
  }
};

/// An index list of equal runs, inside nested strides.
template <class Index_>
struct RegularMap {
  using Index = Index_;
  using Tile = NoTile;
  static constexpr int dims = datatype::max_dims;
  std::int64_t base;
  std::int64_t run_bytes;
  const std::int64_t* displs;
  Divisor run;
  std::int32_t unit_shift;
  Levels<datatype::max_dims> levels;
  Divisor list;

  explicit RegularMap(const KernelArgs& args)
      : base(args.shape.offset),
        run_bytes(args.shape.run),
        displs(args.program.lookaside + args.shape.list_displs),
        run(args.divide[datatype::max_dims]),
        unit_shift(unit_shift_of(args)),
        list(args.divide[0]) {
    levels.set(args);
  }
  GPUDT_HD Tile whole() const { return {}; }

  /// A place but for the displacement of its entry. Found with branches: whoever wants several places finds all of
  /// these before the first lookup(), so that the lookups are under way at the same time.
  struct Spot {
    std::int64_t offset, inner;
    Index entry;
  };
  GPUDT_HD Spot spot(Index unit) const {
    std::int64_t offset = base;
    if (levels.ndims > 0) {
      const Index traversal = divide(unit, list);
      unit -= traversal * static_cast<Index>(list.value);
      offset += levels.offset(traversal);
    }
    const Index entry = divide(unit, run);
    const std::int64_t inner = static_cast<std::int64_t>(unit - entry * static_cast<Index>(run.value)) << unit_shift;
    return {offset + inner, inner, entry};
  }
  GPUDT_HD std::int64_t lookup(const Spot& at) const { return at.offset + list_word(displs + at.entry); }
  GPUDT_HD RunPlace place(Index unit, const Tile&) const {
    const Spot at = spot(unit);
    return {lookup(at), at.inner, run_bytes - at.inner};
  }
  GPUDT_HD std::int64_t run_offset(Index index) const {
    return place(index * static_cast<Index>(run.value), NoTile()).offset;
  }
};

/// Entries of an irregular list that hold all units of a tile of the packed stream.
struct ListTile {
  std::int64_t count;
  const std::int64_t* prefix;  ///< count + 1 of the list's prefix sums, perhaps in shared memory
  const std::int64_t* displs;  ///< the entries' displacements
};

/// An index list of runs of any lengths, inside nested strides.
template <class Index_>
struct IrregularMap {
  using Index = Index_;
  using Tile = ListTile;
  static constexpr int dims = datatype::max_dims;
  std::int64_t base;
  std::int64_t list_count;
  std::int64_t list_size;
  const std::int64_t* displs;
  const std::int64_t* prefix;
  std::int32_t unit_shift;
  Levels<datatype::max_dims> levels;
  Divisor list;

  explicit IrregularMap(const KernelArgs& args)
      : base(args.shape.offset),
        list_count(args.shape.list_count),
        list_size(args.shape.list_size),
        displs(args.program.lookaside + args.shape.list_displs),
        prefix(args.program.lookaside + args.shape.list_prefix),
        unit_shift(unit_shift_of(args)),
        list(args.divide[0]) {
    levels.set(args);
  }
  GPUDT_HD Tile whole() const { return {list_count, prefix, displs}; }

  struct Spot {
    Index traversal;        ///< which repetition of the list
    std::int64_t position;  ///< in the packed bytes of that repetition
  };
  GPUDT_HD Spot spot(Index unit) const {
    const Index traversal = levels.ndims > 0 ? divide(unit, list) : Index{0};
    return {traversal, static_cast<std::int64_t>(unit - traversal * static_cast<Index>(list.value)) << unit_shift};
  }
  /// datatype::find_block(), in 32-bit arithmetic for a third of the instructions where all positions fit (plan.cpp).
  GPUDT_HD static std::int64_t entry(const Tile& tile, std::int64_t position) {
    if constexpr (sizeof(Index) == sizeof(std::int64_t)) {
      return datatype::find_block(tile.prefix, tile.count, position);
    } else {
      const auto wanted = static_cast<std::int32_t>(position);
      std::int32_t low = 0, high = static_cast<std::int32_t>(tile.count);
      while (high - low > 1) {
        const std::int32_t middle = low + ((high - low) >> 1);
        const bool before = static_cast<std::int32_t>(tile.prefix[middle]) <= wanted;
        low = before ? middle : low;
        high = before ? high : middle;
      }
      return low;
    }
  }
  GPUDT_HD RunPlace place(Index unit, const Tile& tile) const {
    const Spot at = spot(unit);
    const std::int64_t near = entry(tile, at.position);
    const std::int64_t inner = at.position - tile.prefix[near];
    return {base + levels.offset(at.traversal) + tile.displs[near] + inner, inner, tile.prefix[near + 1] - at.position};
  }
  /// The tile of units first .. last: one search per end.
  GPUDT_HD Tile cover(Index first, Index last) const {
    const Spot begin = spot(first), end = spot(last);
    if (begin.traversal != end.traversal) return whole();
    const std::int64_t low = datatype::find_block(prefix, list_count, begin.position);
    const std::int64_t count = datatype::find_block(prefix + low, list_count - low, end.position) + 1;
    return {count, prefix + low, displs + low};
  }
};

/// The runs of an irregular list one by one, for Method::entries. All positions fit 32 bits.
struct EntryMap {
  using Index = std::uint32_t;
  using Tile = NoTile;
  static constexpr int dims = datatype::max_dims;
  std::int64_t base;
  const std::int64_t* displs;
  const std::int64_t* prefix;
  Index first, last;
  std::int32_t threads_log;
  std::int32_t list_size;
  Levels<datatype::max_dims> levels;
  Divisor entries;  ///< of the list

  explicit EntryMap(const KernelArgs& args)
      : base(args.shape.offset),
        displs(args.program.lookaside + args.shape.list_displs),
        prefix(args.program.lookaside + args.shape.list_prefix),
        first(static_cast<Index>(args.first_entry)),
        last(static_cast<Index>(args.last_entry)),
        threads_log(args.entry_threads_log),
        list_size(static_cast<std::int32_t>(args.shape.list_size)),
        entries(args.divide[datatype::max_dims]) {
    levels.set(args);
  }

  struct Entry {
    std::int64_t offset;           ///< from the user's address
    std::int32_t position, bytes;  ///< in the packed stream
  };
  /// Entry `index`, counted through the list's repetitions.
  GPUDT_HD Entry entry(Index index) const {
    std::int64_t offset = base;
    std::int32_t position = 0;
    if (levels.ndims > 0) {
      const Index traversal = divide(index, entries);
      index -= traversal * static_cast<Index>(entries.value);
      offset += levels.offset(traversal);
      position = static_cast<std::int32_t>(traversal) * list_size;
    }
    const auto start = static_cast<std::int32_t>(list_word(prefix + index));
    const auto end = static_cast<std::int32_t>(list_word(prefix + index + 1));
    return {offset + list_word(displs + index), position + start, end - start};
  }
};

/// Any type: the point-based traversal.
struct GeneralMap {
  using Index = std::uint64_t;
  using Tile = NoTile;
  static constexpr int dims = datatype::max_dims;
  std::int64_t base;
  std::int64_t extent;
  Divisor element;
  datatype::Program program;
  std::uint32_t root;
  std::int32_t unit_shift;

  explicit GeneralMap(const KernelArgs& args)
      : base(args.shape.offset),
        extent(args.shape.extent),
        element(args.divide[0]),
        program(args.program),
        root(args.shape.root),
        unit_shift(unit_shift_of(args)) {}
  GPUDT_HD Tile whole() const { return {}; }
  GPUDT_HD RunPlace place(Index unit, const Tile&) const {
    const Index index = divide(unit, element);
    const std::int64_t inner = static_cast<std::int64_t>(unit - index * element.value) << unit_shift;
    const datatype::Place place = datatype::locate(program, root, inner);
    return {base + static_cast<std::int64_t>(index) * extent + place.offset, 0, place.length};
  }
};

/// What every kernel gets: a map, and the range that it is applied to.
template <class Map_>
struct Job {
  using Map = Map_;
  Address user;
  Address packed;  ///< where position 0 would lie: address arithmetic only
  std::int64_t begin, end;
  Map map;

  explicit Job(const KernelArgs& args)
      : user(reinterpret_cast<Address>(args.user)),
        packed(reinterpret_cast<Address>(args.packed) - static_cast<Address>(args.begin)),
        begin(args.begin),
        end(args.end),
        map(args) {}
};

// --- access to memory -----------------------------------------------------------------------------------------------

struct alignas(16) Word16 {
  std::uint32_t lane[4];
};

/// Loads and stores of a serial run on the host; `translate` turns an address that a kernel would use into one that
/// the host may use.
template <class Translate>
struct HostMemory {
  const Translate& translate;

  template <class Word>
  Word load(Address address) const {
    Word word;
    std::memcpy(&word, translate(reinterpret_cast<const void*>(address)), sizeof word);
    return word;
  }
  template <class Word>
  void store(Address address, const Word& word) const {
    std::memcpy(translate(reinterpret_cast<const void*>(address)), &word, sizeof word);
  }
};

// --- Method::words --------------------------------------------------------------------------------------------------

/// Independent loads that each thread of Method::words has in flight.
constexpr int words_per_thread = 4;
/// Threads of a block, unless a single block does it all.
constexpr int block_threads = 256;

/// The whole words of a range, and the bytes before and after them.
struct WordRange {
  std::int64_t first, last;           ///< words [first, last)
  std::int64_t head_end, tail_begin;  ///< bytes [begin, head_end) and [tail_begin, end)
};

GPUDT_HD WordRange whole_words(std::int64_t begin, std::int64_t end, std::int32_t word) {
  const std::int64_t mask = word - 1;
  WordRange range;
  range.first = (begin + mask) / word;
  range.last = end / word;
  if (range.first >= range.last) {
    range.last = range.first;
    range.head_end = range.tail_begin = end;
  } else {
    range.head_end = range.first * word;
    range.tail_begin = range.last * word;
  }
  return range;
}

template <class Word, bool unpack, class Map, class Memory>
GPUDT_HD void move_word(const Job<Map>& job, const Memory& memory, typename Map::Index index,
                        const typename Map::Tile& tile) {
  const Address user = job.user + static_cast<Address>(job.map.place(index, tile).offset);
  const Address packed = job.packed + static_cast<Address>(index) * sizeof(Word);
  if constexpr (unpack)
    memory.template store<Word>(user, memory.template load<Word>(packed));
  else
    memory.template store<Word>(packed, memory.template load<Word>(user));
}

/// One byte of a range's ragged ends.
template <bool unpack, class Map, class Memory>
GPUDT_HD void move_byte(const Job<Map>& job, const Memory& memory, std::int64_t position) {
  const auto unit = static_cast<typename Map::Index>(position >> job.map.unit_shift);
  const std::int64_t inner = position & ((std::int64_t{1} << job.map.unit_shift) - 1);
  const Address user = job.user + static_cast<Address>(job.map.place(unit, job.map.whole()).offset + inner);
  const Address packed = job.packed + static_cast<Address>(position);
  if constexpr (unpack)
    memory.template store<std::uint8_t>(user, memory.template load<std::uint8_t>(packed));
  else
    memory.template store<std::uint8_t>(packed, memory.template load<std::uint8_t>(user));
}

// --- Method::entries ------------------------------------------------------------------------------------------------

/// Entries that each thread has in flight, and words of each.
constexpr int entries_per_thread = 2;
constexpr int words_per_entry = 1;

/// The part of an entry that lies in a job's range. Ranges are whole words here, as entries are.
struct EntryWords {
  Address user, packed;
  std::int32_t count;
};

template <class Word>
GPUDT_HD EntryWords entry_words(const Job<EntryMap>& job, EntryMap::Index index) {
  const EntryMap::Entry entry = job.map.entry(index);
  const auto begin = static_cast<std::int32_t>(job.begin), end = static_cast<std::int32_t>(job.end);
  const std::int32_t low = entry.position < begin ? begin : entry.position;
  const std::int32_t high = entry.position + entry.bytes < end ? entry.position + entry.bytes : end;
  return {job.user + static_cast<Address>(entry.offset + (low - entry.position)),
          job.packed + static_cast<Address>(low), (high - low) / static_cast<std::int32_t>(sizeof(Word))};
}

// --- Method::gather -------------------------------------------------------------------------------------------------

/// The low 32 bits of (high:low) >> bits, 0 <= bits < 32.
GPUDT_HD std::uint32_t funnel_right(std::uint32_t low, std::uint32_t high, std::uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __funnelshift_r(low, high, bits);
#else
  return static_cast<std::uint32_t>(((static_cast<std::uint64_t>(high) << 32) | low) >> bits);
#endif
}

/// The high 32 bits of (high:low) << bits, 0 <= bits < 32.
GPUDT_HD std::uint32_t funnel_left(std::uint32_t low, std::uint32_t high, std::uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __funnelshift_l(low, high, bits);
#else
  return static_cast<std::uint32_t>((((static_cast<std::uint64_t>(high) << 32) | low) << bits) >> 32);
#endif
}

/// Bytes [low, high) of a 32-bit word, both clamped to 0 .. 4.
GPUDT_HD std::uint32_t byte_mask(int low, int high) {
  const std::uint32_t from = low <= 0 ? ~0u : low >= 4 ? 0u : ~0u << (8 * low);
  const std::uint32_t to = high >= 4 ? ~0u : high <= 0 ? 0u : ~(~0u << (8 * high));
  return from & to;
}

constexpr Address word4_mask = ~static_cast<Address>(3);
constexpr Address word16_mask = ~static_cast<Address>(15);

/// Bytes [from, to) of the aligned 4-byte word that holds them, in their places; not one byte more is read.
template <class Memory>
GPUDT_HD std::uint32_t load_bytes(const Memory& memory, Address from, Address to) {
  std::uint32_t word = 0;
  for (Address address = from; address < to; ++address)
    word |= static_cast<std::uint32_t>(memory.template load<std::uint8_t>(address)) << (8 * (address & 3));
  return word;
}

template <class Memory>
GPUDT_HD void store_bytes(const Memory& memory, Address from, Address to, std::uint32_t word) {
  for (Address address = from; address < to; ++address)
    memory.template store<std::uint8_t>(address, static_cast<std::uint8_t>(word >> (8 * (address & 3))));
}

/// 16 bytes from any address, by two aligned loads; all of both must be readable.
template <class Memory>
GPUDT_HD Word16 load_shifted(const Memory& memory, Address address) {
  const Address aligned = address & word16_mask;
  const Word16 low = memory.template load<Word16>(aligned);
  if (aligned == address) return low;
  const Word16 high = memory.template load<Word16>(aligned + 16);
  std::uint32_t x[8] = {low.lane[0],  low.lane[1],  low.lane[2],  low.lane[3],
                        high.lane[0], high.lane[1], high.lane[2], high.lane[3]};
  if (address & 8) {
    GPUDT_UNROLL
    for (int i = 0; i < 6; ++i) x[i] = x[i + 2];
  }
  if (address & 4) {
    GPUDT_UNROLL
    for (int i = 0; i < 5; ++i) x[i] = x[i + 1];
  }
  const auto bits = static_cast<std::uint32_t>(8 * (address & 3));
  Word16 word;
  GPUDT_UNROLL
  for (int i = 0; i < 4; ++i) word.lane[i] = funnel_right(x[i], x[i + 1], bits);
  return word;
}

/// Fills bytes [at, at + bytes) of a packed word from `address`, which lies in `run`. Reads aligned words as wide as
/// the run allows and shifts them into place; nothing outside the run is read.
template <class Memory>
GPUDT_HD void gather_piece(const Memory& memory, Address address, int at, int bytes, const RunPlace& run,
                           Word16& word) {
  const Address run_begin = address - static_cast<Address>(run.before);
  const Address run_end = address + static_cast<Address>(run.left);
  const Address aligned = address & word16_mask;
  if (bytes == 16 && (aligned == address || (aligned >= run_begin && run_end - aligned >= 32))) {
    word = load_shifted(memory, address);
    return;
  }
  const Address end = address + static_cast<Address>(bytes);
  const Address origin = address - static_cast<Address>(at);  // where byte 0 of the packed word would come from
  const Address base = origin & word4_mask;
  std::uint32_t x[5];
  GPUDT_UNROLL
  for (int i = 0; i < 5; ++i) {
    const Address from = base + 4 * static_cast<Address>(i);
    const bool wanted = from + 4 > address && from < end;
    x[i] = wanted && from >= run_begin && from + 4 <= run_end ? memory.template load<std::uint32_t>(from) : 0u;
  }
  // The run's own ends, where an aligned word would reach beyond it.
  const Address first = address & word4_mask;
  const Address last = (end - 1) & word4_mask;
  const bool ragged_first = first < run_begin || first + 4 > run_end;
  if (ragged_first) {
    const std::uint32_t bits = load_bytes(memory, address, end < first + 4 ? end : first + 4);
    GPUDT_UNROLL
    for (int i = 0; i < 5; ++i) x[i] = base + 4 * static_cast<Address>(i) == first ? bits : x[i];
  }
  if (last != first && last + 4 > run_end) {
    const std::uint32_t bits = load_bytes(memory, last, end);
    GPUDT_UNROLL
    for (int i = 0; i < 5; ++i) x[i] = base + 4 * static_cast<Address>(i) == last ? bits : x[i];
  }
  const auto bits = static_cast<std::uint32_t>(8 * (origin & 3));
  GPUDT_UNROLL
  for (int i = 0; i < 4; ++i)
    word.lane[i] |= funnel_right(x[i], x[i + 1], bits) & byte_mask(at - 4 * i, at + bytes - 4 * i);
}

/// The inverse: bytes [at, at + bytes) of a packed word go to `address`; nothing else is written.
template <class Memory>
GPUDT_HD void scatter_piece(const Memory& memory, Address address, int at, int bytes, const Word16& word) {
  if (bytes == 16 && (address & 15) == 0) {
    memory.template store<Word16>(address, word);
    return;
  }
  const Address end = address + static_cast<Address>(bytes);
  const Address origin = address - static_cast<Address>(at);
  const Address base = origin & word4_mask;
  const auto bits = static_cast<std::uint32_t>(8 * (origin & 3));
  const Address first = address & word4_mask;
  const Address last = (end - 1) & word4_mask;
  std::uint32_t first_bits = 0, last_bits = 0;
  GPUDT_UNROLL
  for (int i = 0; i < 5; ++i) {
    const std::uint32_t value = funnel_left(i > 0 ? word.lane[i - 1] : 0u, i < 4 ? word.lane[i] : 0u, bits);
    const Address to = base + 4 * static_cast<Address>(i);
    if (to >= address && to + 4 <= end) memory.template store<std::uint32_t>(to, value);
    first_bits = to == first ? value : first_bits;
    last_bits = to == last ? value : last_bits;
  }
  const bool ragged_first = first < address || first + 4 > end;
  if (ragged_first) store_bytes(memory, address, end < first + 4 ? end : first + 4, first_bits);
  if (last != first && last + 4 > end) store_bytes(memory, last, end, last_bits);
}

/// The 16-byte aligned words of the packed side that bytes [begin, end) touch.
struct PackedWords {
  Address first;  ///< address of the first
  std::int64_t count;
  std::int64_t position;  ///< of the first word's byte 0; may lie before begin
};

GPUDT_HD PackedWords packed_words(Address packed, std::int64_t begin, std::int64_t end) {
  if (begin >= end) return {0, 0, begin};
  const Address from = packed + static_cast<Address>(begin), to = packed + static_cast<Address>(end);
  const Address first = from & word16_mask;
  return {first, static_cast<std::int64_t>((to - first + 15) / 16), begin - static_cast<std::int64_t>(from - first)};
}

/// Moves the part of packed word `index` of `words` that lies in positions [begin, end).
template <bool unpack, class Map, class Memory>
GPUDT_HD void move_packed_word(const Job<Map>& job, const Memory& memory, const PackedWords& words, std::int64_t index,
                               std::int64_t begin, std::int64_t end, const typename Map::Tile& tile) {
  using Index = typename Map::Index;
  const std::int64_t position = words.position + 16 * index;
  const Address packed = words.first + 16 * static_cast<Address>(index);
  const int low = position < begin ? static_cast<int>(begin - position) : 0;
  const int high = end - position < 16 ? static_cast<int>(end - position) : 16;
  const bool whole = low == 0 && high == 16;
  Word16 word = {};
  if constexpr (unpack) {
    if (whole) {
      word = memory.template load<Word16>(packed);
    } else {
      GPUDT_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int from = low > 4 * i ? low : 4 * i, to = high < 4 * i + 4 ? high : 4 * i + 4;
        if (from < to)
          word.lane[i] = load_bytes(memory, packed + static_cast<Address>(from), packed + static_cast<Address>(to));
      }
    }
  }
  for (int at = low; at < high;) {
    const RunPlace run = job.map.place(static_cast<Index>(position + at), tile);
    const int bytes = run.left < high - at ? static_cast<int>(run.left) : high - at;
    const Address user = job.user + static_cast<Address>(run.offset);
    if constexpr (unpack)
      scatter_piece(memory, user, at, bytes, word);
    else
      gather_piece(memory, user, at, bytes, run, word);
    at += bytes;
  }
  if constexpr (!unpack) {
    if (whole) {
      memory.template store<Word16>(packed, word);
    } else {
      GPUDT_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int from = low > 4 * i ? low : 4 * i, to = high < 4 * i + 4 ? high : 4 * i + 4;
        if (from < to)
          store_bytes(memory, packed + static_cast<Address>(from), packed + static_cast<Address>(to), word.lane[i]);
      }
    }
  }
}

// --- Method::runs ---------------------------------------------------------------------------------------------------

constexpr int lanes = 32;             ///< threads of a warp: each moves one run of a group
constexpr int shortest_lane_run = 3;  ///< so that an aligned word touches at most two runs
constexpr int longest_lane_run = 32;
constexpr int lane_words = longest_lane_run / 4;
constexpr int few_lane_words = 5;  ///< shorter runs have a kernel of their own, with less to unroll
/// Words of shared memory per warp: a group of the longest runs, and what shifting reads beyond.
constexpr int group_words = lanes * lane_words + 4;

/// The whole runs of a range in groups of 32, of which the last may have fewer. The first group begins at a multiple of
/// 32 runs, so that its packed side is 16-byte aligned if position 0 is. All positions fit 32 bits.
struct GroupRange {
  std::int32_t first;                 ///< group
  std::int32_t runs_end;              ///< run after the last; no run if not beyond the first group's first
  std::int64_t head_end, tail_begin;  ///< positions: [begin, head_end) and [tail_begin, end) are not in groups
};

template <class Map>
GPUDT_HD GroupRange whole_groups(const Job<Map>& job) {
  const auto run = static_cast<std::uint32_t>(job.map.run_bytes), bytes = run * lanes;
  const auto first = static_cast<std::int32_t>((static_cast<std::uint32_t>(job.begin) + bytes - 1) / bytes);
  const auto runs_end = static_cast<std::int32_t>(static_cast<std::uint32_t>(job.end) / run);
  if (first * lanes >= runs_end) return {first, first * lanes, job.end, job.end};
  return {first, runs_end, static_cast<std::int64_t>(first) * bytes, static_cast<std::int64_t>(runs_end) * run};
}

/// The widest access, 1, 4 or 8 bytes, that addresses allow whose bits are or-ed into `bits`.
GPUDT_HD int access_width(std::uint32_t bits) {
  return (bits & 3) != 0 ? 1 : (bits & 4) != 0 ? 4 : 8;
}

/// Loads one run of `bytes`, at most 4 * (size - 1), at `address` into x, with accesses of at most `word` bytes, which
/// the address allows.
template <int size, class Memory>
GPUDT_HD void load_run(const Memory& memory, Address address, int bytes, int word, std::uint32_t (&x)[size]) {
  const int full = bytes >> 2;
  GPUDT_UNROLL
  for (int i = 0; i < size; ++i) x[i] = 0;
  if (word >= 4) {
    GPUDT_UNROLL
    for (int i = 0; i < size - 1; i += 2) {
      const Address from = address + 4 * static_cast<Address>(i);
      if (word >= 8 && i + 1 < full) {
        const auto pair = memory.template load<std::uint64_t>(from);
        x[i] = static_cast<std::uint32_t>(pair);
        x[i + 1] = static_cast<std::uint32_t>(pair >> 32);
      } else {
        if (i < full) x[i] = memory.template load<std::uint32_t>(from);
        if (i + 1 < full) x[i + 1] = memory.template load<std::uint32_t>(from + 4);
      }
    }
    std::uint32_t tail = 0;
    const Address from = address + 4 * static_cast<Address>(full);
    if (bytes & 2) tail = memory.template load<std::uint16_t>(from);
    if (bytes & 1)
      tail |= static_cast<std::uint32_t>(memory.template load<std::uint8_t>(from + static_cast<Address>(bytes & 2)))
              << (8 * (bytes & 2));
    GPUDT_UNROLL
    for (int i = 0; i < size - 1; ++i) x[i] = i == full ? tail : x[i];
    return;
  }
  GPUDT_UNROLL
  for (int i = 0; i < size - 1; ++i) {
    GPUDT_UNROLL
    for (int j = 0; j < 4; ++j)
      if (4 * i + j < bytes)
        x[i] |=
            static_cast<std::uint32_t>(memory.template load<std::uint8_t>(address + static_cast<Address>(4 * i + j)))
            << (8 * j);
  }
}

template <int size, class Memory>
GPUDT_HD void store_run(const Memory& memory, Address address, int bytes, int word, const std::uint32_t (&x)[size]) {
  const int full = bytes >> 2;
  if (word >= 4) {
    std::uint32_t tail = 0;
    GPUDT_UNROLL
    for (int i = 0; i < size - 1; i += 2) {
      const Address to = address + 4 * static_cast<Address>(i);
      if (word >= 8 && i + 1 < full) {
        memory.template store<std::uint64_t>(to, x[i] | (static_cast<std::uint64_t>(x[i + 1]) << 32));
      } else {
        if (i < full) memory.template store<std::uint32_t>(to, x[i]);
        if (i + 1 < full) memory.template store<std::uint32_t>(to + 4, x[i + 1]);
      }
      tail = i == full ? x[i] : i + 1 == full ? x[i + 1] : tail;
    }
    const Address to = address + 4 * static_cast<Address>(full);
    if (bytes & 2) memory.template store<std::uint16_t>(to, static_cast<std::uint16_t>(tail));
    if (bytes & 1)
      memory.template store<std::uint8_t>(to + static_cast<Address>(bytes & 2),
                                          static_cast<std::uint8_t>(tail >> (8 * (bytes & 2))));
    return;
  }
  GPUDT_UNROLL
  for (int i = 0; i < size - 1; ++i) {
    GPUDT_UNROLL
    for (int j = 0; j < 4; ++j)
      if (4 * i + j < bytes)
        memory.template store<std::uint8_t>(address + static_cast<Address>(4 * i + j),
                                            static_cast<std::uint8_t>(x[i] >> (8 * j)));
  }
}

/// Pack: writes the aligned words that begin in this lane's run to the group's packed image. `next` is the first
/// word of the next lane's run (any value for the last lane: what it adds lies beyond the group).
template <int size>
GPUDT_HD void run_to_image(int lane, int bytes, std::uint32_t (&x)[size], std::uint32_t next, std::uint32_t* image) {
  const int full = bytes >> 2;
  const auto tail_bits = static_cast<std::uint32_t>(8 * (bytes & 3));
  const std::uint32_t rest = tail_bits == 0 ? 0u : next >> (32 - tail_bits);
  GPUDT_UNROLL
  for (int i = 0; i < size; ++i) {
    const std::uint32_t joined = x[i] | (next << tail_bits);  // without a tail, x[full] is 0
    x[i] = i == full ? joined : i == full + 1 ? rest : x[i];
  }
  const int begin = lane * bytes;
  const int first = (begin + 3) >> 2, count = ((begin + bytes + 3) >> 2) - first;
  const auto bits = static_cast<std::uint32_t>(8 * (4 * first - begin));
  GPUDT_UNROLL
  for (int i = 0; i < size - 1; ++i)
    if (i < count) image[first + i] = funnel_right(x[i], x[i + 1], bits);
}

/// Unpack: this lane's run out of the group's packed image. Bits beyond the run are whatever follows it.
template <int size>
GPUDT_HD void run_from_image(int lane, int bytes, const std::uint32_t* image, std::uint32_t (&x)[size]) {
  const int begin = lane * bytes;
  const int first = begin >> 2, count = (bytes + 3) >> 2;
  const auto bits = static_cast<std::uint32_t>(8 * (begin & 3));
  std::uint32_t low = image[first];
  GPUDT_UNROLL
  for (int i = 0; i < size - 1; ++i) {
    if (i < count) {
      const std::uint32_t high = image[first + i + 1];
      x[i] = funnel_right(low, high, bits);
      low = high;
    }
  }
}

/// Where a run begins.
template <class Map>
GPUDT_HD Address run_address(const Job<Map>& job, std::int32_t index) {
  return job.user + static_cast<Address>(job.map.run_offset(static_cast<typename Map::Index>(index)));
}

// --- choice of the instance -----------------------------------------------------------------------------------------

/// The maps that visit_map() may choose.
using AllMaps =
    std::tuple<StridedMap<std::uint32_t, 0>, StridedMap<std::uint32_t, 1>, StridedMap<std::uint32_t, 3>,
               StridedMap<std::uint32_t, datatype::max_dims>, StridedMap<std::uint64_t, 0>,
               StridedMap<std::uint64_t, datatype::max_dims>, RegularMap<std::uint32_t>, RegularMap<std::uint64_t>,
               IrregularMap<std::uint32_t>, IrregularMap<std::uint64_t>, EntryMap, GeneralMap>;

/// Returns visit(std::type_identity<Map>()) with the type of the map that `args` describes, the same for a kernel
/// launch and for run_on_host(). Words of less than 4 bytes are for small messages only: all strided ones share an
/// instance.
template <class Visit>
auto visit_map(const KernelArgs& args, Visit&& visit) {
  using datatype::ShapeKind;
  using Narrow = std::uint32_t;
  using Wide = std::uint64_t;
  constexpr int most = datatype::max_dims;
  const bool regular = args.shape.run > 0;
  switch (args.shape.kind) {
    case ShapeKind::list:
      if (args.method == Method::entries) return visit(std::type_identity<EntryMap>());
      if (regular && args.narrow) return visit(std::type_identity<RegularMap<Narrow>>());
      if (regular) return visit(std::type_identity<RegularMap<Wide>>());
      if (args.narrow) return visit(std::type_identity<IrregularMap<Narrow>>());
      return visit(std::type_identity<IrregularMap<Wide>>());
    case ShapeKind::general:
      return visit(std::type_identity<GeneralMap>());
    default:
      if (args.narrow && args.method == Method::words && args.word < 4)
        return visit(std::type_identity<StridedMap<Narrow, most>>());
      if (args.shape.ndims == 0)
        return args.narrow ? visit(std::type_identity<StridedMap<Narrow, 0>>())
                           : visit(std::type_identity<StridedMap<Wide, 0>>());
      if (!args.narrow) return visit(std::type_identity<StridedMap<Wide, most>>());
      if (args.shape.ndims == 1) return visit(std::type_identity<StridedMap<Narrow, 1>>());
      if (args.shape.ndims <= 3) return visit(std::type_identity<StridedMap<Narrow, 3>>());
      return visit(std::type_identity<StridedMap<Narrow, most>>());
  }
}

// --- a whole launch, serially ---------------------------------------------------------------------------------------

namespace host {

/// Packed bytes that share one search of an irregular list, as a thread block's tile does.
constexpr std::int64_t tile_units = 1024;

template <class Map>
typename Map::Tile cover(const Map& map, std::int64_t first, std::int64_t last) {
  using Index = typename Map::Index;
  if constexpr (std::is_same_v<typename Map::Tile, NoTile>)
    return map.whole();
  else
    return map.cover(static_cast<Index>(first), static_cast<Index>(last));
}

template <class Word, bool unpack, class Map, class Memory>
void run_words(const Job<Map>& job, const Memory& memory) {
  const WordRange range = whole_words(job.begin, job.end, static_cast<std::int32_t>(sizeof(Word)));
  for (std::int64_t p = job.begin; p < range.head_end; ++p) move_byte<unpack>(job, memory, p);
  for (std::int64_t first = range.first; first < range.last; first += tile_units) {
    const std::int64_t last = range.last - first < tile_units ? range.last : first + tile_units;
    const auto tile = cover(job.map, first, last - 1);
    for (std::int64_t i = first; i < last; ++i)
      move_word<Word, unpack>(job, memory, static_cast<typename Map::Index>(i), tile);
  }
  for (std::int64_t p = range.tail_begin; p < job.end; ++p) move_byte<unpack>(job, memory, p);
}

template <class Word, bool unpack, class Memory>
void run_words(const Job<EntryMap>& job, const Memory& memory) {
  for (EntryMap::Index i = job.map.first; i < job.map.last; ++i) {
    const EntryWords entry = entry_words<Word>(job, i);
    for (std::int32_t w = 0; w < entry.count; ++w) {
      const Address user = entry.user + static_cast<Address>(w) * sizeof(Word);
      const Address packed = entry.packed + static_cast<Address>(w) * sizeof(Word);
      memory.template store<Word>(unpack ? user : packed, memory.template load<Word>(unpack ? packed : user));
    }
  }
}

template <bool unpack, class Map, class Memory>
void run_gather(const Job<Map>& job, const Memory& memory, std::int64_t begin, std::int64_t end) {
  const PackedWords words = packed_words(job.packed, begin, end);
  for (std::int64_t first = 0; first < words.count; first += tile_units) {
    const std::int64_t last = words.count - first < tile_units ? words.count : first + tile_units;
    const std::int64_t low = words.position + 16 * first, high = words.position + 16 * last;
    const auto tile = cover(job.map, low > begin ? low : begin, (high < end ? high : end) - 1);
    for (std::int64_t i = first; i < last; ++i) move_packed_word<unpack>(job, memory, words, i, begin, end, tile);
  }
}

template <bool unpack, class Map, class Memory>
void run_group(const Job<Map>& job, const Memory& memory, std::int32_t first_run, int runs) {
  const int run = static_cast<int>(job.map.run_bytes), bytes = run * runs;
  const Address packed = job.packed + static_cast<Address>(first_run) * static_cast<Address>(run);
  alignas(16) std::uint32_t image[group_words] = {};
  auto* image_bytes = reinterpret_cast<std::uint8_t*>(image);
  std::uint32_t bits = 0;
  for (int lane = 0; lane < runs; ++lane) bits |= static_cast<std::uint32_t>(run_address(job, first_run + lane));
  const int word = access_width(bits);
  const auto in_words = bytes / 16 * 16;
  if constexpr (unpack) {
    for (int i = 0; i < in_words; i += 16) {
      const Word16 value = memory.template load<Word16>(packed + static_cast<Address>(i));
      std::memcpy(image_bytes + i, &value, sizeof value);
    }
    for (int i = in_words; i < bytes; ++i)
      image_bytes[i] = memory.template load<std::uint8_t>(packed + static_cast<Address>(i));
    for (int lane = 0; lane < runs; ++lane) {
      std::uint32_t x[lane_words + 1] = {};
      run_from_image(lane, run, image, x);
      store_run(memory, run_address(job, first_run + lane), run, word, x);
    }
  } else {
    std::uint32_t x[lanes][lane_words + 1], heads[lanes + 1] = {};
    for (int lane = 0; lane < runs; ++lane) {
      load_run(memory, run_address(job, first_run + lane), run, word, x[lane]);
      heads[lane] = x[lane][0];
    }
    for (int lane = 0; lane < runs; ++lane) run_to_image(lane, run, x[lane], heads[lane + 1], image);
    for (int i = 0; i < in_words; i += 16) {
      Word16 value;
      std::memcpy(&value, image_bytes + i, sizeof value);
      memory.template store<Word16>(packed + static_cast<Address>(i), value);
    }
    for (int i = in_words; i < bytes; ++i)
      memory.template store<std::uint8_t>(packed + static_cast<Address>(i), image_bytes[i]);
  }
}

template <bool unpack, class Map, class Memory>
void run_job(const KernelArgs& args, const Job<Map>& job, const Memory& memory) {
  if constexpr (requires { &Map::place; })
    if (args.method == Method::gather) return run_gather<unpack>(job, memory, job.begin, job.end);
  if constexpr (requires { &Map::run_offset; }) {
    if (args.method == Method::runs) {
      const GroupRange groups = whole_groups(job);
      run_gather<unpack>(job, memory, job.begin, groups.head_end);
      for (std::int32_t i = groups.first * lanes; i < groups.runs_end; i += lanes)
        run_group<unpack>(job, memory, i, std::min(lanes, groups.runs_end - i));
      return run_gather<unpack>(job, memory, groups.tail_begin, job.end);
    }
  }
  switch (args.word) {
    case 16:
      return run_words<Word16, unpack>(job, memory);
    case 8:
      return run_words<std::uint64_t, unpack>(job, memory);
    case 4:
      return run_words<std::uint32_t, unpack>(job, memory);
    case 2:
      return run_words<std::uint16_t, unpack>(job, memory);
    default:
      return run_words<std::uint8_t, unpack>(job, memory);
  }
}

}  // namespace host

/// Moves the bytes of one launch of `args` serially on the host, with the arithmetic and the accesses of the kernels.
/// `translate(const void*) -> void*` is applied to each address of the user's and the packed data that is accessed
/// (an access never straddles two allocations) and to the two program pointers. The flag and the counter are not
/// touched: completion is the caller's.
template <class Translate>
void run_on_host(const KernelArgs& args, const Translate& translate) {
  KernelArgs local = args;
  if (args.program.nodes) local.program.nodes = static_cast<const datatype::Node*>(translate(args.program.nodes));
  if (args.program.lookaside)
    local.program.lookaside = static_cast<const std::int64_t*>(translate(args.program.lookaside));
  const HostMemory<Translate> memory{translate};
  visit_map(local, [&](auto map) {
    const Job<typename decltype(map)::type> job(local);
    if (local.unpack)
      host::run_job<true>(local, job, memory);
    else
      host::run_job<false>(local, job, memory);
  });
}

}  // namespace gpudt::device
