// The Runtime of real GPUs, over a static CUDA runtime library of its own: the program's library, whatever its
// version, and its last error are not touched. Only this folder includes it.
//
// All work of a GPU goes to one context: that of the program's memory, as a rule the primary one, which the program's
// CUDA runtime uses too. At the first call that needs it all kernels are loaded (a few milliseconds), because loading
// one later might have to wait for the program's kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "base/mutex.hpp"
#include "device/cuda/driver.hpp"
#include "device/runtime/host_pages.hpp"
#include "device/runtime/runtime.hpp"

namespace gpudt::device {

inline constexpr int most_gpus = 64;

[[noreturn]] inline void fail(cudaError_t error, const char* call) {
  cudaGetLastError();  // clears the error, unless it is sticky
  const Failure failure = error == cudaErrorMemoryAllocation ? Failure::out_of_memory : Failure::runtime;
  throw Error(failure, std::string(call) + ": " + cudaGetErrorName(error) + " (" + cudaGetErrorString(error) + ")");
}

inline void check(cudaError_t error, const char* call) {
  if (error != cudaSuccess) fail(error, call);
}

inline cudaStream_t stream_of(StreamHandle stream) {
  return static_cast<cudaStream_t>(stream);
}
inline cudaEvent_t event_of(EventHandle event) {
  return static_cast<cudaEvent_t>(event);
}

class CudaRuntime final : public Runtime {
 public:
  explicit CudaRuntime(std::unique_ptr<const cuda::Driver> driver) : driver_(std::move(driver)) {}

  const char* name() const noexcept override { return "cuda"; }
  Location classify(const void* address) noexcept override;
  Traits traits(int ordinal) override;
  void forget(int ordinal) noexcept override;
  void* mapped_alloc(int ordinal, std::size_t bytes) override;
  void mapped_free(int ordinal, void* address) noexcept override;
  bool host_register(int ordinal, void* address, std::size_t bytes) override;
  void host_unregister(int ordinal, void* address) noexcept override;
  bool is_pinned(int ordinal, const void* first, const void* last) override;
  void* device_alloc(int ordinal, std::size_t bytes) override;
  void device_free(int ordinal, void* address) noexcept override;
  StreamHandle stream_create(int ordinal) override;
  void stream_destroy(int ordinal, StreamHandle stream) noexcept override;
  void stream_synchronize(int ordinal, StreamHandle stream) override;
  void stream_check(int ordinal, StreamHandle stream) override;
  EventHandle event_create(int ordinal) override;
  void event_destroy(int ordinal, EventHandle event) noexcept override;
  void event_record(int ordinal, EventHandle event, StreamHandle stream) override;
  bool signal_default_async(int ordinal, std::uint32_t* flag, std::uint32_t value, bool per_thread) override;
  bool default_stream_idle(int ordinal, bool while_capturing) override;
  void stream_wait_event(int ordinal, StreamHandle stream, EventHandle event) override;
  void copy_async(int ordinal, void* to, const void* from, std::size_t bytes, StreamHandle stream) override;
  bool copy_box_async(int ordinal, const CopyBox& box, StreamHandle stream) override;
#if CUDART_VERSION >= 13000
  bool copies_runs_together() const noexcept override {
    return true;
  }
  bool copy_runs_async(int ordinal, std::span<const CopyBox> runs, StreamHandle stream) override;
#endif
  void signal_async(int ordinal, std::uint32_t* flag, std::uint32_t value, StreamHandle stream) override;
  void memset_async(int ordinal, void* to, int value, std::size_t bytes, StreamHandle stream) override;
  void launch(int ordinal, const KernelArgs& args, StreamHandle stream) override;
  void launch(int ordinal, const TransferArgs& args, StreamHandle stream) override;
  void launch(int ordinal, const BatchArgs& batch, StreamHandle stream) override;
  void launch(int ordinal, const ReduceArgs& args, StreamHandle stream) override;
  void launch(int ordinal, const CopyBlocksArgs& args, StreamHandle stream) override;
  void launch(int ordinal, const ResidentArgs& args, StreamHandle stream) override;
  int stream_gpu(StreamHandle stream) override;
  bool is_captured(int ordinal, StreamHandle stream) override;
  void keep_with_graph(int ordinal, StreamHandle stream, void (*released)(void*), void* data) override;
  void meet(int ordinal, const Meeting& meeting, StreamHandle stream) override;
  bool allocation_of(const void* address, Allocation& allocation) noexcept override;
  std::uint64_t allocation_id(const void* address) noexcept override;
  std::size_t granule() const noexcept override {
    return std::size_t{2} << 20;  // the driver reserves addresses for GPUs in multiples of its pages
  }
  bool in_use() noexcept override;
  bool loads_lazily() noexcept override;
  int find_gpu(const GpuId& id) noexcept override;
  std::vector<VisibleGpu> visible_gpus() override;
  bool can_access_peer(int ordinal, int peer) override;
  void enable_peer_access(int ordinal, int peer) override;
  IpcHandle ipc_export(int ordinal, void* base) override;
  void* ipc_open(int ordinal, const IpcHandle& handle) override;
  void ipc_close(int ordinal, void* address) noexcept override;
  bool piece_of(const void* address, Piece& piece) noexcept override;
  int share_piece(int ordinal, std::uint64_t base) override;
  void* map_pieces(int ordinal, std::span<const SharedPiece> pieces) override;
  void unmap_pieces(int ordinal, void* address, std::uint64_t bytes) noexcept override;

 private:
  class Selected;
  class Relaxed;
  class Current;
  CUcontext context(int ordinal);
  void note_context(int ordinal, CUcontext context) noexcept;
  void write_value(cudaStream_t stream, std::uint32_t* flag, std::uint32_t value) const;
  GpuId id_of(int ordinal) const noexcept;

  std::unique_ptr<const cuda::Driver> driver_;
  std::array<std::atomic<CUcontext>, most_gpus> contexts_ = {};  ///< used for each GPU
  std::array<std::atomic<CUcontext>, most_gpus> seen_ = {};      ///< of the first memory seen on each GPU
  Mutex preparing_;
  HostPages host_pages_;
};

/// While it lives, calls that a capture in the program would forbid are legal in this thread and do not break it.
class CudaRuntime::Relaxed {
 public:
  Relaxed() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~Relaxed() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  Relaxed(const Relaxed&) = delete;
  Relaxed& operator=(const Relaxed&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

/// While it lives, the context that is used on a GPU is the thread's current one. The context that was current before,
/// perhaps none, is restored: selecting the caller's device instead could create a context on it. This is enough for
/// calls that no capture forbids: launches and writes to streams of our own.
class CudaRuntime::Selected {
 public:
  Selected(CudaRuntime& runtime, int ordinal) : driver_(*runtime.driver_) {
    driver_.ctx_get_current(&caller_);  // fails only if the driver is not initialised: no context either
    const CUcontext wanted = runtime.context(ordinal);
    if (wanted == caller_) return;
    if (driver_.ctx_set_current(wanted) != CUDA_SUCCESS) fail(cudaErrorDeviceUninitialized, "select a GPU");
    switched_ = true;
  }
  ~Selected() {
    if (switched_) driver_.ctx_set_current(caller_);
  }
  Selected(const Selected&) = delete;
  Selected& operator=(const Selected&) = delete;

 private:
  const cuda::Driver& driver_;
  CUcontext caller_ = nullptr;
  bool switched_ = false;
};

/// Selected and Relaxed together, for all other calls.
class CudaRuntime::Current : Selected {
 public:
  using Selected::Selected;

 private:
  Relaxed relaxed_;  // while there is a context
};

}  // namespace gpudt::device
