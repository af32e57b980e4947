// What the kernels compute places with: division by invariants, and maps from a unit of the packed stream to its place
// in the user's data. Host and device inline functions; kernel_body.hpp has the terms.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "datatype/traverse.hpp"
#include "device/kernels/kernel_args.hpp"

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
// Members used for every address come first in a map, members used only for repetitions last (see `Launch` in
// cuda/kernels.cu: constant-cache lines).

using Address = std::uintptr_t;

inline Address address_of(const void* address) {
  return reinterpret_cast<Address>(address);
}

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

  /// A place but for the displacement of its entry. Contains branches: compute all of these before the first lookup(),
  /// so that the loads overlap.
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

}  // namespace gpudt::device
