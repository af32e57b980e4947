// Several transfers by one kernel: its arguments and its body, on GPU threads (cuda/batch_kernel.cu) and serially on
// the host, like those of kernel_body.hpp.
//
// A launch costs the processor and the stream two microseconds each, as much as moving 100 KB; the messages of a halo
// are shorter. Each thread block of a batch finds its job by the prefix sums of blocks. Each job has its own
// completion, so that a message can be sent before the others are packed. There is one kernel for all jobs: a job goes
// from one map to another (that of a packed side is contiguous), and a map decides at run time what it is. This needs
// more arithmetic than the specialised kernels, so large jobs for which there is one are not batched.
#pragma once

#include "device/kernels/transfer_body.hpp"

namespace gpudt::device {

// The size of a kernel's parameters. Toolkits before 12.1 allow less (meson.build).
#if !defined(GPUDT_PARAMETER_BYTES)
#define GPUDT_PARAMETER_BYTES 32764
#endif
/// Maximum number of nested strides of a job; deeper nests, and lists, use the point-based traversal.
constexpr int batch_dims = 3;

/// Division of 31 bits; half the size of a Divisor.
struct NarrowDivisor {
  std::uint32_t value = 1, magic = 0, shift = 0;

  NarrowDivisor() = default;
  explicit NarrowDivisor(const Divisor& divisor)
      : value(static_cast<std::uint32_t>(divisor.value)),
        magic(static_cast<std::uint32_t>(divisor.magic)),
        shift(divisor.shift) {}
};

GPUDT_HD std::uint32_t divide(std::uint32_t n, const NarrowDivisor& divisor) {
  return multiply_high(n << 1, divisor.magic) >> divisor.shift;
}

/// locate(), not inlined, because it is long and a batch's kernel calls it in several places.
#if defined(__CUDACC__)
__host__ __device__ __noinline__
#endif
    inline datatype::Place
    locate_out_of_line(datatype::Program program, std::uint32_t root, std::int64_t position) {
  return datatype::locate(program, root, position);
}

/// A contiguous, strided or general form, in 32-bit arithmetic except for addresses.
struct BatchMap {
  using Index = std::uint32_t;
  using Tile = NoTile;
  datatype::ShapeKind kind;
  std::int32_t ndims;
  std::int64_t base;
  std::int32_t unit_shift;
  std::uint32_t begin = 0, end = 0;  ///< contiguous: the positions that exist
  std::uint32_t run_bytes = 0;       ///< strided
  NarrowDivisor inner;               ///< by the size of a run (strided) or of an element (general)
  NarrowDivisor count[batch_dims];   ///< strided: by the counts, except the outermost
  std::int64_t stride[batch_dims] = {};
  datatype::Program program;                            ///< general; the elements' stride is stride[0]
  std::uint32_t program_words = 0, program_number = 0;  ///< as in KernelArgs
  std::uint32_t root = 0;

  explicit BatchMap(const KernelArgs& args)
      : kind(args.shape.kind),
        ndims(args.shape.ndims),
        base(args.shape.offset),
        unit_shift(unit_shift_of(args)),
        begin(static_cast<std::uint32_t>(args.begin)),
        end(static_cast<std::uint32_t>(args.end)),
        run_bytes(static_cast<std::uint32_t>(args.shape.run)),
        inner(args.divide[0]),
        program(args.program),
        program_words(static_cast<std::uint32_t>(std::min<std::int64_t>(args.program_words, UINT32_MAX))),
        program_number(args.program_number),
        root(args.shape.root) {
    for (int d = 0; kind == datatype::ShapeKind::strided && d < ndims; ++d) {
      stride[d] = args.shape.dims[d].stride;
      if (d > 0) count[d] = NarrowDivisor(args.divide[d]);
    }
    if (kind == datatype::ShapeKind::general) stride[0] = args.shape.extent;
  }

  GPUDT_HD Tile whole() const { return {}; }
  GPUDT_HD RunPlace place(Index unit, const Tile&) const {
    if (kind == datatype::ShapeKind::contiguous) {
      const std::int64_t position = static_cast<std::int64_t>(unit) << unit_shift;
      return {base + position, position - begin, end - position};
    }
    Index index = divide(unit, inner);
    const std::int64_t rest = static_cast<std::int64_t>(unit - index * inner.value) << unit_shift;
    if (kind == datatype::ShapeKind::general) {
      const datatype::Place place = locate_out_of_line(program, root, rest);
      return {base + static_cast<std::int64_t>(index) * stride[0] + place.offset, 0, place.length};
    }
    std::int64_t offset = base + rest;
    GPUDT_UNROLL
    for (int d = batch_dims - 1; d > 0; --d) {
      if (d < ndims) {
        const Index outer = divide(index, count[d]);
        offset += static_cast<std::int64_t>(index - outer * count[d].value) * stride[d];
        index = outer;
      }
    }
    return {offset + static_cast<std::int64_t>(index) * stride[0], rest, run_bytes - rest};
  }
};

/// Both sides of a job. If their maps differ only in the offset, a place is computed once.
struct BatchPair : UnlikePair<BatchMap, BatchMap> {
  std::int32_t same;

  explicit BatchPair(const TransferArgs& args) : UnlikePair(args), same(args.alike) {}
  GPUDT_HD PairPlace place(Index unit, const Tile& tile) const {
    if (same == 0) return UnlikePair::place(unit, tile);
    const auto offset = static_cast<Address>(map.place(unit, tile).offset);
    return {from + offset + static_cast<Address>(from_map.base - map.base), to + offset};
  }
};

/// One transfer of a batch: positions [begin, end).
struct BatchJob {
  BatchPair pair;
  std::uint32_t begin, end;
  std::int32_t word;  ///< bytes per access; 0: pieces of runs of any length and alignment
  Completion completion;

  explicit BatchJob(const TransferArgs& args)
      : pair(args),
        begin(static_cast<std::uint32_t>(args.to.begin)),
        end(static_cast<std::uint32_t>(args.to.end)),
        word(args.to.method == Method::words ? args.to.word : 0),
        completion(args.to.completion) {}
};

/// Maximum number of jobs of one launch.
constexpr int batch_jobs =
    std::min(32, static_cast<int>((GPUDT_PARAMETER_BYTES - 64) / (sizeof(BatchJob) + sizeof(std::uint32_t))));

/// The arguments of the kernel, in constant memory, with room for `most` jobs. All but `job` are the same whatever the
/// room, so that a BatchOf<n> is the beginning of a BatchOf<more>.
template <int most>
struct BatchOf {
  static constexpr int most_jobs = most;
  Completion completion;  ///< of all jobs together; a job's own has no flag then
  std::int32_t jobs;
  std::uint32_t first_block[batch_jobs + 1] = {};  ///< of each job; the last entry is the number of all blocks
  union {                                          // not initialised beyond `jobs`
    BatchJob job[most];
  };

  BatchOf() : jobs(0) {}  // with a union, there is none by default
};

/// The beginning of a BatchArgs, for a kernel that takes few jobs: a launch copies all parameters, here 3 KB instead
/// of 11.
using FewJobs = BatchOf<std::min(8, batch_jobs)>;

struct BatchArgs : BatchOf<batch_jobs> {
  /// Adds a job for `blocks` thread blocks of block_threads threads. There must be room.
  void add(const BatchJob& added, int blocks, const Completion& its_completion) {
    job[jobs] = added;
    job[jobs].completion = its_completion;
    first_block[jobs + 1] = first_block[jobs] + static_cast<std::uint32_t>(blocks);
    ++jobs;
  }
};
static_assert(std::is_trivially_copyable_v<BatchArgs> && sizeof(BatchArgs) <= GPUDT_PARAMETER_BYTES);

/// The job of a thread block.
template <class Jobs>
GPUDT_HD int batch_job_of(const Jobs& batch, std::uint32_t block) {
  int low = 0, high = batch.jobs;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (batch.first_block[middle] <= block)
      low = middle;
    else
      high = middle;
  }
  return low;
}

}  // namespace gpudt::device
