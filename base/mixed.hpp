// Hashes of several values, the same in all processes.
#pragma once

#include <cstdint>

namespace gpudt {

/// A bijection in which each bit of the result depends on all bits of `value` (the finalizer of splitmix64).
constexpr std::uint64_t scrambled(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

/// The hash of `state`, which stands for the values so far, and the next value.
constexpr std::uint64_t mixed(std::uint64_t state, std::uint64_t value) {
  return scrambled(scrambled(state) ^ value);
}

}  // namespace gpudt
