// Host memory that a runtime makes known to GPUs, and that stays the process's own: the host may touch it until it is
// freed, whatever becomes of the context that knows it.
#pragma once

#include <cstddef>
#include <map>

#include "base/mutex.hpp"

namespace gpudt::device {

class HostPages {
 public:
  /// Whole pages, all zeros. Throws Error. Not inherited by fork() (MADV_DONTFORK): copy-on-write would move the
  /// parent's pages away from those registered with the GPU.
  void* allocate(std::size_t bytes);
  /// The pages of a shared mapping at another address. Null if the system refuses.
  void* map_again(void* shared, std::size_t bytes);
  void free(void* address) noexcept;

 private:
  void* keep(void* address, std::size_t bytes);

  Mutex mutex_;
  std::map<void*, std::size_t> bytes_ GUARDED_BY(mutex_);  // by address
};

}  // namespace gpudt::device
