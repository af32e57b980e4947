// In which memory an address lies, by a query of the runtime where the program's own address ranges do not decide it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "device/runtime/location.hpp"

namespace gpudt::device {

class Runtime;

/// Sets the runtime that is queried; with null all memory counts as the host's. A runtime may be destroyed only when no
/// other thread is in a query.
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
/// variables, so that it cannot be a GPU's. Takes 3 ns. False proves nothing.
bool surely_host(const void* address) noexcept;
/// surely_host() for all addresses from `first` to `last`, both included.
bool surely_host(std::uintptr_t first, std::uintptr_t last) noexcept;

/// A power of two: an aligned block of this many bytes holds no memory of different GPUs, or of a GPU and the host,
/// except within one allocation; 0 without a runtime.
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
/// variables; else an aligned block as small as granule(). Costs one or two queries of the driver.
Region region_of(const void* address) noexcept;

/// region_of() where classify() has returned `location`, in which the allocation is not known if the region may hold
/// several. GPU memory costs one query of the driver.
Region region_of(const void* address, const Location& location) noexcept;

/// What is certainly in the same memory as `address` and in the same allocation: one that cudaMalloc has made, or else
/// an aligned block, since addresses that were reserved together may be those of several GPUs' memory. Costs one query
/// of the driver.
Region allocation_of(const void* address, const Location& location) noexcept;

}  // namespace gpudt::device
