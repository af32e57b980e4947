// What a GPU can do for the interposition layer, behind one interface: classify pointers, hand out staging memory,
// and start packs and unpacks that run on their own until their completion flag is seen.
//
// One runtime (runtime.hpp) serves a process: CUDA, the simulated device, or none. Nothing here creates a CUDA
// context before the first device pointer is seen, nothing synchronises a whole device, and every function leaves
// the caller's current device as it was. Failures are thrown as Error.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/exception.hpp"
#include "datatype/layout.hpp"

namespace gpudt::device {

/// What went wrong; interpose/ turns it into an MPI error class.
enum class Failure {
  out_of_memory,  ///< staging memory could not be had, or the limit on it is reached -> MPI_ERR_NO_MEM
  runtime,        ///< a CUDA call failed -> MPI_ERR_OTHER
};

class Error : public Exception {
 public:
  Error(Failure failure, const std::string& what) : Exception(what), failure_(failure) {}
  Failure failure() const { return failure_; }

 private:
  Failure failure_;
};

enum class MemoryKind : std::uint8_t {
  host,     ///< pageable, or not known to the runtime
  pinned,   ///< host memory that the GPU can reach
  device,   ///< memory of one GPU: cudaMalloc, cudaMallocAsync, VMM
  managed,  ///< migrates by itself; handled like device memory
};

struct Location {
  MemoryKind kind = MemoryKind::host;
  std::int32_t ordinal = -1;  ///< the GPU, for device and managed memory
  bool on_device() const { return kind == MemoryKind::device || kind == MemoryKind::managed; }
};

enum class Choice { automatic, cuda, sim, none };

/// What moves data between a program's buffers and staging memory.
enum class Way {
  automatic,  ///< what the model of costs says (chooser.hpp)
  kernel,
  copy,  ///< the copy engine wherever it can
};

/// Whether a kernel stays on the GPU for a while, for short transfers (resident.hpp).
enum class ResidentUse {
  automatic,  ///< where they follow each other closely
  never,
  always,  ///< it is launched whenever a call waits
};

/// After what of the program's own work its memory is used (StreamMark).
enum class Order {
  default_stream,  ///< what is in the legacy default stream, which waits for all blocking streams
  per_thread,      ///< what is in the default stream of the thread that makes the MPI call
  none,
};

struct Config {
  Choice choice = Choice::automatic;
  Way way = Way::automatic;
  std::size_t staging_limit = 0;                     ///< bytes of staging memory in use and idle, 0: no limit
  std::size_t staging_cache = std::size_t(2) << 30;  ///< bytes of idle staging memory kept for reuse
  ResidentUse resident = ResidentUse::automatic;
  Order order = Order::none;
  bool batches = true;          ///< several short transfers may be launched as one
  std::string tuning = "none";  ///< where the costs come from: "auto", "none", a file (tuning.hpp)
  // Callbacks for warnings and traces; may be null. They must not throw.
  void (*warn)(const std::string& text) = nullptr;
  void (*trace)(const std::string& text) = nullptr;  ///< one for each transfer: what moves it, and why
};

/// Chooses the runtime. automatic: the simulated device if libgpudt-sim.so is loaded, else CUDA if libcuda.so.1 can
/// be loaded, else none. Throws Error when the choice names a runtime that is not there. Creates no context.
void start(const Config& config);

/// Waits for all work, releases everything. No call but start() is legal afterwards.
void stop() noexcept;

/// "cuda", "sim" or "none".
const char* runtime_name() noexcept;

namespace detail {
extern std::atomic<bool> active;  // a runtime has been started
extern std::atomic<std::size_t> granule;
Location classify_active(const void* address) noexcept;
}  // namespace detail

/// Where `address` lies. Costs under 100 ns, next to nothing without a runtime; never throws, never creates a context.
inline Location classify(const void* address) noexcept {
  return detail::active.load(std::memory_order_relaxed) ? detail::classify_active(address) : Location{};
}

/// Returns the id of the GPU allocation that contains `address`, unique within the process; 0 if it is not GPU memory.
std::uint64_t allocation_id(const void* address) noexcept;

/// True if `address` lies in the program's heap (what brk gives), on its first thread's stack or among its static
/// variables, so that no runtime need be asked whether it is a GPU's: that takes 3 ns. False says nothing.
bool surely_host(const void* address) noexcept;
/// The same of all addresses from the first to the last.
bool surely_host(std::uintptr_t first, std::uintptr_t last) noexcept;

/// Alignment (a power of two) at which memory of different GPUs and of the host never share a block, except within one
/// allocation; 0 without a runtime.
inline std::size_t granule() noexcept {
  return detail::granule.load(std::memory_order_relaxed);
}

/// False if there can be no GPU's memory in the process yet. Under 100 ns.
bool in_use() noexcept;

/// A point in the default stream of a GPU; reached when all work queued before it has completed (like a CUDA event).
class StreamMark {
 public:
  StreamMark() = default;  ///< nothing to wait for
  /// A mark recorded lazily, by make() or the first reached(). For blocking calls, which do other work first. Each copy
  /// makes its own. Not to outlive the program's call.
  static StreamMark late(int ordinal);
  bool made() const { return number_ != unmade; }
  /// Throws Error.
  void make() const;
  /// Stays true. Costs a look at memory, and a lock unless it is known.
  bool reached() const;
  /// Polls until then.
  void wait() const;

 private:
  friend StreamMark mark_default_stream(int ordinal);
  StreamMark(int ordinal, std::uint64_t number) : ordinal_(ordinal), number_(number) {}
  static constexpr std::uint64_t unmade = ~std::uint64_t{0};
  int ordinal_ = 0;
  mutable std::uint64_t number_ = 0;  ///< see DefaultStream
};

/// Marks the default stream of GPU `ordinal` as it is now. To be called when the program calls MPI, not later: what it
/// puts there meanwhile may wait for the call to end. Thread-safe. Throws Error.
StreamMark mark_default_stream(int ordinal);
/// Whether the legacy default stream has nothing to do.
bool default_stream_idle(int ordinal);
/// Whether memory is used after the program's own work on it (Config::order): whether marks are ever waited for.
bool keeps_order() noexcept;

// --- staging memory ------------------------------------------------------------------------------------------------

enum class StagingKind {
  mapped,  ///< pinned host memory, mapped into every GPU: the host and kernels both use it
  device,  ///< plain cudaMalloc memory of one GPU
};

/// A block of staging memory; returns to its pool when destroyed (which may also be after stop()). Contents are
/// undefined.
class Staging {
 public:
  Staging() = default;
  Staging(Staging&& other) noexcept { swap(other); }
  Staging& operator=(Staging&& other) noexcept {
    Staging taken(std::move(other));
    swap(taken);
    return *this;
  }
  ~Staging();
  void* data() const { return data_; }  ///< for MPI: host-readable only if mapped. At least 256-byte aligned.
  std::size_t capacity() const { return capacity_; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  friend class Pool;
  void swap(Staging& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(data_, other.data_);
    std::swap(capacity_, other.capacity_);
  }
  class Pool* pool_ = nullptr;
  void* data_ = nullptr;
  std::size_t capacity_ = 0;
};

/// At least `bytes` bytes for use with GPU `ordinal`. Thread-safe. Throws Failure::out_of_memory.
Staging acquire(StagingKind kind, int ordinal, std::size_t bytes);
/// The same, but empty instead.
Staging try_acquire(StagingKind kind, int ordinal, std::size_t bytes);

/// Where GPU `ordinal` reaches the caller's host memory, whole pages of a shared mapping, as it reaches mapped staging
/// memory, from now on until stop() or the end of its context; the memory must stay as long. Null if the runtime
/// refuses. The answer is remembered: to be asked before each use, of the same `address` and `bytes`. Thread-safe.
void* register_host(int ordinal, void* address, std::size_t bytes) noexcept;

/// Staging memory now and at its peak, in bytes (in use, and in use + idle).
struct StagingStatistics {
  std::size_t in_use = 0, peak_in_use = 0, allocated = 0, peak_allocated = 0;
};
StagingStatistics staging_statistics(StagingKind kind) noexcept;
/// Bytes that may be taken before the limit is reached; blocks are rounded up to no more than twice their length.
std::size_t staging_room() noexcept;

// --- transfers -----------------------------------------------------------------------------------------------------

enum class Direction { pack, unpack };

/// A pack or unpack under way. Movable; destroying it before it is done waits for it (the GPU still uses the
/// buffers), or has it never begin if its mark has not been reached. Thread-compatible: one thread at a time.
class Transfer {
 public:
  struct State;
  Transfer() noexcept;
  explicit Transfer(std::unique_ptr<State> state) noexcept;
  Transfer(Transfer&&) noexcept;
  Transfer& operator=(Transfer&&) noexcept;
  ~Transfer();

  /// True once the data has arrived; stays true. Throws Error if the GPU reports a failure.
  bool done();
  /// Polls until done().
  void wait();
  explicit operator bool() const { return state_ != nullptr; }
  Way way() const;  ///< kernel or copy; automatic if there was nothing to move

 private:
  std::unique_ptr<State> state_;
};

/// Transfers so far, by what does them; of those by kernels, how many were launched together, and by how many launches;
/// how often one (or a probe) had a start delay, and how many were done by the persistent kernel.
struct Movements {
  std::int64_t kernels = 0, copies = 0, batches = 0, batched = 0, late = 0, resident = 0;
};
Movements movements() noexcept;

/// What a thread waits for.
enum class WaitKind {
  receiver,  ///< of a message that it sends
  message,   ///< that it receives
  requests,
  collective,
  transfer,  ///< which it has started
};
inline constexpr int wait_kinds = 5;

/// Hint that the calling thread is about to wait, for other processes or for the GPU: the persistent kernel may be
/// launched now (about 5 us). Send pending messages first.
void about_to_wait(WaitKind kind) noexcept;

/// Another process uses the GPU, too: no kernel of this one is to stay there, nor are copies to wait where kernels do.
/// `yields`: the other process launches the kernels for both, so this one should prefer the copy engine for a while.
void shared_with_others(int ordinal, bool yields) noexcept;

/// Where the costs come from that choices are made from: a line for each GPU used so far, "GPU 0: built in".
std::vector<std::string> cost_sources();

/// A GPU that this process has used.
struct UsedGpu {
  int ordinal;
  std::string name;
  std::array<unsigned char, 16> id;  ///< tells GPUs apart, in every process
};
std::vector<UsedGpu> used_gpus();

/// While it lives, what this thread starts waits, to be launched together when it ends: several transfers by one kernel
/// where that is cheaper. Asking whether one of them is done launches those started so far. One that cannot be launched
/// says so when it is asked.
class Gathering {
 public:
  /// Transfers of one message that are to overlap with what is done to its other parts are longer.
  static constexpr std::int64_t short_bytes = (256 << 10) - 1;
  /// Beyond that a launch is a small part of a transfer's time, and its own kernel quicker than one for all.
  static constexpr std::int64_t long_bytes = 4 << 20;
  /// Longer ones do not wait.
  explicit Gathering(std::int64_t most_bytes) noexcept;
  ~Gathering();
  Gathering(const Gathering&) = delete;
  Gathering& operator=(const Gathering&) = delete;

 private:
  std::int64_t outer_;
};

/// Starts moving packed bytes [begin, end) of `count` elements of `layout` at `user` to or from `packed`, whose first
/// byte is byte `begin` of the stream. `user` is memory of GPU `ordinal` (the address the program gave to MPI, possibly
/// MPI_BOTTOM); `packed` is any memory that GPU can reach: staging, pinned, device or managed memory; `packed_kind`, if
/// known, spares a question to the driver. The layout's device copy is kept with the layout: the caller keeps a
/// LayoutRef until the transfer is done. Data packed for the host are complete when done() has returned true; the
/// caller of done() may do part of the packing, so `packed` must stay valid until then. An empty range is done at once.
/// Transfers run concurrently; a transfer that depends on another must be started after that one is done(). Short
/// transfers may be queued while the GPU is busy and launched by the next poll (see Gathering). A transfer whose mark
/// has not been reached is launched by the first poll after it is. Thread-safe.
Transfer start(Direction direction, int ordinal, const datatype::Layout& layout, std::int64_t count, void* user,
               std::int64_t begin, std::int64_t end, void* packed, std::optional<MemoryKind> packed_kind = {},
               const StreamMark& after = {});

/// Starts a contiguous copy between any two kinds of memory, of which at least one belongs to GPU `ordinal`. Pageable
/// memory may make it block. `after` as for start().
Transfer copy(int ordinal, void* to, const void* from, std::size_t bytes, const StreamMark& after = {});

// --- peers: memory of other processes and other GPUs -----------------------------------------------------------------

/// An allocation of one process as another one of the node opens it. Plain data, to travel through shared memory.
struct Exported {
  unsigned char handle[64];  ///< a cudaIpcMemHandle_t
  std::uint64_t buffer_id;   ///< another for each allocation of the process, also of the same addresses
  std::uint64_t base, size;  ///< in the exporting process
  unsigned char gpu[16];     ///< the UUID
  std::uint64_t process;     ///< a random number of the exporting process's
};

/// Describes the allocation that holds `address`, in memory of GPU `ordinal`. False if it cannot be exported: managed,
/// stream-ordered and virtually mapped memory, another process's, and whatever the runtime refuses. The answer, also a
/// negative one, is remembered: asked again, it costs a question to the driver (100 ns). Thread-safe.
bool export_memory(int ordinal, const void* address, Exported& exported) noexcept;

/// Another process's allocation where a GPU of this process reaches it. Copies refer to the same mapping, which stays
/// while there is one, and at the longest until stop(). Transfers that use it must be done before the last one goes.
class Mapping {
 public:
  Mapping() = default;
  /// Where this process's GPU finds what the exporter knows by `exporters_address`: an address in the allocation, or
  /// one that is only calculated with, as a buffer's with a lower bound may be.
  void* at(std::uint64_t exporters_address) const;
  explicit operator bool() const { return memory_ != nullptr; }

 private:
  friend class Peers;
  explicit Mapping(std::shared_ptr<const struct PeerMemory> memory) : memory_(std::move(memory)) {}
  std::shared_ptr<const struct PeerMemory> memory_;
};

/// Maps what another process has exported for use by GPU `ordinal`; what this process has exported itself is used where
/// it is. `exporter` is the rank of the exporting process in MPI_COMM_WORLD. Opening takes 10 ms and is done once:
/// mappings are kept, within bounds, and replaced when the exporter has freed the memory and allocated anew. Empty if
/// the GPUs do not reach each other, or the memory cannot be opened (processes isolated from each other); the reason is
/// in *why (which may be null), and the same is answered for all memory of that GPU of the exporter's for a while, then
/// the runtime is asked again. As long as a mapping is kept, memory that its exporter frees may stay in use.
/// Thread-safe.
Mapping import_memory(int ordinal, std::uint64_t exporter, const Exported& exported, std::string* why);

/// The same of memory that is mapped already, which takes no time; empty if it is not.
Mapping imported_memory(int ordinal, std::uint64_t exporter, const Exported& exported);

/// Allocations known to be exportable or not, and mappings of other processes' memory that are open.
struct PeerStatistics {
  std::int64_t exports = 0, imports = 0;
};
PeerStatistics peer_statistics() noexcept;

/// One side of a transfer: `count` elements of `layout` at `user`, an address that GPUs know (Mapping::at()), possibly
/// MPI_BOTTOM.
struct Side {
  const datatype::Layout* layout;
  std::int64_t count;
  void* user;
};

/// Starts moving bytes [begin, end) of the packed stream of `from` to where they lie in `to`, without packing them in
/// between: one kernel, or one copy if both are contiguous and large. No more than each side has; elements may be moved
/// in part, and the types may have nothing but the bytes in common. `begin` is not 0 only if `from` is contiguous. Runs
/// on GPU `ordinal`, which must reach both sides' memory. Both layouts must live until it is done. `after` as for
/// start(). `within`: both sides are memory of that GPU, so that it is moved beside what comes over the link to others.
/// Thread-safe.
Transfer transfer(int ordinal, const Side& from, const Side& to, std::int64_t begin, std::int64_t end,
                  const StreamMark& after = {}, bool within = false);

/// Lower bound (usually exact) for the number of copy calls that move `count` elements to or from pinned memory; 0: the
/// copy engine cannot.
std::int64_t least_copy_calls(const datatype::Layout& layout, std::int64_t count);

/// Whether kernels on GPU `ordinal` currently have a start delay (according to recent observations).
bool kernels_late(int ordinal);
/// Whether another process is to have the GPU's multiprocessors (shared_with_others()).
bool yields_turns(int ordinal);

/// Whether a peer GPU gets the data faster if they are packed on GPU `ordinal` first instead of being read in place.
bool better_fetched_packed(int ordinal, const datatype::Layout& layout, std::int64_t count);

/// Estimate of what it takes to pack `count` elements on GPU `ordinal` into its own memory.
double expected_packing_us(int ordinal, const datatype::Layout& layout, std::int64_t count);

}  // namespace gpudt::device
