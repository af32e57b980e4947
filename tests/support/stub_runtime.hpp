// A Runtime that does nothing and takes every call for a mistake: tests override what they expect.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "device/runtime/runtime.hpp"

namespace gpudt::test {

class StubRuntime : public device::Runtime {
 public:
  const char* name() const noexcept override { return "stub"; }
  device::Location classify(const void*) noexcept override { return {}; }
  bool allocation_of(const void*, device::Allocation&) noexcept override { return false; }
  std::size_t granule() const noexcept override { return 4096; }
  int find_gpu(const device::GpuId&) noexcept override { return -1; }
  device::Traits traits(int) override { return {}; }
  void* mapped_alloc(int, std::size_t) override { return unexpected(); }
  void mapped_free(int, void*) noexcept override {}
  bool host_register(int, void*, std::size_t) override { return false; }
  void host_unregister(int, void*) noexcept override {}
  bool is_pinned(int, const void*, const void*) override { return false; }
  void* device_alloc(int, std::size_t) override { return unexpected(); }
  void device_free(int, void*) noexcept override {}
  device::StreamHandle stream_create(int) override { return unexpected(); }
  void stream_destroy(int, device::StreamHandle) noexcept override {}
  void stream_synchronize(int, device::StreamHandle) override { unexpected(); }
  void stream_check(int, device::StreamHandle) override { unexpected(); }
  void stream_wait_event(int, device::StreamHandle, device::EventHandle) override { unexpected(); }
  device::EventHandle event_create(int) override { return unexpected(); }
  void event_destroy(int, device::EventHandle) noexcept override {}
  void event_record(int, device::EventHandle, device::StreamHandle) override { unexpected(); }
  void copy_async(int, void*, const void*, std::size_t, device::StreamHandle) override { unexpected(); }
  bool copy_box_async(int, const device::CopyBox&, device::StreamHandle) override { return unexpected() != nullptr; }
  void signal_async(int, std::uint32_t*, std::uint32_t, device::StreamHandle) override { unexpected(); }
  void memset_async(int, void*, int, std::size_t, device::StreamHandle) override { unexpected(); }
  int stream_gpu(device::StreamHandle) override { return unexpected() != nullptr ? 0 : -1; }
  void meet(int, const device::Meeting&, device::StreamHandle) override { unexpected(); }
  void launch(int, const device::KernelArgs&, device::StreamHandle) override { unexpected(); }
  void launch(int, const device::TransferArgs&, device::StreamHandle) override { unexpected(); }
  void launch(int, const device::BatchArgs&, device::StreamHandle) override { unexpected(); }
  void launch(int, const device::ResidentArgs&, device::StreamHandle) override { unexpected(); }
  void launch(int, const device::ReduceArgs&, device::StreamHandle) override { unexpected(); }
  void launch(int, const device::CopyBlocksArgs&, device::StreamHandle) override { unexpected(); }
  bool can_access_peer(int, int) override { return unexpected() != nullptr; }
  void enable_peer_access(int, int) override { unexpected(); }
  device::IpcHandle ipc_export(int, void*) override {
    unexpected();
    return {};
  }
  void* ipc_open(int, const device::IpcHandle&) override { return unexpected(); }
  void ipc_close(int, void*) noexcept override {}

 private:
  static std::nullptr_t unexpected() { throw std::logic_error("a call that the test does not expect"); }
};

/// One whose memory of all kinds is the host's, and pinned; with streams and events that have nothing to wait for.
class HostMemoryRuntime : public StubRuntime {
 public:
  device::Location classify(const void*) noexcept override { return {device::MemoryKind::pinned, -1}; }
  void* mapped_alloc(int, std::size_t bytes) override { return device_alloc(0, bytes); }
  void mapped_free(int, void* address) noexcept override { std::free(address); }
  void* device_alloc(int, std::size_t bytes) override {
    return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  }
  void device_free(int, void* address) noexcept override { std::free(address); }
  device::StreamHandle stream_create(int) override { return this; }
  void stream_synchronize(int, device::StreamHandle) override {}
  void stream_check(int, device::StreamHandle) override {}
  device::EventHandle event_create(int) override { return this; }
  void event_record(int, device::EventHandle, device::StreamHandle) override {}
  void copy_async(int, void* to, const void* from, std::size_t bytes, device::StreamHandle) override {
    std::memcpy(to, from, bytes);
  }
  void memset_async(int, void* to, int value, std::size_t bytes, device::StreamHandle) override {
    std::memset(to, value, bytes);
  }

 protected:
  /// Of a box of one slice.
  static void copy_rows(const device::CopyBox& box) {
    for (std::size_t row = 0; row < box.height; ++row)
      std::memcpy(static_cast<char*>(box.to.address) + row * box.to.pitch,
                  static_cast<const char*>(box.from.address) + row * box.from.pitch, box.width);
  }

 private:
  static constexpr std::size_t alignment = 64;
};

}  // namespace gpudt::test
