// The arguments of a pack or unpack kernel: plain data, the same for the GPU and the simulated device.
//
// KernelArgs is the whole description; a kernel receives only the part that its family needs (kernel_body.hpp).
#pragma once

#include <cstdint>

#include "datatype/layout.hpp"
#include "device/kernels/launch_policy.hpp"

namespace gpudt::device {

/// Division by a constant as a multiplication (kernel_body.hpp: make_divisor, divide).
struct Divisor {
  std::uint64_t value = 1;
  std::uint64_t magic = 0;
  std::uint32_t shift = 0;
};

/// How the bytes are moved. The packed stream is divided among the threads, not the index lists, so that runs of
/// different length keep all threads busy. A list may be divided if its longest run is not much longer than the others.
enum class Method : std::int32_t {
  words,    ///< both sides in words of `word` bytes: no word straddles a run or is misaligned
  gather,   ///< packed side in aligned 16-byte words, each put together from pieces of runs (unpack: taken apart)
  runs,     ///< short runs of odd length: a warp moves 32 whole runs at a time through shared memory
  entries,  ///< irregular lists without long runs: a few threads move each run in words, so that nothing is searched
};

/// How a kernel reports that all its writes are visible to the host and to later readers.
struct Completion {
  /// Device memory, zero before and after the launch; launches that share it must follow each other on one stream.
  /// Not used (may be null) by a single thread block, or when flag is null.
  unsigned* counter = nullptr;
  volatile std::uint32_t* flag = nullptr;  ///< mapped host memory; null: no flag wanted
  std::uint32_t flag_value = 0;
};

struct KernelArgs {
  datatype::Shape shape;
  datatype::Program program;       ///< device addresses of the serialised layout; null unless list or general
  std::int64_t program_words = 0;  ///< of 8 bytes: the nodes and the lookaside buffer, one behind the other; 0: unknown
  std::uint32_t program_number = 0;  ///< differs for each program; not 0 if program_words is not 0
  /// general: the program's nodes at a host address that is valid until the launch returns. If they are few, they
  /// travel in the kernel's parameters. May be null.
  const datatype::Node* nodes = nullptr;
  std::int64_t node_count = 0;
  /// Divisors, in words for Method::words, else in bytes. [0]: size of the innermost repeated item (strided: a run;
  /// list: one pass over the list; general: an element). [1 .. ndims-1] the *count* of that dim; [max_dims] a regular
  /// list's run, or for Method::entries the count of the list.
  Divisor divide[datatype::max_dims + 1];
  char* user = nullptr;    ///< the user's address; only addresses of runs are meaningful (MPI_BOTTOM: null)
  char* packed = nullptr;  ///< where packed byte `begin` goes to or comes from
  std::int64_t begin = 0, end = 0;
  std::int32_t unpack = 0;
  Method method = Method::words;
  std::int32_t word = 1;    ///< bytes per access: words: of both sides; runs: of the user's side; gather: 16
  std::int32_t narrow = 1;  ///< all positions fit 31 bits: 32-bit arithmetic and narrow divisors
  std::int32_t grid = 1, block = 32;
  /// entries: the list entries, counted through the list's repetitions, that hold positions begin .. end-1, and the
  /// binary logarithm of the number of threads that move each.
  std::int64_t first_entry = 0, last_entry = 0;
  std::int32_t entry_threads_log = 0;
  /// Irregular lists: number of consecutive rounds that belong to one thread block.
  std::int32_t consecutive_rounds = 1;
  /// 1: the data exceed the caches, so use streaming (evict-first) loads / stores. Not used by layout-to-layout
  /// transfers.
  std::int32_t streaming_loads = 0, streaming_stores = 0;
  std::int32_t single = 0;       ///< words: a thread for each word, which moves no other
  std::int32_t flag_behind = 0;  ///< 1: the flag is set by a further operation of the stream; `completion` has none
  Completion completion;
};

/// A transfer from one layout to another: packed bytes [0, to.end) of `from` become those of `to`. `to` also has the
/// properties of the launch (method, word, grid, flag, ...); of `from` only the map and the user's address are used.
/// Methods: words; runs, if both sides have runs of one length (a thread moves one run); gather, 16 packed bytes at a
/// time.
struct TransferArgs {
  KernelArgs from, to;
  /// The maps of both sides differ only in their offset: a place is computed once for both.
  std::int32_t alike = 0;
};

/// What is known for the choice of a launch besides the message itself.
struct PlanHints {
  int multiprocessors = 1;
  bool packed_is_host = false;  ///< the packed side is reached over the host link: few thread blocks are enough
  const std::int64_t* lookaside = nullptr;  ///< the layout's lookaside buffer on the host; null if unknown
  bool packed_is_peer = false;              ///< the packed side is, or may be, another GPU's memory
  const LaunchPolicy* policy = &launch_policy();
};

/// Average number of bytes in a run. For general types it is unknown, and the alignment is used instead.
std::int64_t typical_run(const datatype::Shape& shape);

/// Fills everything but program, nodes, node_count and completion. Pure and cheap (no allocation).
/// `user` and `packed` are addresses as the kernel will see them; 0 <= begin < end <= shape.total. The shape, begin and
/// end of a contiguous message may come back rebased; they describe the same bytes.
KernelArgs plan(const datatype::Shape& shape, bool unpack, void* user, void* packed, std::int64_t begin,
                std::int64_t end, const PlanHints& hints);

/// One side of a transfer.
struct PlanSide {
  const datatype::Shape& shape;
  void* user;
};

/// Whether the two forms may be equal except for their offsets; lists and general forms are if their programs are equal
/// too.
bool alike_forms(const datatype::Shape& from, const datatype::Shape& to);

/// Plans a kernel that moves the first `bytes` packed bytes (at least 1) between two messages, neither contiguous.
/// `alike`: their forms and programs are equal. hints.packed_is_peer: one of them may be in another GPU's memory.
TransferArgs plan_transfer(const PlanSide& from, const PlanSide& to, bool alike, std::int64_t bytes,
                           const PlanHints& hints);

/// A side of a transfer that a kernel starts itself (initiated/). Its places are found by bytes, since addresses and
/// word are not known yet. `narrow`: 32-bit arithmetic, which requires shape.total < 2^31 - 64.
KernelArgs plan_bytes(const datatype::Shape& shape, bool narrow);

/// The form in which the kernel of batches (batch_body.hpp) computes the places of a side of this shape: few nested
/// strides directly, all else by the point-based traversal (general).
datatype::ShapeKind batch_kind(const datatype::Shape& shape);

/// Whether a batch can take a job of positions [begin, end) of `shape` on one side.
bool suits_batch(const datatype::Shape& shape, std::int64_t begin, std::int64_t end,
                 const LaunchPolicy& policy = launch_policy());

constexpr std::int64_t piece_bytes = 16, widest_word = 16;
/// Thread blocks of the persistent kernel (resident_body.hpp).
constexpr int resident_blocks = 8;
/// How many of its thread blocks the persistent kernel should use for a job of `bytes` bytes from one side to the
/// other, which both suit_batch(): one or all. 0 if the job is too long for it.
int resident_blocks_for(const PlanSide& from, const PlanSide& to, std::int64_t bytes,
                        const LaunchPolicy& policy = launch_policy());

/// A job of a batch that moves positions [begin, end) from one side to the other; both suit_batch(). The packed side is
/// a contiguous one, whose address is where position 0 would lie. Fills everything but the programs and the completion;
/// to.grid is the number of thread blocks.
TransferArgs plan_batch_job(const PlanSide& from, const PlanSide& to, std::int64_t begin, std::int64_t end,
                            const PlanHints& hints);

}  // namespace gpudt::device
