// What a pack or unpack kernel is told: plain data, passed by value, the same for the GPU and the simulated device.
#pragma once

#include <cstdint>

#include "datatype/layout.hpp"

namespace gpudt::device {

/// Division by a constant as a multiplication: exact for 0 <= n < 2^63, divisor >= 1 (see kernel_body.hpp).
struct Divisor {
  std::uint64_t value = 1;
  std::uint64_t magic = 0;
  std::uint32_t shift = 0;
  std::uint32_t narrow = 0;  ///< dividends fit 32 bits: the kernel may use 32-bit arithmetic
};

struct KernelArgs {
  datatype::Shape shape;
  datatype::Program program;     ///< device addresses of the serialised layout; null unless list or general
  Divisor divide[datatype::max_dims + 1];  ///< by the words of what is inside each dim; meaning: plan.cpp
  char* user = nullptr;
  char* packed = nullptr;        ///< where packed byte `begin` goes to or comes from
  std::int64_t begin = 0, end = 0;
  std::int32_t unpack = 0;
  std::int32_t word = 1;         ///< bytes per access, 1 to 16
  std::int32_t grid = 1, block = 32;
  std::int32_t streaming = 0;    ///< data is larger than the caches: use streaming loads and stores
  unsigned* counter = nullptr;   ///< device memory, zero before and after: thread blocks that have ended
  volatile std::uint32_t* flag = nullptr;  ///< mapped host memory; null: no flag wanted
  std::uint32_t flag_value = 0;
};

/// What the chooser of launches knows besides the message itself.
struct PlanHints {
  int multiprocessors = 1;
  bool packed_is_host = false;  ///< the packed side is reached over the host link: few thread blocks suffice
};

/// Fills everything but program, counter and flag: word, divisors, grid and block. Pure and cheap (no allocation).
/// `user` and `packed` are addresses as the kernel will see them; 0 <= begin < end <= shape.total.
KernelArgs plan(const datatype::Shape& shape, bool unpack, void* user, void* packed, std::int64_t begin,
                std::int64_t end, const PlanHints& hints);

}  // namespace gpudt::device
