// Numbers that stand for several values, for those who work them out alike in different processes.
#pragma once

#include <cstdint>

namespace gpudt {

/// A bijection in which each bit hangs on all others (the finalizer of splitmix64).
constexpr std::uint64_t scrambled(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

/// Of a state and the next value: unlike ones have the same result by chance alone.
constexpr std::uint64_t mixed(std::uint64_t state, std::uint64_t value) {
  return scrambled(scrambled(state) ^ value);
}

}  // namespace gpudt
