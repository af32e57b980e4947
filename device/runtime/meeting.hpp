// How a stream of the program and the host wait for each other: by gates, each of which is two numbers in mapped
// memory. The stream stores a number in `told` when it comes to the gate, and passes once the host has stored it in
// `done`.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpudt::device {

/// What a stream waits for: `done` has come to `value` or, modulo 2^32, passed it.
struct GateWait {
  std::uint32_t* done;
  std::uint32_t value;
  bool closes;  ///< then the stream stores 0 there: in graphs, whose launches repeat the same operations
};

/// What a stream does at one point: it tells the host of one gate, unless `told` is null, and then waits at `waits`
/// gates.
struct Meeting {
  static constexpr std::size_t most_waits = 64;

  std::uint32_t* told = nullptr;
  std::uint32_t value = 0;
  std::uint32_t waits = 0;
  GateWait wait[most_waits];  // NOLINT(*-member-init): only the first `waits` are used
};

}  // namespace gpudt::device
