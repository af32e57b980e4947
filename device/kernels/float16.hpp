// float16 (IEEE binary16) and bfloat16 as elements of reductions. One code converts them on GPUs and on the host, so
// that both compute the same bits. It has no branches.
#pragma once

#include <cstdint>

#include "datatype/traverse.hpp"

namespace gpudt::device {

/// What every result that is not a number becomes, as in CUDA.
inline constexpr std::uint16_t canonical_nan = 0x7fff;

GPUDT_HD float float_of(std::uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}
GPUDT_HD std::uint32_t bits_of(float value) {
  return __builtin_bit_cast(std::uint32_t, value);
}

/// Drops the lowest `dropped` bits, rounding to nearest, ties to even. A carry into the exponent is right: the next
/// larger number has the next larger bits.
GPUDT_HD std::uint32_t rounded(std::uint32_t bits, int dropped) {
  const std::uint32_t below_half = (1U << (dropped - 1)) - 1;
  return (bits + below_half + ((bits >> dropped) & 1)) >> dropped;
}

inline constexpr std::uint32_t float_infinity = 0x7f800000;

/// 1 bit for the sign, 5 for the exponent, 10 for the fraction.
struct Float16 {
  std::uint16_t bits;

  GPUDT_HD float value() const {
    const std::uint32_t sign = (bits & 0x8000U) << 16, magnitude = (bits & 0x7fffU) << 13;
    // Infinite or not a number from the highest exponent on. A subnormal number is its distance from 2^-14: no float
    // on the way is subnormal, since programs may flush these.
    const std::uint32_t normal = magnitude + (magnitude < 0x0f800000 ? 0x38000000 : 0x70000000);
    const std::uint32_t subnormal = bits_of(float_of(magnitude + 0x38800000) - 0x1p-14F);
    return float_of(sign | (magnitude < 0x00800000 ? subnormal : normal));
  }
  GPUDT_HD static Float16 nearest(float value) {
    const std::uint32_t sign = bits_of(value) >> 16 & 0x8000, magnitude = bits_of(value) & 0x7fffffff;
    // Below 2^-14: 0.5F + x is rounded to a multiple of 2^-24.
    const std::uint32_t subnormal = bits_of(float_of(magnitude) + 0.5F) - 0x3f000000;
    const std::uint32_t normal = rounded(magnitude - 0x38000000, 13);
    const std::uint32_t finite = magnitude < 0x38800000 ? subnormal : normal;
    const std::uint32_t kept = finite < 0x7c00 ? finite : 0x7c00;
    return {static_cast<std::uint16_t>(magnitude > float_infinity ? canonical_nan : sign | kept)};
  }
};

/// The upper half of a float. Where the program flushes subnormal floats, so are these: see combine_on_host().
struct Bfloat16 {
  std::uint16_t bits;

  GPUDT_HD float value() const { return float_of(static_cast<std::uint32_t>(bits) << 16); }
  GPUDT_HD static Bfloat16 nearest(float value) {
    const std::uint32_t magnitude = bits_of(value) & 0x7fffffff;
    return {static_cast<std::uint16_t>(magnitude > float_infinity ? canonical_nan : rounded(bits_of(value), 16))};
  }
};

/// A number in the order of the values: IEEE 754's totalOrder, by which -0 is less than 0, and what is not a number
/// lies beyond the infinite value of its sign.
template <class Half>
GPUDT_HD int place_in_order(Half half) {
  return (half.bits & 0x8000) != 0 ? 0x7fff - half.bits : half.bits;
}

}  // namespace gpudt::device
