// What a pack or unpack kernel is told: plain data, the same for the GPU and the simulated device.
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

/// How the bytes are moved. The packed stream is divided among the threads rather than the index lists, so that runs of
/// unlike length keep all threads busy; where the longest run is not much longer than the others, a list may be
/// divided.
enum class Method : std::int32_t {
  words,    ///< both sides in words of `word` bytes: no word straddles a run or is misaligned
  gather,   ///< packed side in aligned 16-byte words, each put together from pieces of runs (unpack: taken apart)
  runs,     ///< short runs of odd length: a warp moves 32 whole runs at a time through shared memory
  entries,  ///< irregular lists without long runs: a few threads move each run in words, so that nothing is searched
};

/// How a kernel tells that all it has written is visible to the host and to every later reader.
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
  std::uint32_t program_number = 0;  ///< another one for each program, never 0 if program_words is not
  /// general: the program's nodes once more, at a host address that holds until the launch returns, so that they can
  /// travel in the kernel's parameters if they are few. May be null.
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
  /// entries: those of the list, counted through its repetitions, that hold positions begin .. end-1, and the threads
  /// that move each (2 to this power).
  std::int64_t first_entry = 0, last_entry = 0;
  std::int32_t entry_threads_log = 0;
  /// Irregular lists: rounds that a thread block takes one after the other before the other blocks' follow.
  std::int32_t consecutive_rounds = 1;
  /// 1: the data exceed the caches, so use streaming (evict-first) loads / stores. Not used by layout-to-layout
  /// transfers.
  std::int32_t streaming_loads = 0, streaming_stores = 0;
  std::int32_t single = 0;       ///< words: a thread for each word, which moves no other
  std::int32_t flag_behind = 0;  ///< 1: the flag is set by a further operation of the stream; `completion` has none
  Completion completion;
};

/// A transfer from one layout to another: packed bytes [0, to.end) of `from` become those of `to`. `to` says what is
/// the launch's too (method, word, grid, flag, ...); of `from`, the map and the user's address count. Methods: words;
/// runs, where both sides have runs of one length, each moved by a thread; gather, by 16 packed bytes at a time.
struct TransferArgs {
  KernelArgs from, to;
  /// Both sides have the same map but for its offset: a place that is computed once serves both.
  std::int32_t alike = 0;
};

/// What the chooser of launches knows besides the message itself.
struct PlanHints {
  int multiprocessors = 1;
  bool packed_is_host = false;  ///< the packed side is reached over the host link: few thread blocks suffice
  const std::int64_t* lookaside = nullptr;  ///< the layout's lookaside buffer on the host; null if not at hand
  bool packed_is_peer = false;              ///< the packed side is, or may be, another GPU's memory
  const LaunchPolicy* policy = &launch_policy();
};

/// Bytes per run, on average; for general types not known, and taken to be as short as the alignment says.
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

/// Whether the two forms may be alike, but for their offsets; lists and general ones are if their programs are the same
/// besides.
bool alike_forms(const datatype::Shape& from, const datatype::Shape& to);

/// The same for the first `bytes` packed bytes (at least 1) of two messages, of which none is contiguous. alike: of
/// both the form and the program. hints.packed_is_peer: one of the two is.
TransferArgs plan_transfer(const PlanSide& from, const PlanSide& to, bool alike, std::int64_t bytes,
                           const PlanHints& hints);

/// A side of a transfer that a kernel starts itself (initiated/): its places are found by bytes, whatever the addresses
/// and the word will be. `narrow`: with 32-bit arithmetic, which takes shape.total < 2^31 - 64. The shape is taken as
/// it is.
KernelArgs plan_bytes(const datatype::Shape& shape, bool narrow);

/// A side of a job of a batch (batch_body.hpp) as its kernel takes it: forms of few nested strides as they are, others
/// by the point-based traversal.
datatype::Shape batch_shape(const datatype::Shape& shape);

/// Whether a batch can take a job of positions [begin, end) of `shape` on one side.
bool suits_batch(const datatype::Shape& shape, std::int64_t begin, std::int64_t end,
                 const LaunchPolicy& policy = launch_policy());

constexpr std::int64_t piece_bytes = 16, widest_word = 16;
/// Longer jobs are none of the persistent kernel's (resident_body.hpp).
constexpr std::int64_t most_resident_bytes(const LaunchPolicy& policy) {
  return policy.persistent.most_words * widest_word;
}

/// Whether a job of `bytes` bytes from one side to the other is one of the persistent kernel's. Both sides
/// suit_batch().
bool suits_resident(const PlanSide& from, const PlanSide& to, std::int64_t bytes,
                    const LaunchPolicy& policy = launch_policy());

/// A job of a batch that moves positions [begin, end) from one side to the other; both suit_batch(). The packed side is
/// a contiguous one, whose address is where position 0 would lie. Fills everything but the programs and the completion;
/// to.grid is the number of thread blocks.
TransferArgs plan_batch_job(const PlanSide& from, const PlanSide& to, std::int64_t begin, std::int64_t end,
                            const PlanHints& hints);

}  // namespace gpudt::device
