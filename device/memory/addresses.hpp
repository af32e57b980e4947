// In which memory an address lies. The runtime is asked, unless the program's own address space tells.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "device/runtime/location.hpp"

namespace gpudt::device {

class Runtime;

/// From now on `runtime` is asked; null: no more, and all memory counts as the host's. Other threads must not be asking
/// one that is destroyed afterwards.
void ask_about_addresses(Runtime* runtime);

namespace detail {
extern std::atomic<Runtime*> runtime_asked;
Location classify_by_runtime(const void* address) noexcept;
}  // namespace detail

/// Where `address` lies. Costs under 100 ns, next to nothing without a runtime; never throws, never creates a context.
inline Location classify(const void* address) noexcept {
  return detail::runtime_asked.load(std::memory_order_relaxed) ? detail::classify_by_runtime(address) : Location{};
}

/// Returns the id of the GPU allocation that contains `address`, unique within the process; 0 if it is not GPU memory.
std::uint64_t allocation_id(const void* address) noexcept;

/// True if `address` lies in the program's heap (what brk gives), on its first thread's stack or among its static
/// variables, so that no runtime need be asked whether it is a GPU's: that takes 3 ns. False says nothing.
bool surely_host(const void* address) noexcept;
/// As above, of all addresses from the first to the last.
bool surely_host(std::uintptr_t first, std::uintptr_t last) noexcept;

/// Alignment (a power of two) at which memory of different GPUs and of the host never share a block, except within one
/// allocation; 0 without a runtime.
std::size_t granule() noexcept;

/// False if there can be no GPU's memory in the process yet. Under 100 ns.
bool in_use() noexcept;

/// Addresses [begin, end), all in the same memory.
struct Region {
  std::uintptr_t begin = 0, end = 0;
  Location location;

  bool holds(std::uintptr_t first, std::uintptr_t last) const { return begin <= first && last < end; }
};

/// What is certainly in the same memory as `address`: the allocation, of GPU memory; the heap, the stack or the static
/// variables; else an aligned block as small as granule(). One or two questions to the driver.
Region region_of(const void* address) noexcept;

/// As above, of memory that was classified before. GPU memory costs one question to the driver.
Region region_of(const void* address, const Location& location) noexcept;

/// What is certainly in the same memory as `address` and in the same allocation: one that cudaMalloc has made, or else
/// an aligned block, since addresses that were reserved together may be those of several GPUs' memory. One question to
/// the driver.
Region allocation_of(const void* address, const Location& location) noexcept;

}  // namespace gpudt::device
