#include "device/runtime/host_pages.hpp"

#include <sys/mman.h>

#include <new>

#include "device/runtime/error.hpp"

namespace gpudt::device {

void* HostPages::allocate(std::size_t bytes) {
  void* const address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) throw Error(Failure::out_of_memory, "no host memory for staging");
  madvise(address, bytes, MADV_DONTFORK);
  madvise(address, bytes, MADV_HUGEPAGE);
  return keep(address, bytes);
}

void* HostPages::map_again(void* shared, std::size_t bytes) {
  void* const address = mremap(shared, /*old_size=*/0, bytes, MREMAP_MAYMOVE);
  return address == MAP_FAILED ? nullptr : keep(address, bytes);
}

void* HostPages::keep(void* address, std::size_t bytes) {
  try {
    const LockGuard lock(mutex_);
    bytes_.emplace(address, bytes);
  } catch (const std::bad_alloc&) {
    munmap(address, bytes);
    throw;
  }
  return address;
}

void HostPages::free(void* address) noexcept {
  const LockGuard lock(mutex_);
  const auto at = bytes_.find(address);
  if (at == bytes_.end()) return;
  munmap(address, at->second);
  bytes_.erase(at);
}

}  // namespace gpudt::device
