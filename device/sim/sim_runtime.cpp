// The Runtime of the simulated device: libgpudt-pmpi.so's side, over the table that libgpudt-sim.so exports.
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <utility>
#include <vector>

#include "base/nap.hpp"
#include "device/kernels/copy_blocks_body.hpp"
#include "device/kernels/kernel_host.hpp"
#include "device/kernels/reduce_body.hpp"
#include "device/kernels/resident_body.hpp"
#include "device/runtime/host_pages.hpp"
#include "device/sim/make_runtime.hpp"
#include "device/sim/sim_api.h"

namespace gpudt::device {
namespace {

constexpr int not_ready = 600;    // cudaErrorNotReady
constexpr int implicit = 906;     // cudaErrorStreamCaptureImplicit
constexpr int no_memory = 2;      // cudaErrorMemoryAllocation
constexpr int invalid_value = 1;  // cudaErrorInvalidValue
constexpr int multiprocessors = 8;

/// Where a worker thread reaches what the program knows as `address`.
struct Translate {
  const char* begin = nullptr;
  std::size_t bytes = 0;
  std::ptrdiff_t distance = 0;
  void* operator()(const void* address) const {
    char* plain = static_cast<char*>(const_cast<void*>(address));
    return static_cast<std::size_t>(plain - begin) < bytes ? plain + distance : plain;
  }
};

struct Signal {
  std::uint32_t* flag;
  std::uint32_t value;
};

void set_flag(void* given) {
  const Signal& signal = *static_cast<const Signal*>(given);
  std::atomic_ref<std::uint32_t>(*signal.flag).store(signal.value, std::memory_order_release);
}

/// Where several streams wait, their workers must leave the cores to those whom they wait for.
void wait_at(const GateWait& gate) {
  const std::atomic_ref<std::uint32_t> done(*gate.done);
  nap_until([&] { return static_cast<std::int32_t>(done.load(std::memory_order_acquire) - gate.value) >= 0; });
}

void meet_on_worker(void* given) {
  const Meeting& meeting = *static_cast<const Meeting*>(given);
  if (meeting.told != nullptr)
    std::atomic_ref<std::uint32_t>(*meeting.told).store(meeting.value, std::memory_order_release);
  std::for_each_n(meeting.wait, meeting.waits, wait_at);
  std::for_each_n(meeting.wait, meeting.waits, [](const GateWait& gate) {
    if (gate.closes) std::atomic_ref<std::uint32_t>(*gate.done).store(0, std::memory_order_release);
  });
}

template <class Args>
struct Launch {
  Args args;
  Translate translate;
};

void complete(const Completion& completion) {
  if (completion.flag == nullptr) return;
  Signal signal = {const_cast<std::uint32_t*>(completion.flag), completion.flag_value};
  set_flag(&signal);
}

void run(const Launch<KernelArgs>& launch) {
  run_on_host(launch.args, launch.translate);
  complete(launch.args.completion);
}
void run(const Launch<TransferArgs>& launch) {
  run_on_host(launch.args, launch.translate);
  complete(launch.args.to.completion);
}
void run(const Launch<BatchArgs>& launch) {
  run_on_host(launch.args, launch.translate, complete);
}
void run(const Launch<ReduceArgs>& launch) {
  reduce_on_host(launch.args, HostMemory<Translate>{launch.translate});
  complete(launch.args.completion);
}
void run(const Launch<CopyBlocksArgs>& launch) {
  copy_blocks_on_host(launch.args, HostMemory<Translate>{launch.translate});
  complete(launch.args.completion);
}
void run(const Launch<ResidentArgs>& launch) {
  run_on_host(launch.args, launch.translate, complete);
}

template <class Args>
void run_kernel(void* given) {
  run(*static_cast<const Launch<Args>*>(given));
}

class SimRuntime final : public Runtime {
 public:
  explicit SimRuntime(const gpudt_sim_api_table& api) : api_(api) {}

  const char* name() const noexcept override { return "sim"; }
  bool works_on_host() const noexcept override { return true; }
  bool in_use() noexcept override { return api_.in_use() != 0; }

  Location classify(const void* address) noexcept override {
    int device = -1;
    switch (api_.classify(address, &device)) {
      case gpudt_sim_pinned:
        return {MemoryKind::pinned, -1};
      case gpudt_sim_device:
        return {MemoryKind::device, device, allocation_id(address)};
      case gpudt_sim_managed:
        return {MemoryKind::managed, device, allocation_id(address)};
      default:
        return {};
    }
  }

  bool allocation_of(const void* address, Allocation& allocation) noexcept override {
    gpudt_sim_allocation found;
    if (api_.allocation_of(address, &found) == 0) return false;
    allocation = {found.id, reinterpret_cast<std::uintptr_t>(found.begin), found.bytes, found.exportable != 0};
    return true;
  }

  std::size_t granule() const noexcept override { return 4096; }  // a page (memory.cpp)

  int find_gpu(const GpuId& id) noexcept override {
    for (int device = 0; device < api_.device_count(); ++device)
      if (id == id_of(device)) return device;
    return -1;
  }
  std::vector<VisibleGpu> visible_gpus() override {
    std::vector<VisibleGpu> visible;
    for (int device = 0; device < api_.device_count(); ++device) {
      char pci[32];
      std::snprintf(pci, sizeof pci, "0000:%02x:00.0", static_cast<unsigned>(GPUDT_SIM_FIRST_BUS + device));
      visible.push_back({id_of(device), pci});
    }
    return visible;
  }

  Traits traits(int ordinal) override {
    return {multiprocessors, "gpudt simulated device", id_of(ordinal), 0, api_.mps_enabled() != 0};
  }

  void* mapped_alloc(int ordinal, std::size_t bytes) override {
    void* const address = host_pages_.allocate(bytes);
    const int error = api_.pinned_register(ordinal, address, bytes);
    if (error != 0) host_pages_.free(address);
    check(error, "pinning memory");
    return address;
  }
  void mapped_free(int, void* address) noexcept override {
    api_.pinned_unregister(address);
    host_pages_.free(address);
  }
  bool host_register(int ordinal, void* address, std::size_t bytes) override {
    return api_.pinned_register(ordinal, address, bytes) == 0;
  }
  void host_unregister(int, void* address) noexcept override { api_.pinned_unregister(address); }
  bool is_pinned(int, const void* first, const void* last) override { return api_.is_pinned(first, last) != 0; }
  void* device_alloc(int ordinal, std::size_t bytes) override {
    void* address = nullptr;
    check(api_.device_malloc(ordinal, bytes, &address), "allocating device memory");
    return address;
  }
  void device_free(int, void* address) noexcept override { api_.device_free(address); }

  StreamHandle stream_create(int ordinal) override {
    void* stream = nullptr;
    check(api_.stream_create(ordinal, &stream), "creating a stream");
    return stream;
  }
  void stream_destroy(int, StreamHandle stream) noexcept override { api_.stream_destroy(stream); }
  void stream_synchronize(int, StreamHandle stream) override {
    check(api_.stream_synchronize(stream), "waiting for a stream");
  }
  void stream_check(int, StreamHandle stream) override { done(api_.stream_query(stream), "running a stream's work"); }
  void stream_wait_event(int, StreamHandle stream, EventHandle event) override {
    check(api_.stream_wait_event(stream, event), "making a stream wait for an event");
  }

  EventHandle event_create(int ordinal) override {
    void* event = nullptr;
    check(api_.event_create(ordinal, &event), "creating an event");
    return event;
  }
  void event_destroy(int, EventHandle event) noexcept override { api_.event_destroy(event); }
  void event_record(int, EventHandle event, StreamHandle stream) override {
    check(api_.event_record(event, stream), "recording an event");
  }
  bool signal_default_async(int ordinal, std::uint32_t* flag, std::uint32_t value, bool /*per_thread*/) override {
    const Signal signal = {flag, value};
    const int error = api_.default_launch(ordinal, set_flag, &signal, sizeof signal);
    if (error == implicit) return false;
    check(error, "signalling");
    return true;
  }
  bool default_stream_idle(int ordinal, bool while_capturing) override {
    const int error = api_.default_query(ordinal);
    return error == implicit ? while_capturing : done(error, "running work");
  }

  void copy_async(int, void* to, const void* from, std::size_t bytes, StreamHandle stream) override {
    check(api_.copy_async(to, from, bytes, stream), "copying");
  }
  bool copy_box_async(int, const CopyBox& box, StreamHandle stream) override {
    for (std::size_t i = 0; i < box.depth; ++i) {
      const int error = api_.copy_rows_async(static_cast<char*>(box.to.address) + i * box.to.slice, box.to.pitch,
                                             static_cast<char*>(box.from.address) + i * box.from.slice, box.from.pitch,
                                             box.width, box.height, stream);
      if (error == invalid_value) return false;
      check(error, "copying rows");
    }
    return true;
  }
  /// True although runs are copied one by one, so that tests make the choices of GPUs.
  bool copies_runs_together() const noexcept override { return true; }
  void signal_async(int, std::uint32_t* flag, std::uint32_t value, StreamHandle stream) override {
    const Signal signal = {flag, value};
    check(api_.launch(stream, set_flag, &signal, sizeof signal), "signalling");
  }
  void memset_async(int, void* to, int value, std::size_t bytes, StreamHandle stream) override {
    check(api_.memset_async(to, value, bytes, stream), "setting memory");
  }

  void launch(int, const KernelArgs& args, StreamHandle stream) override {
    // The host would let a kernel use any host memory; a GPU reaches only what is mapped into it.
    if (classify(args.packed).kind == MemoryKind::host)
      throw Error(Failure::runtime, "simulated device: a kernel was given pageable host memory");
    launch_any(args, stream);
  }

  void launch(int, const TransferArgs& args, StreamHandle stream) override { launch_any(args, stream); }
  void launch(int, const BatchArgs& batch, StreamHandle stream) override { launch_any(batch, stream); }
  void launch(int, const ResidentArgs& args, StreamHandle stream) override { launch_any(args, stream); }
  void launch(int, const ReduceArgs& args, StreamHandle stream) override { launch_any(args, stream); }
  void launch(int, const CopyBlocksArgs& args, StreamHandle stream) override { launch_any(args, stream); }

  int stream_gpu(StreamHandle stream) override {
    int device = -1;
    check(api_.stream_device(stream, &device), "asking for a stream's device");
    return device;
  }
  bool is_captured(int, StreamHandle stream) override { return api_.is_captured(stream) != 0; }
  void keep_with_graph(int, StreamHandle stream, void (*released)(void*), void* data) override {
    const int error = api_.keep_with_graph(stream, released, data);
    if (error != 0) released(data);
    check(error, "keeping an operation with a graph");
  }
  void meet(int, const Meeting& meeting, StreamHandle stream) override {
    check(api_.launch(stream, meet_on_worker, &meeting, sizeof meeting), "making a stream wait for the host");
  }

  bool can_access_peer(int ordinal, int peer) override { return api_.can_access_peer(ordinal, peer) != 0; }
  void enable_peer_access(int, int) override {}
  IpcHandle ipc_export(int, void* base) override {
    IpcHandle handle;
    check(api_.ipc_export(base, handle.data()), "exporting memory");
    return handle;
  }
  void* ipc_open(int ordinal, const IpcHandle& handle) override {
    void* address = nullptr;
    check(api_.ipc_open(ordinal, handle.data(), &address), "opening another process's memory");
    return address;
  }
  void ipc_close(int ordinal, void* address) noexcept override { api_.ipc_close(ordinal, address); }
  bool piece_of(const void* address, Piece& piece) noexcept override {
    gpudt_sim_piece found;
    if (api_.piece_of(address, &found) == 0) return false;
    piece = {found.id, reinterpret_cast<std::uintptr_t>(found.begin), found.bytes, found.device};
    return true;
  }
  int share_piece(int, std::uint64_t base) override {
    int file = -1;
    check(api_.share_piece(reinterpret_cast<const void*>(base), &file), "sharing memory");
    return file;
  }
  void* map_pieces(int ordinal, std::span<const SharedPiece> pieces) override {
    std::vector<int> files;
    std::vector<std::size_t> sizes;
    for (const SharedPiece& piece : pieces) {
      files.push_back(piece.file);
      sizes.push_back(piece.size);
    }
    void* address = nullptr;
    check(api_.map_pieces(ordinal, files.size(), files.data(), sizes.data(), &address), "mapping shared memory");
    return address;
  }
  void unmap_pieces(int ordinal, void* address, std::uint64_t bytes) noexcept override {
    api_.unmap_pieces(ordinal, address, bytes);
  }

 private:
  template <class Args>
  void launch_any(const Args& args, StreamHandle stream) {
    Launch<Args> launch = {args, {}};
    api_.device_range(&launch.translate.begin, &launch.translate.bytes, &launch.translate.distance);
    check(api_.launch(stream, run_kernel<Args>, &launch, sizeof launch), "launching a kernel");
  }

  static GpuId id_of(int device) { return {'s', 'i', 'm', static_cast<unsigned char>(device)}; }

  void check(int error, const char* doing) const {
    if (error == 0) return;
    throw Error(error == no_memory ? Failure::out_of_memory : Failure::runtime,
                std::string("simulated device: ") + doing + ": " + api_.error_string(error));
  }
  bool done(int error, const char* doing) const {
    if (error == not_ready) return false;
    check(error, doing);
    return true;
  }

  const gpudt_sim_api_table& api_;
  HostPages host_pages_;
};

}  // namespace

std::unique_ptr<Runtime> make_sim_runtime(std::string* why) {
  using Entry = const gpudt_sim_api_table* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(RTLD_DEFAULT, "gpudt_sim_api"));
  const gpudt_sim_api_table* api = entry ? entry() : nullptr;
  if (api && api->version != GPUDT_SIM_API_VERSION)
    throw Error(Failure::runtime, "libgpudt-sim.so is not of this build: preload the one beside libgpudt-pmpi.so");
  if (!api || api->device_count() == 0) {
    if (why)
      *why = api ? "GPUDT_SIM_DEVICES is 0; it takes a number from 1 to 16"
                 : "libgpudt-sim.so is not loaded. Preload it beside libgpudt-pmpi.so, as gpudt-run --sim does";
    return nullptr;
  }
  return std::make_unique<SimRuntime>(*api);
}

}  // namespace gpudt::device
