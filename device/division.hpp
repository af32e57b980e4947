// Where the data of a message lie: mostly in one memory, but a struct of absolute addresses may reach from host memory
// into a GPU's, or over several GPUs. Then the packed stream is divided into parts that lie in one memory each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "datatype/layout.hpp"
#include "device/device.hpp"

namespace gpudt::device {

/// Addresses [begin, end), all in the same memory.
struct Region {
  std::uintptr_t begin = 0, end = 0;
  Location location;

  bool holds(std::uintptr_t first, std::uintptr_t last) const { return begin <= first && last < end; }
};

/// What is certainly in the same memory as `address`: the allocation, of GPU memory; the heap, the stack or the static
/// variables; else an aligned block as small as granule(). One or two questions to the driver.
Region region_of(const void* address) noexcept;

/// The same of memory that was classified: one question, if it is a GPU's.
Region region_of(const void* address, const Location& location) noexcept;

/// Bytes [begin, end) of a packed stream, in one memory; `location` is host memory of some kind, or a GPU's.
struct Part {
  std::int64_t begin = 0, end = 0;
  Location location;
};

/// Which data lie in which memory, in the order of the packed stream and without gaps.
using Division = std::vector<Part>;

/// Most parts of a division: each takes a transfer of its own.
inline constexpr std::size_t most_parts = std::size_t{1} << 16;

/// A message whose data change between memories more often than most_parts times.
class TooManyParts : public Exception {
 public:
  TooManyParts();
};

/// Function that returns the region of an address: region_of(), or a test double.
using FindRegion = Region (*)(const void* address);

/// The memory that holds all data of `count` elements (at least one, not empty) of `layout` at `user` (possibly
/// MPI_BOTTOM); nothing if there are several. `first` is the region of the first element's first byte. A contiguous run
/// that begins in host or managed memory is taken to lie there, and so are regular strides but for a few long ones.
/// Costs little more than a question to the driver for each allocation, but the first time for each layout the time to
/// go through its runs. May throw std::bad_alloc. Thread-safe.
std::optional<Location> one_memory(const datatype::Layout& layout, std::int64_t count, const void* user,
                                   const Region& first, FindRegion find = region_of);

/// The parts of such a message that lies in several memories, in the time to go through all its runs. Throws
/// TooManyParts and std::bad_alloc. Thread-safe.
Division divide(const datatype::Layout& layout, std::int64_t count, const void* user, FindRegion find = region_of);

}  // namespace gpudt::device
