// What Rank (device.cuh) is made of: scopes, both ends of a transfer, waits, and access to queues.
#pragma once

#include <cuda/atomic>

#include "device/cuda/access.cuh"
#include "initiated/kernel_world.hpp"
#include "initiated/layout.hpp"

namespace gpudt::initiated {

// --- scopes ---------------------------------------------------------------------------------------------------------

struct Thread {
  static __device__ __forceinline__ std::int64_t index() { return 0; }
  static __device__ __forceinline__ std::int64_t count() { return 1; }
  /// Nothing to wait for; but the compiler is to keep accesses before and behind in order.
  static __device__ __forceinline__ void sync() { asm volatile("" ::: "memory"); }
};

struct Warp {
  static __device__ __forceinline__ std::int64_t index() { return threadIdx.x % 32; }
  static __device__ __forceinline__ std::int64_t count() { return 32; }
  static __device__ __forceinline__ void sync() { __syncwarp(); }
};

struct Block {
  static __device__ __forceinline__ std::int64_t index() { return threadIdx.x; }
  static __device__ __forceinline__ std::int64_t count() { return blockDim.x; }
  static __device__ __forceinline__ void sync() { __syncthreads(); }
};

struct Grid {
  static __device__ __forceinline__ std::int64_t index() {
    return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  }
  static __device__ __forceinline__ std::int64_t count() { return static_cast<std::int64_t>(gridDim.x) * blockDim.x; }
  /// Of the block alone.
  static __device__ __forceinline__ void sync() { __syncthreads(); }
};

template <class Scope>
constexpr bool is_grid = std::is_same_v<Scope, Grid>;
template <class Scope>
constexpr bool is_block_wide = std::is_same_v<Scope, Block> || is_grid<Scope>;

/// The one thread of each warp, block, or block of the grid that acts for it.
template <class Scope>
__device__ __forceinline__ bool leads() {
  if constexpr (is_grid<Scope>) return threadIdx.x == 0;
  return Scope::index() == 0;
}
/// The one that sends the notification: of a block's last warp, which has least to do with short messages.
template <class Scope>
__device__ __forceinline__ bool notifies() {
  if constexpr (is_block_wide<Scope>) return threadIdx.x + 32 == blockDim.x;
  return Scope::index() == 0;
}

// --- both ends of a transfer ----------------------------------------------------------------------------------------

/// Memory of this GPU. Without a layout: contiguous.
struct Local {
  void* address;
  const KernelLayout* layout;
};
__device__ __forceinline__ Local here(const void* address, const KernelLayout* layout = nullptr) {
  return {const_cast<void*>(address), layout};
}

/// A place in the window of a rank's GPU. Without a layout: contiguous.
struct Remote {
  Window window;
  int rank;
  std::int64_t offset;
  const KernelLayout* layout;
};
__device__ __forceinline__ Remote at(const Window& window, int rank, std::int64_t offset,
                                     const KernelLayout* layout = nullptr) {
  return {window, rank, offset, layout};
}

// --- operators of reductions ----------------------------------------------------------------------------------------

struct Sum {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Min {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return b < a ? b : a;
  }
};
struct Max {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a < b ? b : a;
  }
};

// --- windows ---------------------------------------------------------------------------------------------------------

namespace detail {

/// The place of what loads and stores do not reach. Not null: absolute addresses in a datatype count from there.
__device__ __forceinline__ char* nowhere() {
  return reinterpret_cast<char*>(1);
}

/// A GPU's part of a window.
struct Part {
  char* address = nullptr;  ///< for loads and stores; null if it is not reached so
  std::int64_t bytes = 0;
};
__device__ __forceinline__ Part part_of(const KernelWorld& world, const Window& window, int gpu) {
  if (window.parts == nullptr) return {world.reach(window.base, gpu), window.bytes};
  const longlong2 part = __ldg(reinterpret_cast<const longlong2*>(window.parts + gpu));
  const bool far =
      world.proxy.slots != nullptr && gpu != world.gpu && (world.direct == 0 || part.x == KernelWorld::unreachable);
  return {far ? nullptr : window.base + part.x, part.y};
}
/// Bytes of a displacement in MPI's calls.
__device__ __forceinline__ std::int64_t unit_of(const Window& window, int gpu) {
  return window.parts == nullptr ? 1 : __ldg(&window.parts[gpu].unit);
}

}  // namespace detail

// --- what a rank keeps ----------------------------------------------------------------------------------------------

/// A notification whose place in the target's queue has been reserved.
struct Posting {
  std::uint64_t* slot;  ///< in the symmetric memory of the target's GPU
  std::uint64_t word;
};

/// In shared memory, for each block. Nothing of it is for callers.
struct RankState {
  Ticket heads[most_gpus], returned[most_gpus];
  Ticket sent[most_gpus], credit[most_gpus];  ///< one rank for each GPU: tickets taken for each, credit that is known
  std::uint64_t collectives[2];               ///< in which the rank has taken part: of all ranks, of its GPU's
  std::uint64_t grid_puts, grid_waits;        ///< in which the block has taken part
  int grid_complete;                          ///< block 0: all blocks have started
  KnownMove moves[known_moves];               ///< of which places are kept
  unsigned moves_made;                        ///< how many there have been, in all
  Posting posting;                            ///< put with signal: the notification; partitions: a status
  Notification last;
  Taken taken;
};

namespace detail {

using SystemWord = ::cuda::atomic_ref<std::uint64_t, ::cuda::thread_scope_system>;
using DeviceWord = ::cuda::atomic_ref<std::uint64_t, ::cuda::thread_scope_device>;

__device__ __forceinline__ std::uint64_t acquire(std::uint64_t* word) {
  return SystemWord(*word).load(::cuda::memory_order_acquire);
}
__device__ __forceinline__ std::uint64_t relaxed(const std::uint64_t* word) {
  return SystemWord(*const_cast<std::uint64_t*>(word)).load(::cuda::memory_order_relaxed);
}
__device__ __forceinline__ void store_relaxed(std::uint64_t* word, std::uint64_t value) {
  SystemWord(*word).store(value, ::cuda::memory_order_relaxed);
}

// The fences. In the terms of the PTX memory model: what is written before a release (by the thread, or by others
// before a barrier of theirs that the thread has passed, since causality is transitive) happens before whatever follows
// an acquire behind a load that saw the released value. On sm_90 a release is a MEMBAR, which waits until all that was
// written has arrived, and an acquire is an invalidation of the L1 cache, which waits for nothing; a fence of both
// kinds costs both. So each place below uses the half that it needs, and polls with relaxed loads, so that only a poll
// that has found something invalidates the cache, which other blocks of the multiprocessor use.

/// What the thread has written or knows to have been written comes before what it writes next, for all GPUs; what it
/// has read before what it reads next. Lighter than __threadfence_system(), which orders all such fences, too.
__device__ __forceinline__ void fence_all() {
  ::cuda::atomic_thread_fence(::cuda::memory_order_acq_rel, ::cuda::thread_scope_system);
}
/// The same for the threads of this GPU.
__device__ __forceinline__ void fence_gpu() {
  ::cuda::atomic_thread_fence(::cuda::memory_order_acq_rel, ::cuda::thread_scope_device);
}
#if __CUDA_ARCH__ >= 900 && (__CUDACC_VER_MAJOR__ > 12 || (__CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ >= 8))
#define GPUDT_INITIATED_HALF_FENCES 1
#else
#define GPUDT_INITIATED_HALF_FENCES 0
#endif
/// Behind relaxed loads: what was released before the values that they saw is there for what follows.
__device__ __forceinline__ void acquire_fence() {
#if GPUDT_INITIATED_HALF_FENCES
  asm volatile("fence.acquire.sys;" ::: "memory");
#else
  fence_all();
#endif
}
/// Before relaxed stores: whoever sees them and acquires finds what the thread knows to have been written; among the
/// threads of this GPU, or of all.
__device__ __forceinline__ void release_fence(bool this_gpu) {
#if GPUDT_INITIATED_HALF_FENCES
  if (this_gpu)
    asm volatile("fence.release.gpu;" ::: "memory");
  else
    asm volatile("fence.release.sys;" ::: "memory");
#else
  if (this_gpu)
    fence_gpu();
  else
    fence_all();
#endif
}
/// Stores to global memory behind all that the thread knows to have been written: for the threads of this GPU, or all.
__device__ __forceinline__ void store_release(std::uint64_t* word, std::uint64_t value, bool this_gpu) {
  if (this_gpu)
    asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
  else
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
/// One more, modulo 2^32, in a counter of this GPU, in no order with anything; what there was. By atom.inc: for
/// additions the compiler counts the warp's threads first, and waits for the answer at once to tell it to them.
__device__ __forceinline__ Ticket count_up(Ticket* counter) {
  Ticket old;
  asm volatile("atom.relaxed.gpu.global.inc.u32 %0, [%1], 0xFFFFFFFF;" : "=r"(old) : "l"(counter));
  return old;
}
__device__ __forceinline__ void count_up_unseen(Ticket* counter) {
  asm volatile("red.relaxed.gpu.global.inc.u32 [%0], 0xFFFFFFFF;" ::"l"(counter));
}

__device__ __forceinline__ std::uint64_t nanoseconds() {
  std::uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

/// A call, for messages: its name, and those of three of its arguments.
struct Call {
  const char* name;
  const char* argument[3];
  long long value[3];
};

/// Prints what a rank could not do, and why. Ends the kernel, and with it the program.
__device__ void fail(const KernelWorld& world, int rank, Call call, Status status);

/// Says whether a wait may go on; does not return when it has taken too long.
class WaitTimer {
 public:
  __device__ __forceinline__ WaitTimer(const KernelWorld& world, int rank, const Call& call)
      : world_(world), rank_(rank), call_(call) {}
  __device__ __forceinline__ void poll() {
    if ((++polls_ & 1023u) != 0 || world_.timeout_ns == 0) return;
    const std::uint64_t now = nanoseconds();
    if (started_ == 0) started_ = now;
    if (now - started_ > world_.timeout_ns) fail(world_, rank_, call_, Status::timed_out);
  }
  /// Another wait of the same call.
  __device__ __forceinline__ void restart() { started_ = 0; }

 private:
  const KernelWorld& world_;
  int rank_;
  Call call_;
  unsigned polls_ = 0;
  std::uint64_t started_ = 0;
};

/// Global memory, cached as usual. Without fields: those of DeviceMemory() would be loaded from memory first.
struct UsualMemory {
  template <class Word>
  __device__ __forceinline__ Word load(Address from) const {
    Word word = {};
    device::cuda::Access<Word>::load(from, true, false, word);
    return word;
  }
  template <class Word>
  __device__ __forceinline__ void store(Address to, const Word& word) const {
    device::cuda::Access<Word>::store(to, true, false, word);
  }
};

/// What is stored is combined with what is there, as one operation for all GPUs. `T` has 4 or 8 bytes.
template <class T, class Operator>
struct AccumulatingMemory {
  const Operator& with;

  template <class Word>
  __device__ __forceinline__ Word load(Address from) const {
    return UsualMemory().load<Word>(from);
  }
  /// Only whole elements come: see Rank::accumulate.
  template <class Word>
  __device__ __forceinline__ void store(Address to, const Word& word) const {
    if constexpr (sizeof(Word) == sizeof(T)) {
      T given;
      memcpy(&given, &word, sizeof given);
      const ::cuda::atomic_ref<T, ::cuda::thread_scope_system> there(*reinterpret_cast<T*>(to));
      if constexpr (std::is_same_v<Operator, Sum>) {
        there.fetch_add(given, ::cuda::memory_order_relaxed);
      } else {
        T old = there.load(::cuda::memory_order_relaxed);
        while (!there.compare_exchange_weak(old, with(old, given), ::cuda::memory_order_relaxed)) {
        }
      }
    }
  }
};

/// Whether elements have an operator.
__device__ __forceinline__ bool has_op(Element element, Op op) {
  const bool real = element == Element::float32 || element == Element::float64;
  return op >= Op::sum && op <= Op::replace && !(real && op >= Op::bit_and && op <= Op::bit_xor);
}

// --- moving ---------------------------------------------------------------------------------------------------------

// In the library (moves.cu): compiled once, for blocks of up to 1024 threads.

/// Packed bytes [begin, end), by loads and stores: the part of thread `index` of `count`.
__device__ void move_directly(const Sides& sides, std::int64_t begin, std::int64_t end, std::int64_t index,
                              std::int64_t count);
/// The same, each element combined with what is there, at once among all kernels of the World. Whole elements, on
/// both sides, and only operators that they have.
__device__ void combine_directly(const Sides& sides, Element element, Op op, std::int64_t begin, std::int64_t end,
                                 std::int64_t index, std::int64_t count);
/// A move by all threads of a block, whose places are kept from now on: its number among the state's moves, or
/// known_moves if it is none that can be kept. `instead`: the number of one that was for other words, or known_moves.
__device__ int learn_move(const KernelWorld& world, RankState& state, const Sides& sides, std::int64_t begin,
                          std::int64_t end, std::int64_t index, std::int64_t count, int instead);
/// Of a dynamic window's addresses, which are those of their process, the place of `address` here; nowhere() unless one
/// region holds all of [low, high).
__device__ char* place_in(const WindowRegions& regions, std::int64_t address, std::int64_t low, std::int64_t high);
/// Where the block keeps the places of a move.
__device__ __forceinline__ WordPlace* places_of(const KernelWorld& world, int known) {
  return world.places + (static_cast<std::int64_t>(blockIdx.x) * known_moves + known) * known_words;
}
/// The place of the thread's first word. Loaded here and now: the compiler would do so where it is first of use.
__device__ __forceinline__ WordPlace first_place(const WordPlace* places) {
  WordPlace first;
  asm volatile("ld.global.v2.s32 {%0, %1}, [%2];" : "=r"(first.from), "=r"(first.to) : "l"(places + threadIdx.x));
  return first;
}
__device__ __forceinline__ Movers movers_of(std::int64_t index, std::int64_t count) {
  return {index, count, static_cast<std::int32_t>(threadIdx.x), static_cast<std::int32_t>(blockDim.x)};
}

// Of wire_nvshmem.cu or wire_node.cu: for GPUs that loads and stores do not reach.

enum class FarScope : std::int32_t { thread, warp, block, grid };
template <class Scope>
constexpr FarScope far_scope = is_grid<Scope>                 ? FarScope::grid
                               : std::is_same_v<Scope, Block> ? FarScope::block
                               : std::is_same_v<Scope, Warp>  ? FarScope::warp
                                                              : FarScope::thread;
/// Packed bytes [begin, end) of `here` to `there`, or from there, by all threads of a scope, or by each block of a grid
/// its part.
struct FarMove {
  Remote there;
  Local here;
  std::int64_t begin, end;
  int gpu;
  FarScope scope;
  bool with_signal;  ///< put: `posting` goes behind the data; only of a block, to a contiguous target
  Posting posting;
};
__device__ void put_far(const FarMove& put, const KernelWorld& world);
__device__ void get_far(const FarMove& get, const KernelWorld& world);

/// The calling thread's puts are at their targets; its later ones come behind them; a word behind none.
__device__ void complete_puts(const KernelWorld& world);
__device__ void order_puts(const KernelWorld& world);
/// To the symmetric memory that World has.
__device__ void put_word(const KernelWorld& world, std::uint64_t* symmetric, std::uint64_t word, int gpu);
/// To a window.
__device__ void put_word(const KernelWorld& world, const Remote& to, std::uint64_t word, int gpu);
/// What a network adapter has written before a word that the thread has seen is there for its loads.
__device__ void see_puts(const KernelWorld& world, std::uint64_t* symmetric);

/// Where memory of another GPU is for loads and stores; null if it is not reached so.
__device__ __forceinline__ std::uint64_t* reach(const KernelWorld& world, std::uint64_t* symmetric, int gpu) {
  return reinterpret_cast<std::uint64_t*>(world.reach(reinterpret_cast<char*>(symmetric), gpu));
}
__device__ __forceinline__ void send_word(const KernelWorld& world, std::uint64_t* symmetric, std::uint64_t word,
                                          int gpu) {
  std::uint64_t* const there = reach(world, symmetric, gpu);
  if (there != nullptr)
    store_relaxed(there, word);
  else
    put_word(world, symmetric, word, gpu);
}

// --- notifications --------------------------------------------------------------------------------------------------

// In the library, since they are long and not of the usual case:

/// take() by a warp: all that the rings hold.
__device__ Taken take_further(const KernelWorld& world, RankState& state, int local, const Pattern& pattern, int count,
                              Notification& latest);
/// Waits until a ticket for a target, number `index` of the counters, has credit, where `known` is not enough; returns
/// what there is.
__device__ Ticket wait_for_credit(const KernelWorld& world, int rank, std::uint64_t index, Ticket ticket, Ticket known,
                                  const Call& call);
/// Tells a GPU how much a rank has consumed, behind what was read and written in the slots.
__device__ void send_credit(const KernelWorld& world, int local, int gpu, Ticket head);

/// What notifications.hpp asks of memory.
struct QueueAccess {
  const KernelWorld& world;
  int local;  ///< rank of this GPU

  __device__ __forceinline__ std::uint64_t acquire(const std::uint64_t* word) const {
    return detail::acquire(const_cast<std::uint64_t*>(word));
  }
  __device__ __forceinline__ void store(std::uint64_t* word, std::uint64_t value) const { store_relaxed(word, value); }
  /// For the next launch.
  __device__ __forceinline__ void moved(int gpu, Ticket head) const { saved(0)[gpu] = head; }
  /// Behind the marks in the slots, and what was read of them, which the next notifications overwrite.
  __device__ __forceinline__ void return_credit(int gpu, Ticket head) const {
    saved(1)[gpu] = head;
    send_credit(world, local, gpu, head);
  }
  __device__ __forceinline__ Ticket* saved(int which) const {
    return world.heads + static_cast<std::int64_t>(2 * local + which) * world.gpus;
  }
};

__device__ __forceinline__ Inbox inbox_of(const KernelWorld& world, RankState& state, int local) {
  return {world.ring(local, 0), state.heads, state.returned, world.gpus, world.capacity_log, world.ranks};
}

/// A warp, of which each thread looks at one slot.
struct WarpGroup {
  static constexpr bool looks_at_all = true;
  const QueueAccess& access;

  /// Where the thread looks, and for which lap.
  struct Aim {
    const std::uint64_t* slot;  ///< null: nowhere
    std::uint32_t lap;
  };
  /// A chunk of a ring.
  __device__ __forceinline__ Aim aim(const Inbox& inbox, int gpu, Ticket base) const {
    const Ticket ticket = base + threadIdx.x % 32;
    return {inbox.slot(gpu, ticket), lap_of(ticket, inbox.capacity_log)};
  }
  /// `each` threads for the first slots of each ring.
  __device__ __forceinline__ Aim aim_at_all(const Inbox& inbox, int each) const {
    const int lane = static_cast<int>(threadIdx.x % 32), gpu = lane / each;
    const bool somewhere = gpu < inbox.gpus;
    const Ticket ticket = somewhere ? inbox.heads[gpu] + static_cast<Ticket>(lane - gpu * each) : 0;
    return {somewhere ? inbox.slot(gpu, ticket) : nullptr, lap_of(ticket, inbox.capacity_log)};
  }
  /// By relaxed loads: acquire() is to follow.
  __device__ __forceinline__ Look look(const Aim& aim, const RingPattern& pattern) const {
    const std::uint64_t word = aim.slot != nullptr ? relaxed(aim.slot) : 0;
    const bool there = aim.slot != nullptr && lap_in(word) == aim.lap;
    Look seen;
    seen.arrived = __ballot_sync(whole_chunk, there);
    if (seen.arrived == 0) return {0, 0, 0, word, 0};  // most polls
    const bool consumed = there && window_in(word) == consumed_window;
    seen.consumed = __ballot_sync(whole_chunk, consumed);
    seen.matching = __ballot_sync(whole_chunk, there && !consumed && pattern.matches(word));
    seen.word = word;
    seen.first_thread = 0;
    return seen;
  }
  __device__ __forceinline__ Look look(const Inbox& inbox, int gpu, Ticket base, const RingPattern& pattern) const {
    Look seen = look(aim(inbox, gpu, base), pattern);
    seen.cut();
    return seen;
  }
  /// Each thread for what it has seen; the warp's next barrier tells the others.
  __device__ __forceinline__ void acquire() const { acquire_fence(); }
  __device__ __forceinline__ std::uint64_t word(const Inbox&, int, Ticket, int index, const Look& seen) const {
    return __shfl_sync(whole_chunk, seen.word, seen.first_thread + index);
  }
  __device__ __forceinline__ void mark(const Inbox& inbox, int gpu, Ticket base, std::uint32_t consumed) const {
    const Ticket ticket = base + threadIdx.x % 32;
    if ((consumed >> threadIdx.x % 32 & 1) != 0)
      access.store(inbox.slot(gpu, ticket), encode(lap_of(ticket, inbox.capacity_log), consumed_window, 0, 0));
  }
  __device__ __forceinline__ bool leads() const { return threadIdx.x % 32 == 0; }
  __device__ __forceinline__ void sync() const { __syncwarp(); }
  __device__ __forceinline__ void moved(int gpu, Ticket head) const { access.moved(gpu, head); }
  __device__ __forceinline__ void return_credit(int gpu, Ticket head) const { access.return_credit(gpu, head); }
};

}  // namespace detail

}  // namespace gpudt::initiated
