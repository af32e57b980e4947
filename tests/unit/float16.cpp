// float16 and bfloat16 (device/kernels/float16.hpp) against a table of all their values: conversions, and what
// operators make of them.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#ifdef __SSE2__
#include <xmmintrin.h>
#endif
#if __has_include(<catch2/catch_template_test_macros.hpp>)
#include <catch2/catch_template_test_macros.hpp>
#endif

#include "device/kernels/reduce_body.hpp"
#include "tests/support/catch.hpp"

using namespace gpudt::device;

namespace {

constexpr std::uint32_t all_bits = 1U << 16, sign_bit = 1U << 15;

/// What IEEE 754 says: a sign, an exponent and a fraction of so many bits.
template <class T>
struct Format;
template <>
struct Format<Float16> {
  static constexpr int fraction_bits = 10, bias = 15;
  static constexpr Element element = Element::float16;
};
template <>
struct Format<Bfloat16> {
  static constexpr int fraction_bits = 7, bias = 127;
  static constexpr Element element = Element::bfloat16;
};

template <class T>
constexpr std::uint32_t infinite = (2U * Format<T>::bias + 1) << Format<T>::fraction_bits;

template <class T>
double value_of(std::uint32_t bits) {
  constexpr int fraction_bits = Format<T>::fraction_bits;
  const std::uint32_t magnitude = bits & (sign_bit - 1);
  const auto exponent = static_cast<int>(magnitude >> fraction_bits);
  const std::uint32_t fraction = magnitude & ((1U << fraction_bits) - 1);
  double value = NAN;
  if (magnitude == infinite<T>) value = INFINITY;
  if (magnitude < infinite<T>)
    value = std::ldexp(exponent == 0 ? fraction : fraction + (1U << fraction_bits),
                       std::max(exponent, 1) - Format<T>::bias - fraction_bits);
  return (bits & sign_bit) != 0 ? -value : value;
}

/// The finite values from 0 on, and the one that would follow them: the index is the bits.
template <class T>
const std::vector<double>& magnitudes() {
  static const std::vector<double> table = [] {
    std::vector<double> made;
    for (std::uint32_t bits = 0; bits < infinite<T>; ++bits) made.push_back(value_of<T>(bits));
    made.push_back(2 * made.back() - made[made.size() - 2]);
    return made;
  }();
  return table;
}

/// The bits of the value nearest to `exact`, of two the even ones.
template <class T>
std::uint32_t nearest_bits(double exact) {
  if (std::isnan(exact)) return 0x7fff;
  const std::uint32_t sign = std::signbit(exact) ? sign_bit : 0;
  const std::vector<double>& table = magnitudes<T>();
  const double magnitude = std::fabs(exact);
  if (magnitude >= table.back()) return sign | infinite<T>;
  const auto above = std::upper_bound(table.begin(), table.end(), magnitude);
  const auto below = static_cast<std::uint32_t>(above - table.begin()) - 1;
  const double down = magnitude - table[below], up = *above - magnitude;
  return sign | (down < up || (down == up && below % 2 == 0) ? below : below + 1);
}

template <class T>
T of(std::uint32_t bits) {
  return {static_cast<std::uint16_t>(bits)};
}

/// By IEEE 754's totalOrder.
int in_total_order(std::uint32_t bits) {
  const auto magnitude = static_cast<int>(bits & (sign_bit - 1));
  return (bits & sign_bit) != 0 ? -1 - magnitude : magnitude;
}

template <class T>
bool same_value(float found, double wanted) {
  if (std::isnan(wanted)) return std::isnan(found);
  return static_cast<double>(found) == wanted && std::signbit(found) == std::signbit(wanted);
}

}  // namespace

TEMPLATE_TEST_CASE("every value of float16 and bfloat16 is that of its bits", "[kernel][float16]", Float16, Bfloat16) {
  for (std::uint32_t bits = 0; bits < all_bits; ++bits) {
    INFO("bits " << bits);
    REQUIRE(same_value<TestType>(of<TestType>(bits).value(), value_of<TestType>(bits)));
    const std::uint32_t back = std::isnan(value_of<TestType>(bits)) ? canonical_nan : bits;
    REQUIRE(TestType::nearest(of<TestType>(bits).value()).bits == back);
  }
}

TEMPLATE_TEST_CASE("floats are rounded to the nearest float16 or bfloat16, ties to even", "[kernel][float16]", Float16,
                   Bfloat16) {
  const std::vector<double>& table = magnitudes<TestType>();
  const auto check = [](float value) {
    REQUIRE(TestType::nearest(value).bits == nearest_bits<TestType>(value));
    REQUIRE(TestType::nearest(-value).bits == nearest_bits<TestType>(-value));
  };
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (std::uint32_t bits = 0; bits < infinite<TestType>; ++bits) {
    INFO("between bits " << bits << " and the next");
    const auto tie = static_cast<float>((table[bits] + table[bits + 1]) / 2);
    const std::uint32_t even = bits + bits % 2;
    REQUIRE(TestType::nearest(tie).bits == even);
    REQUIRE(TestType::nearest(std::nextafter(tie, 0.0F)).bits == bits);
    REQUIRE(TestType::nearest(std::nextafter(tie, infinity)).bits == bits + 1);
    check(tie);
    check(std::nextafter(tie, 0.0F));
    check(std::nextafter(static_cast<float>(table[bits]), infinity));
  }
  for (const float value : {infinity, std::numeric_limits<float>::max(), std::numeric_limits<float>::min(),
                            std::numeric_limits<float>::denorm_min(), 65504.0F, 65519.996F, 65520.0F, 65536.0F})
    check(value);
  for (const std::uint32_t nan : {0x7f800001U, 0x7fc00000U, 0x7fffffffU, 0xff800001U, 0xffffffffU})
    CHECK(TestType::nearest(float_of(nan)).bits == canonical_nan);
}

#ifdef __SSE2__
TEMPLATE_TEST_CASE("the host combines the same in programs that flush subnormal floats, or round otherwise",
                   "[kernel][float16]", Float16, Bfloat16) {
  constexpr unsigned flushing = 0x8040, upwards = 0x4000;  // FTZ and DAZ; a mode of rounding
  std::vector<TestType> in, before;
  for (std::uint32_t bits = 0; bits < all_bits; ++bits) {
    in.push_back(of<TestType>(bits));
    before.push_back(of<TestType>((bits * 40503) % (2U << Format<TestType>::fraction_bits)));  // subnormal or small
  }
  for (const Operator op : {Operator::sum, Operator::prod, Operator::max, Operator::min}) {
    std::vector<TestType> wanted = before, found = before;
    combine_on_host(op, Format<TestType>::element, in.data(), wanted.data(), all_bits);
    const unsigned own = _mm_getcsr(), others = own | flushing | upwards;
    _mm_setcsr(others);
    combine_on_host(op, Format<TestType>::element, in.data(), found.data(), all_bits);
    const unsigned after = _mm_getcsr();
    _mm_setcsr(own);
    CHECK(after == others);
    CHECK(std::memcmp(found.data(), wanted.data(), 2 * all_bits) == 0);
  }
}
#endif

TEMPLATE_TEST_CASE("sums and products of float16 and bfloat16 are rounded once", "[kernel][float16]", Float16,
                   Bfloat16) {
  std::mt19937 random(1);
  const auto check = [](std::uint32_t first, std::uint32_t second) {
    const auto a = of<TestType>(first), b = of<TestType>(second);
    const double x = value_of<TestType>(first), y = value_of<TestType>(second);
    INFO("bits " << first << " and " << second);
    REQUIRE(combined<Operator::sum>(a, b).bits == nearest_bits<TestType>(x + y));
    REQUIRE(combined<Operator::prod>(a, b).bits == nearest_bits<TestType>(x * y));
    const bool ordered = !std::isnan(x) && !std::isnan(y) && x != y;
    const bool less = ordered ? x < y : in_total_order(first) < in_total_order(second);
    REQUIRE(combined<Operator::max>(a, b).bits == (less ? second : first));
    REQUIRE(combined<Operator::min>(a, b).bits == (less ? first : second));
  };
  for (std::uint32_t bits = 0; bits < all_bits; ++bits) {
    for (int i = 0; i < 4; ++i) check(bits, random() % all_bits);
    check(bits, bits ^ (random() % 2048));  // of nearly one magnitude
    check(bits, (bits + (1U << Format<TestType>::fraction_bits) * (random() % 12)) % all_bits);
  }
}

TEMPLATE_TEST_CASE("the host combines float16 and bfloat16 wherever they lie", "[kernel][float16]", Float16, Bfloat16) {
  constexpr std::size_t count = 1000;
  std::vector<char> in(2 * count + 1), inout(2 * count + 3, 0x5a);
  std::vector<std::uint16_t> wanted;
  for (std::size_t i = 0; i < count; ++i) {
    const auto a = of<TestType>(static_cast<std::uint32_t>(i * 61)),
               b = of<TestType>(static_cast<std::uint32_t>(i * 7));
    std::memcpy(&in[2 * i + 1], &a, sizeof a);
    std::memcpy(&inout[2 * i + 1], &b, sizeof b);
    wanted.push_back(combined<Operator::sum>(a, b).bits);
  }
  combine_on_host(Operator::sum, Format<TestType>::element, &in[1], &inout[1], count);
  CHECK(std::memcmp(&inout[1], wanted.data(), 2 * count) == 0);
  CHECK(inout.front() == 0x5a);
  CHECK(inout.back() == 0x5a);
}
