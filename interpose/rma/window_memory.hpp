// The memory of a served window.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "datatype/layout.hpp"
#include "device/device.hpp"

namespace gpudt::interpose {

/// This process's part of a window's memory.
class WindowMemory {
 public:
  WindowMemory(void* base, std::int64_t size);  ///< of MPI_Win_create
  WindowMemory() : dynamic_(true) {}            ///< of MPI_Win_create_dynamic
  bool dynamic() const { return dynamic_; }
  void* base() const { return base_; }
  std::int64_t size() const { return size_; }
  /// For dynamic windows: false if the region overlaps an attached one, or if no region begins at `base`.
  bool attach(void* base, std::int64_t size);
  bool detach(const void* base);
  /// What is attached, by address: begin and size; without empty regions.
  std::vector<std::pair<std::uintptr_t, std::int64_t>> regions() const;
  /// The address at `displacement` (in bytes; in dynamic windows an address, possibly MPI_BOTTOM). No value unless the
  /// window holds all of the `count` elements there and, if they lie in several attached regions, all are in one
  /// memory. There is at least one element, and it is not empty. May throw std::bad_alloc.
  std::optional<void*> address(std::int64_t displacement, const datatype::Layout& layout, std::int64_t count) const;
  /// Whether what holds this address was GPU memory when the window got it: if it is none now, it has been freed.
  bool was_on_gpu(const void* address) const;
  /// To be called when the program opens an exposure epoch: later accesses wait for the work that is in the default
  /// stream at this time. Throws device::Error.
  void mark_again();
  /// The mark for which accesses on GPU `ordinal` wait.
  device::StreamMark after(int ordinal) const;

 private:
  /// Memory that begins or ends in other memory is not noted.
  void note_memory(std::uintptr_t begin, std::int64_t size) REQUIRES(mutex_);

  bool dynamic_ = false;
  void* base_ = nullptr;
  std::int64_t size_ = 0;
  mutable Mutex mutex_;
  std::map<std::uintptr_t, std::int64_t> regions_ GUARDED_BY(mutex_);  ///< attached: begin and size
  std::multiset<std::uintptr_t> empty_regions_ GUARDED_BY(mutex_);     ///< attached with size 0
  std::set<std::uintptr_t> on_gpu_ GUARDED_BY(mutex_);                 ///< the base, or regions: was_on_gpu()
  std::map<int, device::StreamMark> after_ GUARDED_BY(mutex_);         ///< by GPU
};

}  // namespace gpudt::interpose
