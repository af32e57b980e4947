// Where the data of a message lie: mostly in one memory, but a struct of absolute addresses may reach from host memory
// into a GPU's, or over several GPUs. Then the packed stream is divided into parts that lie in one memory each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/exception.hpp"
#include "datatype/layout.hpp"
#include "device/memory/addresses.hpp"

namespace gpudt::device {

/// Bytes [begin, end) of a packed stream, in one memory; `location` is host memory of some kind, or a GPU's.
struct Part {
  std::int64_t begin = 0, end = 0;
  Location location;
};

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
/// Costs little more than a query of the driver for each allocation, and once for each layout the time to go through
/// its runs, unless their strides are short and regular. May throw std::bad_alloc. Thread-safe.
std::optional<Location> one_memory(const datatype::Layout& layout, std::int64_t count, const void* user,
                                   const Region& first, FindRegion find = region_of);

/// A cache of the regions found so far.
class Regions {
 public:
  explicit Regions(FindRegion find) : find_(find) {}
  /// The region of an address within a run that ends at `end`.
  const Region& of(std::uintptr_t address, std::uintptr_t end);

 private:
  FindRegion find_;
  std::map<std::uintptr_t, Region> by_end_;
  const Region* last_ = nullptr;
};

/// Which data of a message lie in which memory, in the order of the packed stream and without gaps. It is computed only
/// as far as needed: a receive may declare far more than arrives, and more than its allocation holds. Functions that
/// are not const may throw TooManyParts and std::bad_alloc. Not thread-safe: it belongs to one operation.
class Division {
 public:
  /// The division of `count` elements at `user` (possibly MPI_BOTTOM).
  Division(datatype::LayoutRef layout, std::int64_t count, const void* user, FindRegion find = region_of);
  /// The division of `bytes` bytes that all lie in host memory.
  explicit Division(std::int64_t bytes);
  Division(const Division&) = delete;
  Division& operator=(const Division&) = delete;

  /// The parts of the first `bytes` bytes, or more.
  const std::vector<Part>& up_to(std::int64_t bytes);
  /// The parts found so far; the last of them may be incomplete.
  const std::vector<Part>& known() const { return parts_; }
  /// The GPU of the first part in a GPU's memory; nothing if there is none.
  std::optional<int> first_gpu();
  /// Whether all data are one part.
  bool is_one();

 private:
  bool begin_another();
  void go_on();
  void append(std::int64_t bytes, const Location& location);

  const datatype::LayoutRef layout_;
  const std::int64_t count_, bytes_;
  const void* const user_;
  Regions regions_;
  std::vector<Part> parts_;
};

}  // namespace gpudt::device
