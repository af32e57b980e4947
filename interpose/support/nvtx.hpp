// NVTX ranges (GPUDT_NVTX=1), which Nsight Systems shows in the rows of the process: calls that may involve device
// memory, in the thread that makes them, and messages from their start until their data have moved. All are in the
// domain "gpudt". NVTX is header-only: without a tool that listens a range costs a few nanoseconds.
#pragma once

#include <cstdint>

namespace gpudt::interpose {

extern bool nvtx_wanted;

/// Ranges are made from now on. False if the library was built without NVTX (it comes with the CUDA Toolkit).
bool nvtx_start();

namespace detail {
void nvtx_push(const char* name) noexcept;
void nvtx_pop() noexcept;
std::uint64_t nvtx_begin(const char* name, std::int64_t bytes) noexcept;
void nvtx_end(std::uint64_t range) noexcept;
}  // namespace detail

/// The range of one MPI call, in this thread. It ends with the object.
class NvtxCall {
 public:
  explicit NvtxCall(const char* name) : made_(nvtx_wanted) {
    if (made_) detail::nvtx_push(name);
  }
  ~NvtxCall() {
    if (made_) detail::nvtx_pop();
  }
  NvtxCall(const NvtxCall&) = delete;
  NvtxCall& operator=(const NvtxCall&) = delete;

 private:
  bool made_;
};

/// The range of one message, in the process, with the length in bytes as payload. It ends with the object, in any
/// thread. `name` must be a string literal.
class NvtxMessage {
 public:
  NvtxMessage(const char* name, std::int64_t bytes) {
    if (nvtx_wanted) range_ = detail::nvtx_begin(name, bytes);
  }
  ~NvtxMessage() {
    if (range_ != 0) detail::nvtx_end(range_);
  }
  NvtxMessage(const NvtxMessage&) = delete;
  NvtxMessage& operator=(const NvtxMessage&) = delete;

 private:
  std::uint64_t range_ = 0;
};

}  // namespace gpudt::interpose
