// The bodies of the pack and unpack kernels: everything that puts words together or takes them apart, written once as
// host and device inline functions. Places come from the maps of kernel_maps.hpp.
//
// cuda/kernels.cu runs these bodies on GPU threads, run_on_host() (kernel_host.hpp) serially on the host. Terms: a
// *position* is an index into the packed stream of the whole message; a *unit* is what the map counts in (a word for
// Method::words, else a byte); a *run* is a contiguous piece of the user's data.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>

#include "device/kernels/kernel_args.hpp"
#include "device/kernels/kernel_maps.hpp"

namespace gpudt::device {

// --- access to memory -----------------------------------------------------------------------------------------------

struct alignas(16) Word16 {
  std::uint32_t lane[4];
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

/// Stores bytes [at, at + bytes) of a packed word to `address`; nothing else is written.
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

// --- choice of the instance -----------------------------------------------------------------------------------------

/// Returns visit(std::type_identity<Word>()) with the type of a word of 16, 8, 4 or 1 bytes. On the host; kernels
/// that choose for themselves: move_job() in cuda/job_parts.cuh.
template <class Visit>
auto visit_word(int bytes, Visit&& visit) {
  switch (bytes) {
    case 16:
      return visit(std::type_identity<Word16>());
    case 8:
      return visit(std::type_identity<std::uint64_t>());
    case 4:
      return visit(std::type_identity<std::uint32_t>());
    default:
      return visit(std::type_identity<std::uint8_t>());
  }
}

/// The maps that visit_map() may choose.
using AllMaps =
    std::tuple<StridedMap<std::uint32_t, 0>, StridedMap<std::uint32_t, 1>, StridedMap<std::uint32_t, 3>,
               StridedMap<std::uint32_t, datatype::max_dims>, StridedMap<std::uint64_t, 0>,
               StridedMap<std::uint64_t, datatype::max_dims>, RegularMap<std::uint32_t>, RegularMap<std::uint64_t>,
               IrregularMap<std::uint32_t>, IrregularMap<std::uint64_t>, EntryMap, GeneralMap>;

/// Returns visit(std::type_identity<Map>()) with the type of the map that `args` describes, the same for a kernel
/// launch and for run_on_host(). Words below 4 bytes occur only in small messages, so all strided layouts share one
/// kernel instance for them.
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

}  // namespace gpudt::device
