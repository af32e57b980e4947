// Reductions in device memory: element by element over the buffers of several processes, mapped for one GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace gpudt::device {

/// MPI-4.1 section 6.9.2, and MPI_MAXLOC and MPI_MINLOC of section 6.9.4.
enum class Operator : std::uint8_t { max, min, sum, prod, land, lor, lxor, band, bor, bxor, maxloc, minloc };

/// What a buffer holds. Pairs are a value and an index, one behind the other without a gap.
enum class Element : std::uint8_t {
  int8,
  int16,
  int32,
  int64,
  uint8,
  uint16,
  uint32,
  uint64,
  float32,
  float64,
  complex64,
  complex128,
  int16_int32,
  int32_int32,
  int64_int32,
  float32_int32,
  float64_int32,
  float32_float32,
  float64_float64,
  float16,
  bfloat16,
};
inline constexpr Element last_element = Element::bfloat16;

/// Bytes of an element.
std::int64_t element_bytes(Element element);
/// Bytes that an element's address must be a multiple of.
std::int64_t element_alignment(Element element);
/// Whether the operator takes such elements.
bool is_defined(Operator op, Element element);

/// inout[i] = in[i] op inout[i] for `count` elements in host memory, of float16 or bfloat16, that the operator takes.
/// Floats are not flushed meanwhile, and rounded to nearest, whatever the program has chosen.
void combine_on_host(Operator op, Element element, const void* in, void* inout, std::int64_t count);

/// What a destination gets.
enum class Result : std::uint8_t {
  total,   ///< all sources combined
  scan,    ///< destination k: sources 0 to k
  exscan,  ///< destination k: sources 0 to k - 1; destination 0: nothing
};

/// Sources are combined in their order, the same for every element, so that every GPU computes the same bits.
struct Reduction {
  static constexpr std::size_t most_ranks = 64;

  Operator op;
  Element element;
  Result result;
  std::int64_t count;                 ///< elements of each source and destination
  std::span<const void* const> from;  ///< 1 to most_ranks
  /// Null: nothing is stored there. Otherwise it overlaps no other destination, and no source, or is the source of the
  /// same index itself. `scan` and `exscan` have one for each source, `total` 1 to most_ranks.
  std::span<void* const> to;
};

}  // namespace gpudt::device
