// Host memory for a runtime to register with GPUs. The host may access it until it is freed, even when the context that
// it was registered for has ended.
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
  /// Maps the pages of a shared mapping at another address, too. Null if the system refuses.
  void* map_again(void* shared, std::size_t bytes);
  void free(void* address) noexcept;

 private:
  void* keep(void* address, std::size_t bytes);

  Mutex mutex_;
  std::map<void*, std::size_t> bytes_ GUARDED_BY(mutex_);  // by address
};

}  // namespace gpudt::device
