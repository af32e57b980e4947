// The primitive operations that a GPU runtime offers, as one interface with two implementations: cuda/ and sim/.
// Everything above it (pools, streams, launches, completion) is shared, and so tested on machines without a GPU.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "device/runtime/copy_box.hpp"
#include "device/runtime/error.hpp"
#include "device/runtime/location.hpp"
#include "device/runtime/meeting.hpp"
#include "device/runtime/visible_gpu.hpp"

namespace gpudt::device {

// The arguments of kernels (kernels/).
struct KernelArgs;
struct TransferArgs;
struct BatchArgs;
struct ReduceArgs;
struct CopyBlocksArgs;
struct ResidentArgs;

using StreamHandle = void*;
using EventHandle = void*;

/// A GPU's UUID, the same in every process.
using GpuId = std::array<unsigned char, 16>;

struct Traits {
  int multiprocessors = 1;
  std::string name;
  GpuId id = {};
  int capability = 0;  ///< 90: compute capability 9.0; 0: simulated
  bool mps = false;    ///< CUDA MPS lets kernels of this process run beside those of others
};

/// The allocation that holds an address of device memory.
struct Allocation {
  std::uint64_t id = 0;  ///< differs for each allocation of the process, even at the same address
  std::uint64_t base = 0, size = 0;
  bool exportable = false;  ///< as far as is known without trying
};

using IpcHandle = std::array<unsigned char, 64>;

/// Physical memory (cuMemCreate) that can be passed to other processes as a file descriptor, where it is mapped.
struct Piece {
  std::uint64_t id = 0;  ///< of the physical memory; differs for each one that the process makes
  std::uint64_t base = 0, size = 0;
  std::int32_t ordinal = -1;
  bool operator==(const Piece&) const = default;
};

/// A piece of another process. The file descriptor stays the caller's.
struct SharedPiece {
  int file;
  std::uint64_t size;
};

class Runtime {
 public:
  virtual ~Runtime() = default;
  virtual const char* name() const noexcept = 0;
  /// Whether the device runs on host CPUs (simulated device), so that waiting threads should yield.
  virtual bool works_on_host() const noexcept { return false; }

  /// Never creates a context, never throws; memory that the runtime does not know is MemoryKind::host.
  virtual Location classify(const void* address) noexcept = 0;
  /// False for memory that is no GPU's. Never creates a context, never throws.
  virtual bool allocation_of(const void* address, Allocation& allocation) noexcept = 0;
  /// The id of allocation_of() alone, which takes less time; 0 for memory that is no GPU's.
  virtual std::uint64_t allocation_id(const void* address) noexcept {
    Allocation allocation;
    return allocation_of(address, allocation) ? allocation.id : 0;
  }
  /// A power of two: an aligned block of this many bytes holds no memory of different GPUs, or of a GPU and the host,
  /// except within one allocation.
  virtual std::size_t granule() const noexcept = 0;
  /// False if there can be no GPU's memory in the process yet.
  virtual bool in_use() noexcept { return true; }
  /// Whether the program's kernels may be loaded when they are first launched, which may wait for its streams.
  virtual bool loads_lazily() noexcept { return false; }
  /// The ordinal of the GPU with this id; -1 if this process does not see it. Creates no context.
  virtual int find_gpu(const GpuId& id) noexcept = 0;
  /// All GPUs that this process sees, by ordinal. Creates no context.
  virtual std::vector<VisibleGpu> visible_gpus() { return {}; }

  // Everything below may create the context of GPU `ordinal`, acts on it whatever the caller's current device is,
  // restores that, is legal while another thread captures a graph, and throws Error on failure.
  virtual Traits traits(int ordinal) = 0;
  /// The GPU's context has ended (ContextWatch): the next call for it prepares another.
  virtual void forget(int) noexcept {}
  /// Host address == device address (UVA). The host may touch it until it is freed, also when the context has ended.
  virtual void* mapped_alloc(int ordinal, std::size_t bytes) = 0;
  virtual void mapped_free(int ordinal, void* address) noexcept = 0;
  /// Registers host memory from elsewhere, so that it is like mapped memory. False if the runtime refuses.
  virtual bool host_register(int ordinal, void* address, std::size_t bytes) = 0;
  virtual void host_unregister(int ordinal, void* address) noexcept = 0;
  /// Whether the host memory from `first` to `last`, both included, is pinned, as one piece as far as the runtime
  /// tells, and not for GPU `ordinal` only to read.
  virtual bool is_pinned(int ordinal, const void* first, const void* last) = 0;
  virtual void* device_alloc(int ordinal, std::size_t bytes) = 0;
  virtual void device_free(int ordinal, void* address) noexcept = 0;
  virtual StreamHandle stream_create(int ordinal) = 0;  ///< non-blocking, of the highest priority
  virtual void stream_destroy(int ordinal, StreamHandle stream) noexcept = 0;
  virtual void stream_synchronize(int ordinal, StreamHandle stream) = 0;
  /// Throws if an earlier piece of work of this stream failed (a sticky error); otherwise does nothing.
  virtual void stream_check(int ordinal, StreamHandle stream) = 0;
  /// Work given to `stream` from now on waits for what `event` (of the same GPU) has recorded.
  virtual void stream_wait_event(int ordinal, StreamHandle stream, EventHandle event) = 0;
  virtual EventHandle event_create(int ordinal) = 0;  ///< without timing
  virtual void event_destroy(int ordinal, EventHandle event) noexcept = 0;
  virtual void event_record(int ordinal, EventHandle event, StreamHandle stream) = 0;
  /// Stores `value` to `*flag`, in mapped memory, when all work now in the program's legacy default stream, or in the
  /// calling thread's (`per_thread`), is done. Returns false if the program is capturing a blocking stream, in which
  /// case the default stream cannot be used (captured work does not run).
  virtual bool signal_default_async(int /*ordinal*/, std::uint32_t* /*flag*/, std::uint32_t /*value*/,
                                    bool /*per_thread*/) {
    return false;
  }
  /// Whether the legacy default stream, and what it waits for - all default streams of threads, and all other blocking
  /// streams - has nothing to do. While such a stream is being captured the query is illegal; returns `while_capturing`
  /// then.
  virtual bool default_stream_idle(int /*ordinal*/, bool /*while_capturing*/) { return true; }
  virtual void copy_async(int ordinal, void* to, const void* from, std::size_t bytes, StreamHandle stream) = 0;
  /// False if the runtime refuses the arguments, as it does where a box lies in two allocations.
  virtual bool copy_box_async(int ordinal, const CopyBox& box, StreamHandle stream) = 0;
  /// Whether copy_runs_async() takes less time than copy_box_async() for each run.
  virtual bool copies_runs_together() const noexcept { return false; }
  static constexpr std::size_t most_runs = 64;  ///< maximum for one call of copy_runs_async()
  /// copy_box_async() for each of `runs`, which are of a single row each, between this GPU's memory and pinned memory:
  /// by one call where the runtime has one for that, and in any order. False if it refuses any of them; others may have
  /// been given to the stream then.
  virtual bool copy_runs_async(int ordinal, std::span<const CopyBox> runs, StreamHandle stream) {
    for (const CopyBox& run : runs)
      if (!copy_box_async(ordinal, run, stream)) return false;
    return true;
  }
  /// Sets *flag (mapped memory) to `value` when all work given to `stream` before is done and visible to the host.
  virtual void signal_async(int ordinal, std::uint32_t* flag, std::uint32_t value, StreamHandle stream) = 0;
  virtual void memset_async(int ordinal, void* to, int value, std::size_t bytes, StreamHandle stream) = 0;
  /// Launches the kernel that `args` describes (kernel_args.hpp), which reports its end by the completion in `args`.
  virtual void launch(int ordinal, const KernelArgs& args, StreamHandle stream) = 0;
  virtual void launch(int ordinal, const TransferArgs& args, StreamHandle stream) = 0;
  virtual void launch(int ordinal, const BatchArgs& batch, StreamHandle stream) = 0;
  virtual void launch(int ordinal, const ResidentArgs& args, StreamHandle stream) = 0;
  virtual void launch(int ordinal, const ReduceArgs& args, StreamHandle stream) = 0;
  virtual void launch(int ordinal, const CopyBlocksArgs& args, StreamHandle stream) = 0;

  // Streams of the program. Its other work may wait behind what these functions put there.
  /// The GPU of a stream. Throws Error if `stream` is none.
  virtual int stream_gpu(StreamHandle stream) = 0;
  /// Whether the stream is being captured into a graph: what it is given runs when the graph is launched.
  virtual bool is_captured(int /*ordinal*/, StreamHandle /*stream*/) { return false; }
  /// Calls `released(data)` once, from any thread, when the graph into which the stream is being captured has been
  /// destroyed, with all that was made of it. `released` must not call the runtime.
  virtual void keep_with_graph(int /*ordinal*/, StreamHandle /*stream*/, void (* /*released*/)(void*), void* /*data*/) {
    throw Error(Failure::runtime, "this runtime has no graphs");
  }
  /// Puts the meeting into the stream, and so into the graph into which it is being captured.
  virtual void meet(int ordinal, const Meeting& meeting, StreamHandle stream) = 0;

  // Memory of other GPUs and other processes.
  virtual bool can_access_peer(int ordinal, int peer) = 0;
  /// Lets kernels of GPU `ordinal` use this process's memory of GPU `peer`, another one that it can access.
  virtual void enable_peer_access(int ordinal, int peer) = 0;
  /// A handle with which other processes open the allocation that begins at `base`.
  virtual IpcHandle ipc_export(int ordinal, void* base) = 0;
  /// Where GPU `ordinal` reaches another process's allocation. Takes milliseconds.
  virtual void* ipc_open(int ordinal, const IpcHandle& handle) = 0;
  /// All work that uses the memory must be done.
  virtual void ipc_close(int ordinal, void* address) noexcept = 0;

  // Memory in pieces, which ipc_export() does not take.
  /// The piece that holds `address`; false if there is none. Creates no context, never throws.
  virtual bool piece_of(const void* /*address*/, Piece& /*piece*/) noexcept { return false; }
  /// A file descriptor by which another process maps the piece at `base`, to be closed by the caller: while it is open,
  /// the memory is not freed.
  virtual int share_piece(int /*ordinal*/, std::uint64_t /*base*/) {
    throw Error(Failure::runtime, "this runtime shares no pieces of memory");
  }
  /// Maps the pieces one behind the other for GPU `ordinal`.
  virtual void* map_pieces(int /*ordinal*/, std::span<const SharedPiece> /*pieces*/) {
    throw Error(Failure::runtime, "this runtime maps no pieces of memory");
  }
  /// Undoes map_pieces(); `bytes`: of all pieces. All work that uses the memory must be done.
  virtual void unmap_pieces(int /*ordinal*/, void* /*address*/, std::uint64_t /*bytes*/) noexcept {}
};

}  // namespace gpudt::device
