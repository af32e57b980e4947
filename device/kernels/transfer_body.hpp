// The bodies of the transfer kernels, which move a message from one layout to another without a packed form between
// them: on GPU threads (cuda/transfer_kernels.cu) and serially on the host, like those of kernel_body.hpp.
//
// A kernel for each pair of maps would be too many. Most exchanges have the same form on both sides, perhaps at another
// offset (a face and its ghost layer): for these there is a kernel for each map, which computes a place once. Two
// different forms are mostly strided. All else uses AnyMap on both sides, which decides at run time what it is.
#pragma once

#include "device/kernels/runs_body.hpp"

namespace gpudt::device {

/// Strided forms of up to this number of dims have their own instance; deeper ones are moved in words or by AnyMap.
constexpr int transfer_dims = 3;

/// Any form except a contiguous one, in 64-bit arithmetic.
struct AnyMap {
  using Index = std::uint64_t;
  using Tile = NoTile;
  static constexpr int dims = datatype::max_dims;
  datatype::ShapeKind kind;
  std::int64_t base, run_bytes, extent;
  Divisor outer;  ///< strided: a run; list: the list; general: an element
  Divisor run;    ///< of a regular list
  std::int64_t list_count;
  const std::int64_t* displs;
  const std::int64_t* prefix;
  datatype::Program program;
  std::uint32_t root;
  std::int32_t unit_shift;
  Levels<datatype::max_dims> levels;

  explicit AnyMap(const KernelArgs& args)
      : kind(args.shape.kind),
        base(args.shape.offset),
        run_bytes(args.shape.run),
        extent(args.shape.extent),
        outer(args.divide[0]),
        run(args.divide[datatype::max_dims]),
        list_count(args.shape.list_count),
        displs(args.program.lookaside + args.shape.list_displs),
        prefix(args.program.lookaside + args.shape.list_prefix),
        program(args.program),
        root(args.shape.root),
        unit_shift(unit_shift_of(args)) {
    levels.set(args);
  }
  GPUDT_HD Tile whole() const { return {}; }
  GPUDT_HD RunPlace place(Index unit, const Tile&) const {
    using datatype::ShapeKind;
    const Index index = divide(unit, outer);
    const Index rest = unit - index * outer.value;
    std::int64_t inner = static_cast<std::int64_t>(rest) << unit_shift;
    if (kind == ShapeKind::general) {
      const datatype::Place place = datatype::locate(program, root, inner);
      return {base + static_cast<std::int64_t>(index) * extent + place.offset, 0, place.length};
    }
    std::int64_t offset = base + levels.offset(index);
    if (kind == ShapeKind::list && run_bytes == 0) {
      const std::int64_t entry = datatype::find_block(prefix, list_count, inner);
      const std::int64_t left = prefix[entry + 1] - inner;
      inner -= prefix[entry];
      return {offset + displs[entry] + inner, inner, left};
    }
    if (kind == ShapeKind::list) {
      const Index entry = divide(rest, run);
      offset += displs[entry];
      inner = static_cast<std::int64_t>(rest - entry * run.value) << unit_shift;
    }
    return {offset + inner, inner, run_bytes - inner};
  }
};

// --- pairs of maps --------------------------------------------------------------------------------------------------

/// The places of a unit on both sides.
struct PairPlace {
  Address from, to;
};

inline Address user_of(const KernelArgs& args) {
  return reinterpret_cast<Address>(args.user);
}

/// Both sides have the same map, except for the offset.
template <class Map_>
struct AlikePair {
  using Map = Map_;
  using Index = typename Map::Index;
  using Tile = typename Map::Tile;
  static constexpr bool alike = true;
  Address from, to;
  Map map;

  explicit AlikePair(const TransferArgs& args)
      : from(user_of(args.from) + static_cast<Address>(args.from.shape.offset - args.to.shape.offset)),
        to(user_of(args.to)),
        map(args.to) {}
  GPUDT_HD std::int32_t unit_shift() const { return map.unit_shift; }
  GPUDT_HD Tile whole() const { return map.whole(); }
  GPUDT_HD PairPlace place(Index unit, const Tile& tile) const {
    const auto offset = static_cast<Address>(map.place(unit, tile).offset);
    return {from + offset, to + offset};
  }
};

/// Maps that need no tile.
template <class From, class To>
struct UnlikePair {
  using Map = To;
  using Index = typename Map::Index;
  using Tile = NoTile;
  static constexpr bool alike = false;
  Address from, to;
  From from_map;
  To map;

  explicit UnlikePair(const TransferArgs& args)
      : from(user_of(args.from)), to(user_of(args.to)), from_map(args.from), map(args.to) {}
  GPUDT_HD std::int32_t unit_shift() const { return map.unit_shift; }
  GPUDT_HD Tile whole() const { return {}; }
  GPUDT_HD PairPlace place(Index unit, const Tile& tile) const {
    return {from + static_cast<Address>(from_map.place(unit, tile).offset),
            to + static_cast<Address>(map.place(unit, tile).offset)};
  }
  /// The begin of run `index` on both sides, which must have runs of one length.
  GPUDT_HD PairPlace run_place(Index index) const {
    return {from + static_cast<Address>(from_map.run_offset(index)), to + static_cast<Address>(map.run_offset(index))};
  }
};

/// The pairs that visit_pair() may choose.
template <class Index, int most>
using StridedPair = UnlikePair<StridedMap<Index, most>, StridedMap<Index, most>>;
using RegularPair = UnlikePair<RegularMap<std::uint32_t>, RegularMap<std::uint32_t>>;
using AnyPair = UnlikePair<AnyMap, AnyMap>;

/// The methods for which a pair has kernels.
enum PairMethods : int { by_words = 1, by_gather = 2, by_runs = 4 };

template <class Pair>
constexpr int methods_of = 0;
template <>
inline constexpr int methods_of<AlikePair<StridedMap<std::uint32_t, 1>>> = by_words;
template <>
inline constexpr int methods_of<AlikePair<StridedMap<std::uint32_t, transfer_dims>>> = by_words | by_gather;
template <>
inline constexpr int methods_of<AlikePair<StridedMap<std::uint32_t, datatype::max_dims>>> = by_words;
template <>
inline constexpr int methods_of<AlikePair<RegularMap<std::uint32_t>>> = by_words;
template <>
inline constexpr int methods_of<AlikePair<IrregularMap<std::uint32_t>>> = by_words | by_gather;
template <>
inline constexpr int methods_of<AlikePair<AnyMap>> = by_words | by_gather;
template <>
inline constexpr int methods_of<StridedPair<std::uint32_t, 1>> = by_words | by_runs;
template <>
inline constexpr int methods_of<StridedPair<std::uint32_t, transfer_dims>> = by_words | by_gather | by_runs;
template <>
inline constexpr int methods_of<StridedPair<std::uint32_t, datatype::max_dims>> = by_words | by_runs;
template <>
inline constexpr int methods_of<RegularPair> = by_runs;
template <>
inline constexpr int methods_of<AnyPair> = by_words | by_gather;

using AllPairs =
    std::tuple<AlikePair<StridedMap<std::uint32_t, 1>>, AlikePair<StridedMap<std::uint32_t, transfer_dims>>,
               AlikePair<StridedMap<std::uint32_t, datatype::max_dims>>, AlikePair<RegularMap<std::uint32_t>>,
               AlikePair<IrregularMap<std::uint32_t>>, AlikePair<AnyMap>, StridedPair<std::uint32_t, 1>,
               StridedPair<std::uint32_t, transfer_dims>, StridedPair<std::uint32_t, datatype::max_dims>, RegularPair,
               AnyPair>;

/// Returns visit(std::type_identity<Pair>()) with the pair of maps that `args` describes. plan_transfer() sets `narrow`
/// if the pair has its own kernel.
template <class Visit>
auto visit_pair(const TransferArgs& args, Visit&& visit) {
  using Narrow = std::uint32_t;
  constexpr int most = datatype::max_dims;
  const datatype::Shape& shape = args.to.shape;
  const Method method = args.to.method;
  const int ndims = std::max(shape.ndims, args.from.shape.ndims);
  const bool list = shape.kind == datatype::ShapeKind::list;
  const bool alike = args.alike != 0;
  if (method == Method::runs) {
    if (list) return visit(std::type_identity<RegularPair>());
    if (ndims <= 1) return visit(std::type_identity<StridedPair<Narrow, 1>>());
    if (ndims <= transfer_dims) return visit(std::type_identity<StridedPair<Narrow, transfer_dims>>());
    return visit(std::type_identity<StridedPair<Narrow, most>>());
  }
  if (args.to.narrow == 0)
    return alike ? visit(std::type_identity<AlikePair<AnyMap>>()) : visit(std::type_identity<AnyPair>());
  if (list) {
    if (shape.run > 0) return visit(std::type_identity<AlikePair<RegularMap<Narrow>>>());
    return visit(std::type_identity<AlikePair<IrregularMap<Narrow>>>());
  }
  if (ndims > transfer_dims)
    return alike ? visit(std::type_identity<AlikePair<StridedMap<Narrow, most>>>())
                 : visit(std::type_identity<StridedPair<Narrow, most>>());
  if (ndims > 1 || method == Method::gather)
    return alike ? visit(std::type_identity<AlikePair<StridedMap<Narrow, transfer_dims>>>())
                 : visit(std::type_identity<StridedPair<Narrow, transfer_dims>>());
  return alike ? visit(std::type_identity<AlikePair<StridedMap<Narrow, 1>>>())
               : visit(std::type_identity<StridedPair<Narrow, 1>>());
}

// --- moving ---------------------------------------------------------------------------------------------------------

/// Moves the byte of one position, at an end of the message inside a word or a run.
template <class Pair, class Memory>
GPUDT_HD void transfer_byte(const Pair& pair, const Memory& memory, std::int64_t position) {
  const auto unit = static_cast<typename Pair::Index>(position >> pair.unit_shift());
  const PairPlace place = pair.place(unit, pair.whole());
  const auto inner = static_cast<Address>(position & ((std::int64_t{1} << pair.unit_shift()) - 1));
  memory.template store<std::uint8_t>(place.to + inner, memory.template load<std::uint8_t>(place.from + inner));
}

/// Calls piece(place, at, bytes) for each run's part of positions [position, position + bytes).
template <class Map, class Piece>
GPUDT_HD void for_each_piece(const Map& map, const typename Map::Tile& tile, std::int64_t position, int bytes,
                             const Piece& piece) {
  for (int at = 0; at < bytes;) {
    const RunPlace run = map.place(static_cast<typename Map::Index>(position + at), tile);
    const int part = run.left < bytes - at ? static_cast<int>(run.left) : bytes - at;
    piece(run, at, part);
    at += part;
  }
}

/// Moves at most 16 packed bytes from `position` on through registers.
template <class Pair, class Memory>
GPUDT_HD void transfer_pieces(const Pair& pair, const Memory& memory, std::int64_t position, int bytes,
                              const typename Pair::Tile& tile) {
  Word16 word = {};
  if constexpr (Pair::alike) {
    for_each_piece(pair.map, tile, position, bytes, [&](const RunPlace& run, int at, int part) {
      const auto offset = static_cast<Address>(run.offset);
      gather_piece(memory, pair.from + offset, at, part, run, word);
      scatter_piece(memory, pair.to + offset, at, part, word);
    });
  } else {
    for_each_piece(pair.from_map, tile, position, bytes, [&](const RunPlace& run, int at, int part) {
      gather_piece(memory, pair.from + static_cast<Address>(run.offset), at, part, run, word);
    });
    for_each_piece(pair.map, tile, position, bytes, [&](const RunPlace& run, int at, int part) {
      scatter_piece(memory, pair.to + static_cast<Address>(run.offset), at, part, word);
    });
  }
}

/// Moves packed bytes [16 index, 16 index + 16), as far as they are before `end`.
template <class Pair, class Memory>
GPUDT_HD void transfer_gathered(const Pair& pair, const Memory& memory, std::int64_t index, std::int64_t end,
                                const typename Pair::Tile& tile) {
  const std::int64_t position = 16 * index;
  transfer_pieces(pair, memory, position, end - position < 16 ? static_cast<int>(end - position) : 16, tile);
}

/// Moves one of the equal runs of Method::runs.
template <class Pair, class Memory>
GPUDT_HD void transfer_run(const Pair& pair, const Memory& memory, typename Pair::Index index) {
  const PairPlace place = pair.run_place(index);
  const int bytes = static_cast<int>(pair.map.run_bytes);
  std::uint32_t x[lane_words + 1];
  load_run(memory, place.from, bytes, access_width(static_cast<std::uint32_t>(place.from)), x);
  store_run(memory, place.to, bytes, access_width(static_cast<std::uint32_t>(place.to)), x);
}

}  // namespace gpudt::device
