// float16 and bfloat16 (gpudt_mpi.h) in tests: their operators, what each process gives, and what must come of it.
// tests/unit/float16.cpp checks the conversions from which the results come.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "device/kernels/float16.hpp"
#include "include/gpudt_mpi.h"
#include "tests/support/catch.hpp"
#include "tests/support/mpi_harness.hpp"

namespace gpudt::test {

using Bits = std::uint16_t;
using Values = std::vector<Bits>;
inline constexpr int all_values = 1 << 16;

struct Half {
  const char* name;
  int (*type)(MPI_Datatype*);
  float (*value)(Bits);
  Bits (*nearest)(float);

  MPI_Datatype handle() const {
    MPI_Datatype made = MPI_DATATYPE_NULL;
    MPI_OK(type(&made));
    return made;
  }
};
inline const Half kinds[] = {
    {"float16", gpudt_type_float16, [](Bits bits) { return device::Float16{bits}.value(); },
     [](float value) { return device::Float16::nearest(value).bits; }},
    {"bfloat16", gpudt_type_bfloat16, [](Bits bits) { return device::Bfloat16{bits}.value(); },
     [](float value) { return device::Bfloat16::nearest(value).bits; }},
};

struct HalfOperator {
  const char* name;
  MPI_Op handle;
  float (*combine)(float, float);  ///< null: the operator selects one of the two
};
inline const HalfOperator operators[] = {
    {"MPI_SUM", MPI_SUM, [](float a, float b) { return a + b; }},
    {"MPI_PROD", MPI_PROD, [](float a, float b) { return a * b; }},
    {"MPI_MIN", MPI_MIN, nullptr},
    {"MPI_MAX", MPI_MAX, nullptr},
};

/// By IEEE 754's totalOrder.
inline bool is_less(Bits a, Bits b) {
  const bool negative = a >= 0x8000;
  if (negative != (b >= 0x8000)) return negative;
  return negative ? b < a : a < b;
}

inline Bits combined(const Half& kind, const HalfOperator& op, Bits a, Bits b) {
  if (op.combine == nullptr) return is_less(a, b) == (op.handle == MPI_MIN) ? a : b;
  return kind.nearest(op.combine(kind.value(a), kind.value(b)));
}

/// What a process gives. Of two processes, each value meets another one, so that rounding shows. Of more, small numbers
/// whose sums and products are exact, since MPI may combine them in any order.
inline Values input(const Half& kind, int process, int count, int key) {
  Values values;
  for (int i = 0; i < count; ++i) {
    const unsigned mixed =
        static_cast<unsigned>(i + key) * (process == 0 ? 1U : 40503U) + 7U * static_cast<unsigned>(process);
    const Bits small = kind.nearest(static_cast<float>((i + process * 3 + key) % 3 + 1));
    values.push_back(ranks() == 2 ? static_cast<Bits>(mixed) : small);
  }
  return values;
}

/// All processes' inputs from `first` to `last`, combined.
inline Values result(const Half& kind, const HalfOperator& op, int last, int count, int key) {
  Values values = input(kind, 0, count, key);
  for (int process = 1; process <= last; ++process) {
    const Values next = input(kind, process, count, key);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = combined(kind, op, values[i], next[i]);
  }
  return values;
}

/// The first value that is not right; empty if there is none.
inline std::string wrong(const Values& found, const Values& wanted) {
  for (std::size_t i = 0; i < wanted.size(); ++i)
    if (found[i] != wanted[i])
      return "element " + std::to_string(i) + " is " + std::to_string(found[i]) + ", not " + std::to_string(wanted[i]);
  return "";
}

class Elements {
 public:
  Elements(Place place, int count) : memory_(place, static_cast<std::size_t>(std::max(count, 1)) * sizeof(Bits)) {}
  void write(const Values& values) { memory_.write(values.data(), values.size() * sizeof(Bits)); }
  Values read(std::size_t count) const {
    Values values(count);
    memory_.read(values.data(), count * sizeof(Bits));
    return values;
  }
  void* address() const { return memory_.data(); }

 private:
  Memory memory_;
};

inline int last_rank() {
  return ranks() - 1;
}

}  // namespace gpudt::test
