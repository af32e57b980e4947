// What a GPU can do for the interposition layer, behind one interface: classify pointers, hand out staging memory,
// and start packs and unpacks that run on their own until their completion flag is seen.
//
// One runtime (runtime.hpp) serves a process: CUDA, the simulated device, or none. Nothing here creates a CUDA
// context before the first device pointer is seen, nothing synchronises a whole device, and every function leaves
// the caller's current device as it was. Failures are thrown as Error.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "datatype/layout.hpp"
#include "device/kernels/copy_blocks.hpp"
#include "device/kernels/reduction.hpp"
#include "device/memory/addresses.hpp"
#include "device/memory/division.hpp"
#include "device/memory/export_table.hpp"
#include "device/memory/gates.hpp"
#include "device/memory/mapping.hpp"
#include "device/memory/staging.hpp"
#include "device/runtime/error.hpp"
#include "device/runtime/location.hpp"
#include "device/runtime/visible_gpu.hpp"
#include "device/transfer/config.hpp"
#include "device/transfer/start.hpp"
#include "device/transfer/stream_mark.hpp"
#include "device/transfer/transfer.hpp"
#include "device/transfer/user_data.hpp"

namespace gpudt::device {

/// Chooses the runtime. automatic: the simulated device if libgpudt-sim.so is loaded, else CUDA if libcuda.so.1 can
/// be loaded, else none. Throws Error when the choice names a runtime that is not there. Creates no context.
void start(const Config& config);

/// Waits for all work, releases everything. No call but start() is legal afterwards.
void stop() noexcept;

/// "cuda", "sim" or "none".
const char* runtime_name() noexcept;
/// Whether the first launch of a kernel of the program's may load it, for which CUDA may wait until all streams are
/// idle.
bool loads_lazily() noexcept;

/// Whether the legacy default stream has nothing to do.
bool default_stream_idle(int ordinal);
/// Whether transfers wait for the program's own work in the default stream (Config::order), so that marks matter.
bool keeps_order() noexcept;

// --- staging memory ------------------------------------------------------------------------------------------------

/// At least `bytes` bytes for use with GPU `ordinal`. Thread-safe. Throws Failure::out_of_memory.
Staging acquire(StagingKind kind, int ordinal, std::size_t bytes);
/// At least `bytes` bytes of mapped memory for packed data, which only start() and the host use: of ordinary memory, if
/// no other can be had in time (memory/in_time.hpp). Throws Failure::out_of_memory.
Staging acquire_packed(int ordinal, std::size_t bytes);
/// acquire() that returns an empty Staging where that one throws Failure::out_of_memory.
Staging try_acquire(StagingKind kind, int ordinal, std::size_t bytes);

/// Registers the caller's host memory, whole pages of a shared mapping, with GPU `ordinal` and returns the address at
/// which the GPU reaches it until stop() or the end of its context; the memory must live as long. Null if the runtime
/// refuses. Call it before each use, with the same `address` and `bytes`: the answer is cached. Thread-safe.
void* register_host(int ordinal, void* address, std::size_t bytes) noexcept;

StagingStatistics staging_statistics(StagingKind kind) noexcept;
/// Bytes that may be taken before the limit is reached; blocks are rounded up to no more than twice their length.
std::size_t staging_room() noexcept;

// --- transfers -----------------------------------------------------------------------------------------------------

Movements movements() noexcept;

/// The source of each used GPU's costs, from which choices are made: lines like "GPU 0: built in".
std::vector<std::string> cost_sources();

std::vector<UsedGpu> used_gpus();
/// By ordinal; none if this process has used no GPU's memory. Creates no context.
std::vector<VisibleGpu> visible_gpus();

// --- streams of the program ------------------------------------------------------------------------------------------

/// The GPU of a stream of the program. Throws Error if `stream` is none.
int stream_gpu(void* stream);
/// Readies what operations that are enqueued need on GPU `ordinal`, so that few allocations follow: these may have to
/// wait for a stream. Takes milliseconds at first, and then next to nothing. Throws Error.
void prepare_for_streams(int ordinal);
/// Whether the stream is being captured into a graph.
bool is_captured(int ordinal, void* stream);
/// A gate for one enqueued operation, or for all launches of an operation in a graph. give_gate() takes it back once no
/// stream comes to it any more. Throws Error.
Gate* take_gate(int ordinal, bool for_graph);
void give_gate(Gate* gate, bool for_graph) noexcept;
/// To be called when the host has opened gates of the GPU, so that their streams pass soon (transfer/nudge.hpp).
void gates_opened(int ordinal) noexcept;
/// Puts a meeting into a stream of the program. Throws Error.
void meet(int ordinal, const Meeting& meeting, void* stream);
/// Calls `released(data)`, which must not use device/, once the graph into which the stream is being captured is gone.
/// Throws Error; `released` has been called then.
void keep_with_graph(int ordinal, void* stream, void (*released)(void*), void* data);

// --- peers: memory of other processes and other GPUs -----------------------------------------------------------------

/// From now on until stop(), `table`, in memory that other processes share with this one, tells them which memory that
/// export_memory() has described has been freed since. All of it is 0. Thread-safe.
void tell_exports(ExportTable& table) noexcept;

/// Describes the allocation that holds `address`, in memory of GPU `ordinal`, or, of memory from cuMemCreate with file
/// descriptors as handles, what is mapped around it: all of the `bytes` bytes, if that is possible. False if it cannot
/// be exported: managed and stream-ordered memory, other memory of cuMemCreate, another process's, and whatever the
/// runtime refuses. The answer, also a negative one, is cached: a further call costs one query of the driver (100 ns),
/// or one for each piece with some of the bytes. Also false as long as one of the processes `by` has memory mapped that
/// was at these addresses before, since it cannot map this one then. Thread-safe.
bool export_memory(int ordinal, const void* address, Exported& exported, Importers by = all_importers,
                   std::uint64_t bytes = 1) noexcept;
/// Why export_memory() has returned false, for the trace; empty if the runtime has refused nothing.
std::string not_exported_because(const void* address) noexcept;

struct ExportedStaging {
  Staging staging;
  std::optional<Exported> exported;  ///< none: it cannot be mapped
};
/// Takes at least `bytes` bytes of device memory that the processes `by` can map now, none if there is no memory.
/// Thread-safe. Throws Error.
ExportedStaging acquire_exported(int ordinal, std::size_t bytes, Importers by);

/// Maps what another process has exported for use by GPU `ordinal`; what this process has exported itself is used where
/// it is. Opening takes 10 ms and is done once: mappings are kept, within bounds, until the exporter's table says that
/// the memory has been freed. Empty if the GPUs do not reach each other, or the memory cannot be opened (processes
/// isolated from each other); the reason is in *why (which may be null), and further calls for memory of that GPU of
/// the exporter's fail for a while (back-off). Also empty, for this call alone, while a mapping of memory that was at
/// these addresses before is still open. Thread-safe.
/// `may_wait`: false if work of the program in the GPU may wait for what this process does next. Then nothing is
/// unmapped, which would wait for that work.
Mapping import_memory(int ordinal, const Exporter& exporter, const Exported& exported, std::string* why,
                      bool may_wait = true);

/// The mapping that import_memory() has made before; empty, at once, if there is none.
Mapping imported_memory(int ordinal, std::uint64_t exporter, const Exported& exported);
/// The mapping; empty if it has been closed meanwhile, or its context has ended.
Mapping hold_again(int ordinal, const KnownMapping& known);

/// To be called often, 20 us apart: looks whether two of the allocations that have been exported are still there, and
/// unmaps what other processes have freed. Unmapping takes up to a millisecond; it is put off while somebody holds the
/// mapping or the default stream has work, since it would wait for that, and for up to 0.2 ms while transfers are under
/// way. Thread-safe.
void give_back_freed() noexcept;

PeerStatistics peer_statistics() noexcept;

}  // namespace gpudt::device
