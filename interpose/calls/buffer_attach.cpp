// The memory that a program gives MPI for buffered sends. MPI copies messages into it, so device memory cannot serve:
// host memory of the same size stands in for it. MPI never reads the contents of the program's memory, nor the program
// what MPI stores there.
#include <cstddef>
#include <memory>
#include <utility>

#include "base/mutex.hpp"
#include "base/never_destroyed.hpp"
#include "interpose/requests/operation.hpp"
#include "interpose/support/errors.hpp"
#include "interpose/support/export.hpp"
#include "interpose/transport/device_buffer.hpp"

namespace gpudt::interpose {
namespace {

/// The stand-in for the one buffer that a process may attach.
class StandIn {
 public:
  void keep(void* user, std::unique_ptr<std::byte[]> memory) {
    const LockGuard lock(mutex_);
    user_ = user;
    memory_ = std::move(memory);
  }

  /// Returns the program's address of the detached memory, and frees the stand-in.
  void* give_back(void* detached) {
    const LockGuard lock(mutex_);
    if (memory_ == nullptr || detached != memory_.get()) return detached;
    memory_.reset();
    return user_;
  }

 private:
  Mutex mutex_;
  void* user_ GUARDED_BY(mutex_) = nullptr;
  std::unique_ptr<std::byte[]> memory_ GUARDED_BY(mutex_);
};

auto& stand_in = never_destroyed<StandIn>();

}  // namespace
}  // namespace gpudt::interpose

using namespace gpudt::interpose;

namespace {

template <class Size>
int attach(int (*pmpi)(void*, Size), const char* call, void* buffer, Size size) {
  return guarded(MPI_COMM_NULL, call, [&] {
    if (size <= 0 || !active.load() || !gpudt::device::classify(buffer).on_device()) return pmpi(buffer, size);
    auto memory = std::make_unique<std::byte[]>(static_cast<std::size_t>(size));
    const int code = pmpi(memory.get(), size);
    if (code == MPI_SUCCESS) stand_in.keep(buffer, std::move(memory));
    return code;
  });
}

template <class Size>
int detach(int (*pmpi)(void*, Size*), void* buffer_addr, Size* size) {
  return guarded(MPI_COMM_NULL, "MPI_Buffer_detach", [&] {
    engine_order_all();  // buffered sends that are still being packed must reach the buffer first
    const int code = pmpi(buffer_addr, size);
    auto** const address = static_cast<void**>(buffer_addr);
    if (code == MPI_SUCCESS) *address = stand_in.give_back(*address);
    return code;
  });
}

}  // namespace

GPUDT_EXPORT int MPI_Buffer_attach(void* buffer, int size) {
  return attach(PMPI_Buffer_attach, "MPI_Buffer_attach", buffer, size);
}
GPUDT_EXPORT int MPI_Buffer_detach(void* buffer_addr, int* size) {
  return detach(PMPI_Buffer_detach, buffer_addr, size);
}
#if defined(GPUDT_MPI_LARGE_COUNTS)
GPUDT_EXPORT int MPI_Buffer_attach_c(void* buffer, MPI_Count size) {
  return attach(PMPI_Buffer_attach_c, "MPI_Buffer_attach_c", buffer, size);
}
GPUDT_EXPORT int MPI_Buffer_detach_c(void* buffer_addr, MPI_Count* size) {
  return detach(PMPI_Buffer_detach_c, buffer_addr, size);
}
#endif
