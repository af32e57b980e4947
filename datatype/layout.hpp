// The layout of an MPI datatype: where each byte of its packed form lies.
//
// A Layout is immutable and position-independent. It is made once per datatype (decode -> normalise ->
// serialise), and the same serialised bytes drive the host reference, the GPU kernels and, in another process,
// a peer's kernels. See Jenkins et al., section 3.1: fixed-length parameters in preorder (Node), variable-length
// ones in the lookaside buffer with prefix sums.
//
// All sizes, strides and offsets are in bytes and 64-bit; offsets are relative to the buffer address that the
// user gives to MPI (they may be negative, or absolute addresses with MPI_BOTTOM).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.hpp"
#include "datatype/traverse.hpp"

namespace gpudt::datatype {

/// The form in which a message (count elements of a datatype) is given to a kernel. Ordered by cost.
enum class ShapeKind : std::int32_t {
  empty,       ///< no bytes
  contiguous,  ///< `total` bytes at `offset`
  strided,     ///< `ndims` nested strides around runs of `run` bytes
  list,        ///< `ndims` nested strides around an index list of runs
  general,     ///< anything else: the point-based traversal (traverse.hpp)
};

const char* shape_kind_name(ShapeKind kind);

/// Nested strides a Shape can hold besides the run itself. A deeper nest becomes a list or general.
inline constexpr int max_dims = 7;

struct Dim {
  std::int64_t count;
  std::int64_t stride;
};

/// A message's form. Plain data: it is copied into kernel arguments.
struct Shape {
  ShapeKind kind = ShapeKind::empty;
  std::int32_t ndims = 0;
  std::int64_t total = 0;   ///< packed bytes of the whole message
  std::int64_t offset = 0;  ///< from the user's address to where the dims begin; list displacements do not include it
  std::int64_t run = 0;     ///< strided: bytes per run. list: bytes per run if regular, else 0
  /// Largest power of two, at most 16, that divides offset, every run length, stride and displacement: with a
  /// user address and a packed address that it divides too, words of this many bytes never straddle a run.
  std::int32_t align = 1;
  std::uint32_t root = 0;   ///< general: index of the node that describes one element
  Dim dims[max_dims] = {};  ///< outermost first; the message's count is folded in
  // list: one traversal of the list packs list_size bytes from list_count runs.
  std::int64_t list_count = 0;
  std::int64_t list_size = 0;
  std::int64_t list_displs = 0;   ///< index into the lookaside buffer of list_count displacements
  std::int64_t list_prefix = 0;   ///< irregular only: index of list_count + 1 packed offsets, from 0 to list_size
  std::int64_t list_longest = 0;  ///< bytes of the longest run
  // general: `count` elements, `extent` bytes apart; byte `pos` of an element lies at `offset` + locate(program, root,
  // pos) from the element's address. root, offset, count and extent mean the same in every kind but empty.
  std::int64_t count = 0;
  std::int64_t extent = 0;
};

/// The start of a serialised layout. Node 0, the root, follows directly; the lookaside buffer follows the nodes.
struct SerialisedHeader {
  std::uint32_t magic = 0x54445047;  ///< "GPDT"
  std::uint32_t version = 1;
  std::int64_t node_count = 0;
  std::int64_t lookaside_words = 0;
  std::int64_t size = 0;  ///< packed bytes of one element
};

/// The program in serialised bytes that this process can read. They must be 16-byte aligned.
Program program_of(const void* serialised);

/// The program in a copy of a serialised layout, which this process need not be able to read. `node_count`: from the
/// header of the original.
Program program_at(const void* copy, std::int64_t node_count);

/// At most the limits of the type.
inline std::int64_t saturated_product(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  if (!__builtin_mul_overflow(a, b, &product)) return product;
  return (a < 0) == (b < 0) ? std::numeric_limits<std::int64_t>::max() : std::numeric_limits<std::int64_t>::min();
}

inline std::int64_t saturated_sum(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  if (!__builtin_add_overflow(a, b, &sum)) return sum;
  return a < 0 ? std::numeric_limits<std::int64_t>::min() : std::numeric_limits<std::int64_t>::max();
}

/// Bytes of a buffer, relative to the address that the user gives to MPI.
struct Span {
  std::int64_t begin = 0, end = 0;

  std::int64_t bytes() const { return end - begin; }
};

/// Data that another layer keeps with a layout (the device's copy of the serialised form).
class Attachment {
 public:
  virtual ~Attachment() = default;
};

class Layout {
 public:
  std::int64_t size() const { return size_; }        ///< packed bytes of one element
  std::int64_t lb() const { return lb_; }            ///< MPI lower bound
  std::int64_t extent() const { return extent_; }    ///< MPI extent
  std::int64_t true_lb() const { return true_lb_; }  ///< first byte touched
  std::int64_t true_ub() const { return true_ub_; }  ///< one past the last byte touched
  int depth() const { return depth_; }               ///< nodes on the longest path, after normalisation
  std::int64_t runs() const { return runs_; }        ///< contiguous runs in one element

  /// The form of `count` elements. No allocation; a few dozen instructions.
  Shape shape(std::int64_t count) const;

  /// Whether shape(count).kind is ShapeKind::contiguous, in less time.
  bool is_contiguous(std::int64_t count) const {
    return element_.kind == ShapeKind::contiguous && (count == 1 || extent_ == size_) && count != 0 && size_ != 0;
  }

  /// From the first byte that `count` elements touch to the last; at most to the limits of std::int64_t.
  Span span(std::int64_t count) const {
    const std::int64_t last = saturated_product(count - 1, extent_);
    return {saturated_sum(true_lb_, std::min<std::int64_t>(0, last)),
            saturated_sum(true_ub_, std::max<std::int64_t>(0, last))};
  }

  /// Header, nodes and lookaside buffer in one block, 16-byte aligned.
  std::span<const std::byte> serialised() const;
  Program program() const;

  /// All of the layout but its attachments, for another process of the same build and machine type.
  std::vector<std::byte> to_bytes() const;
  std::size_t bytes() const;  ///< the size of to_bytes()
  /// The layout that to_bytes() made `bytes` of; nullptr if they are no layout. Throws std::bad_alloc.
  static std::shared_ptr<const Layout> from_bytes(std::span<const std::byte> bytes);

  /// One line for traces: "strided 3-D 64x64x8 B".
  std::string describe() const;

  /// The attachment in `slot` (0 <= slot < attachment_slots), made by `make` on first use. Thread-safe; lives as
  /// long as the layout.
  static constexpr int gpu_slots = 64;  ///< the first ones: one for each GPU
  static constexpr int attachment_slots =
      gpu_slots + 1;  ///< the last one: where the runs lie (device/memory/division.cpp)
  template <class Make>
  Attachment& attachment(int slot, Make&& make) const {
    const LockGuard lock(attachments_mutex_);
    if (attachments_.empty()) attachments_.resize(attachment_slots);
    auto& entry = attachments_[static_cast<std::size_t>(slot)];
    if (!entry) entry = make();
    return *entry;
  }

 private:
  friend class Serialiser;
  std::int64_t size_ = 0, lb_ = 0, extent_ = 0, true_lb_ = 0, true_ub_ = 0, runs_ = 0;
  int depth_ = 0;
  std::uint64_t mask_ = 0;  ///< bitwise or of all offsets, run lengths and strides of one element
  Shape element_;           ///< the form of one element
  std::vector<std::int64_t> words_;
  mutable Mutex attachments_mutex_;
  mutable std::vector<std::unique_ptr<Attachment>> attachments_ GUARDED_BY(attachments_mutex_);
};

using LayoutRef = std::shared_ptr<const Layout>;

}  // namespace gpudt::datatype
