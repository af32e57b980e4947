// The memory that a program gives MPI for buffered sends. MPI copies messages into it, so device memory cannot serve:
// host memory of the same size stands in for it. MPI never looks at what the program's memory holds, nor the program
// at what MPI keeps there.
#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>

#include "interpose/errors.hpp"
#include "interpose/export.hpp"
#include "interpose/operand.hpp"
#include "interpose/operation.hpp"

namespace gpudt::interpose {
namespace {

/// One buffer at most is attached to a process.
class StandIn {
 public:
  void keep(void* user, std::unique_ptr<std::byte[]> memory) {
    const std::lock_guard<std::mutex> lock(mutex_);
    user_ = user;
    memory_ = std::move(memory);
  }

  /// What the program knows the detached memory by. A stand-in is gone after this.
  void* give_back(void* detached) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (memory_ == nullptr || detached != memory_.get()) return detached;
    memory_.reset();
    return user_;
  }

 private:
  std::mutex mutex_;
  void* user_ = nullptr;
  std::unique_ptr<std::byte[]> memory_;
};

StandIn stand_in;

}  // namespace
}  // namespace gpudt::interpose

using namespace gpudt::interpose;

GPUDT_EXPORT int MPI_Buffer_attach(void* buffer, int size) {
  return guarded(MPI_COMM_NULL, "MPI_Buffer_attach", [&] {
    if (size <= 0 || !active.load() || !gpudt::device::classify(buffer).on_device())
      return PMPI_Buffer_attach(buffer, size);
    auto memory = std::make_unique<std::byte[]>(static_cast<std::size_t>(size));
    const int code = PMPI_Buffer_attach(memory.get(), size);
    if (code == MPI_SUCCESS) stand_in.keep(buffer, std::move(memory));
    return code;
  });
}

GPUDT_EXPORT int MPI_Buffer_detach(void* buffer_addr, int* size) {
  engine_order_all();  // buffered sends whose packs are under way have yet to reach the buffer
  const int code = PMPI_Buffer_detach(buffer_addr, size);
  auto** const address = static_cast<void**>(buffer_addr);
  if (code == MPI_SUCCESS) *address = stand_in.give_back(*address);
  return code;
}
