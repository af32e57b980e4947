// Starts transfers and kernels, by the process's engine. Failures are thrown as Error.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "datatype/layout.hpp"
#include "device/kernels/copy_blocks.hpp"
#include "device/kernels/reduction.hpp"
#include "device/memory/in_time.hpp"
#include "device/runtime/location.hpp"
#include "device/transfer/stream_mark.hpp"
#include "device/transfer/transfer.hpp"

namespace gpudt::device {

/// Hint that the calling thread is about to wait, for other processes or for the GPU: the persistent kernel may be
/// launched now (about 5 us). Send pending messages first.
void about_to_wait(WaitKind kind) noexcept;
/// Ends waits of WaitKind::enqueued.
void no_more_enqueued() noexcept;

/// Call when another process uses the GPU, too: then this process launches no persistent kernel there and avoids copies
/// that run in the GPU's time slices as kernels do. `yields`: the other process launches the kernels for both, so this
/// one prefers the copy engine for a while.
void shared_with_others(int ordinal, bool yields) noexcept;

/// Starts moving packed bytes [begin, end) of `count` elements of `layout` at `user` to or from `packed`, whose first
/// byte is byte `begin` of the packed data. `user` is memory of GPU `ordinal` (the address the program gave to MPI,
/// possibly MPI_BOTTOM); `packed` is any memory that GPU can reach, of kind `packed_kind`: staging, pinned, device or
/// managed memory. The layout's device copy is kept with the layout: the caller keeps a LayoutRef until the transfer is
/// done. Data packed for the host are complete when done() has returned true; the caller of done() may do part of the
/// packing, so `packed` must stay valid until then. An empty range is done at once. Transfers run concurrently; a
/// transfer that depends on another must be started after that one is done(). Short transfers may be queued while the
/// GPU is busy and launched by the next poll (see Gathering). A transfer whose mark has not been reached is launched by
/// the first poll after it is. Thread-safe.
Transfer start(Direction direction, int ordinal, const datatype::Layout& layout, std::int64_t count, void* user,
               std::int64_t begin, std::int64_t end, void* packed, MemoryKind packed_kind,
               const StreamMark& after = {});

/// Starts a contiguous copy between any two kinds of memory, of which at least one belongs to GPU `ordinal`. Pageable
/// memory may make it block. `after` as for start().
Transfer copy(int ordinal, void* to, const void* from, std::size_t bytes, const StreamMark& after = {});

// --- without staging, and reductions ---------------------------------------------------------------------------------

/// Starts moving bytes [begin, end) of the packed stream of `from` to where they lie in `to`, without packing them in
/// between: one kernel, or one copy if both are contiguous and large. The range ends with the shorter side; elements
/// may be moved in part, and the types may have nothing but the bytes in common. If `from` is not contiguous, `begin`
/// must be 0. Runs on GPU `ordinal`, which must reach both sides' memory. Both layouts must live until it is done.
/// `after` as for start(). `within`: both sides are memory of that GPU; it does not queue behind data of other GPUs.
/// `kept` is empty or of an earlier transfer, and becomes the plan of this one, unless it is that. Thread-safe.
Transfer transfer(int ordinal, const Side& from, const Side& to, std::int64_t begin, std::int64_t end,
                  const StreamMark& after = {}, bool within = false, KeptPlan* kept = nullptr);

/// The GPU that is to copy memory of the GPU with the UUID `owner` to the host: that one if this process has
/// a context there, else another with one; negative if there is none. Thread-safe.
int gpu_to_host(const std::array<unsigned char, 16>& owner) noexcept;
/// Whether the first `bytes` bytes of `side` lie in pinned host memory of one piece, which GPU `ordinal` may write to.
/// Thread-safe. Throws Error.
bool is_pinned(int ordinal, const Side& side, std::int64_t bytes);
/// Whether copy_to_host() moves that many bytes, and at the speed of the link. It need not be known where `from` lies.
bool copies_to_host(int ordinal, const Side& from, const Side& to, std::int64_t bytes);
/// transfer() to pinned host memory by the copy engine alone, so that it does not wait for room on GPU `ordinal`.
/// Empty, with nothing under way, if the runtime refuses, or if what it takes cannot be had without waiting for
/// launches. Thread-safe. Throws Error.
Transfer copy_to_host(int ordinal, const Side& from, const Side& to, std::int64_t begin, std::int64_t end);

/// Plans transfers between memory that GPU `ordinal` reaches, which kernels are to make together, again and again. Null
/// if one is longer than Gathering::long_bytes, its sides differ in length, or a layout is not on the GPU yet. The
/// layouts must live as long as it is used. Thread-safe. Throws Error.
std::shared_ptr<PreparedTransfers> prepare(int ordinal, std::span<const SidePair> transfers);
/// Adds what it starts to `started`. False if the GPU's context has been replaced since prepare(). Thread-safe. Throws
/// Error.
bool start(PreparedTransfers& prepared, std::vector<Transfer>& started);

/// Starts a reduction by one kernel of GPU `ordinal`, which must reach all of the memory; each address is a multiple of
/// element_alignment(). Thread-safe. Throws Error.
Transfer reduce(int ordinal, const Reduction& reduction);

/// Starts copies of the same bytes to 1 to Reduction::most_ranks destinations, by one kernel of GPU `ordinal`, which
/// reads them once and must reach all of the memory. No destination may overlap the source or another one. Slow unless
/// all addresses are multiples of 16. Thread-safe. Throws Error.
Transfer copy_to_all(int ordinal, const void* from, std::span<void* const> to, std::int64_t bytes);

/// Starts copies by one kernel of GPU `ordinal`, which must reach all of the memory. No destination may overlap a
/// source or another destination. Thread-safe. Throws Error.
Transfer copy_blocks(int ordinal, std::span<const BlockCopy> copies);

/// Whether a peer GPU gets the data faster if they are packed on GPU `ordinal` first instead of being read in place.
bool better_fetched_packed(int ordinal, const datatype::Layout& layout, std::int64_t count);

/// Estimated microseconds to pack `count` elements on GPU `ordinal` into its own memory.
double expected_packing_us(int ordinal, const datatype::Layout& layout, std::int64_t count);

// --- layouts on the GPU ----------------------------------------------------------------------------------------------

namespace detail {
extern std::atomic<bool> streams_used;  ///< prepare_for_streams()
/// False if the layout cannot be on the GPU within `time`.
bool upload(int ordinal, const datatype::Layout& layout, std::chrono::milliseconds time) noexcept;
}  // namespace detail

/// For calls of programs that enqueue operations: uploads the layout to the GPU, if kernels read layouts of that kind.
/// False if there is no memory for it, for which this waits for seconds.
inline bool prepare_layout(int ordinal, const datatype::Layout& layout) noexcept {
  return !detail::streams_used.load(std::memory_order_relaxed) || is_ordered_by_stream() ||
         detail::upload(ordinal, layout, long_time);
}
/// The same for transfers of such programs, which go another way if the layout cannot be there in time. True in other
/// programs, where the first transfer uploads it.
inline bool prepare_beside_streams(int ordinal, const datatype::Layout& layout) noexcept {
  return !detail::streams_used.load(std::memory_order_relaxed) || detail::upload(ordinal, layout, short_time);
}

}  // namespace gpudt::device
