// Pack and unpack kernels as a good CUDA programmer would write them by hand, one for each kind of layout: what
// gpudt's kernels are measured against. Needs CUDA (compiled only then).
#pragma once

#include <driver_types.h>

#include <cstdint>

namespace gpudt::bench {

struct HandDim {
  std::int64_t count;
  std::int64_t stride;  ///< bytes
};

/// The layout of a message, all sizes in bytes.
struct HandLayout {
  enum class Kind {
    strided,  ///< runs of `run` bytes under `ndims` nested strides; ndims == 0: contiguous
    list,     ///< `count` runs at `offsets`, of `run` bytes each or, with `prefix`, of any lengths
    records,  ///< `count` structures { double; int[2]; char }, `stride` bytes apart: 17 bytes of each
  };
  static constexpr int max_dims = 3;

  Kind kind = Kind::strided;
  std::int64_t offset = 0;  ///< from the user's address to the first run or record; lists: added to the offsets
  std::int64_t run = 0;
  int ndims = 0;
  HandDim dims[max_dims] = {};  ///< outermost first
  std::int64_t count = 0;
  std::int64_t stride = 0;
  std::int64_t align = 4;                 ///< lists: a power of two that divides all offsets and lengths, at least 4
  const std::int64_t* offsets = nullptr;  ///< device memory, `count` of them
  const std::int64_t* prefix = nullptr;   ///< device memory, count + 1 packed offsets from 0; null: equal runs
};

/// How a kernel says that it is done: when all its writes are visible to the host, it sets *flag to `value`.
struct HandCompletion {
  volatile unsigned* flag = nullptr;  ///< mapped host memory; null: no flag, the stream tells
  unsigned value = 0;
  unsigned* counter = nullptr;  ///< device memory, zero before the first launch; one per stream
};

/// Queues a kernel that packs the `bytes` bytes of the message at `user` (device memory) to `packed` (device memory,
/// or mapped host memory if `packed_is_host`), which is 16-byte aligned. Returns false, with nothing queued, where
/// there is no kernel for the layout: addresses or run lengths that are not multiples of 4 bytes (records: `user` and
/// `stride` not multiples of 8), or 2^31 words and more. Throws std::runtime_error if the launch fails.
bool by_hand_pack(const HandLayout& layout, const void* user, void* packed, std::int64_t bytes, bool packed_is_host,
                  cudaStream_t stream, const HandCompletion& completion);

/// The inverse.
bool by_hand_unpack(const HandLayout& layout, void* user, const void* packed, std::int64_t bytes, bool packed_is_host,
                    cudaStream_t stream, const HandCompletion& completion);

}  // namespace gpudt::bench
