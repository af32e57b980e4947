// The data layouts that the measuring programs send and pack: those of Jenkins et al., section 4.1, the three faces
// of a 3-D block, and nested vectors. Each is given twice, as an MPI datatype and as a plain description of its
// blocks, written down separately: the description is what the results are verified against.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace gpudt::bench {

struct StridedDim {
  std::int64_t count;
  std::int64_t stride;  ///< bytes
};

/// Blocks of `run` bytes under nested strides, outermost first, the first block at `offset`.
struct StridedBlocks {
  std::int64_t offset = 0;
  std::int64_t run = 0;
  std::vector<StridedDim> dims;
};

/// Blocks at any offsets; `lengths` has one entry per block.
struct ListedBlocks {
  std::vector<std::int64_t> offsets;
  std::vector<std::int64_t> lengths;
  bool regular = false;  ///< all lengths are equal
};

/// Structures of three members (8, 8 and 1 bytes), `stride` bytes apart: 17 of 24 bytes are data, in one piece.
struct StructBlocks {
  std::int64_t count = 0;
  std::int64_t stride = 0;
  std::int64_t length = 0;
};

using Blocks = std::variant<StridedBlocks, ListedBlocks, StructBlocks>;

/// One message: a layout at one size. Owns its committed MPI datatype. No byte lies in two blocks, and offsets never
/// fall where span() or the checks of pattern.hpp are used.
class Message {
 public:
  Message(MPI_Datatype type, bool owned, int count, Blocks blocks);
  Message(Message&& other) noexcept;
  Message& operator=(Message&&) = delete;
  ~Message();

  MPI_Datatype type() const { return type_; }
  int count() const { return count_; }
  std::int64_t size() const { return size_; }  ///< packed bytes
  std::int64_t span() const { return span_; }  ///< bytes from the buffer's address to the last one
  std::int64_t block_count() const { return block_count_; }
  const Blocks& blocks() const { return blocks_; }

  /// Calls visit(offset, length) for each block in the order of the packed stream.
  template <class Visit>
  void for_each_block(Visit&& visit) const;

 private:
  MPI_Datatype type_;
  bool owned_;
  int count_;
  std::int64_t size_ = 0, span_ = 0, block_count_ = 0;
  Blocks blocks_;
};

/// A box of doubles that starts at `start` inside an array of `sizes` in C order, slowest dimension first: a subarray
/// type. The three have the same length.
Message make_box(std::span<const int> sizes, std::span<const int> box, std::span<const int> start);

/// A layout by name, e.g. "face_yz" or "vector:32" (the number is the bytes of a block).
class LayoutFamily {
 public:
  /// Throws std::invalid_argument, saying which names there are.
  explicit LayoutFamily(const std::string& name);
  const std::string& name() const { return name_; }

  /// The message nearest to `bytes` from below, in whole blocks, and at least one.
  /// Throws std::invalid_argument where the layout does not reach so far (subarray: 64^4 doubles).
  Message message(std::int64_t bytes) const;

 private:
  std::string name_;
  Message (*make_)(std::int64_t bytes, std::int64_t block) = nullptr;
  std::int64_t block_ = 0;
};

/// The names that stand for "all", in the order in which they are shown.
const std::vector<std::string>& default_layouts();

/// One line for each family, for --help.
std::string layout_help();

namespace detail {

template <class Visit>
void visit_strided(const StridedBlocks& blocks, std::size_t dim, std::int64_t offset, Visit& visit) {
  if (dim == blocks.dims.size()) {
    visit(offset, blocks.run);
    return;
  }
  for (std::int64_t i = 0; i < blocks.dims[dim].count; ++i) {
    visit_strided(blocks, dim + 1, offset + i * blocks.dims[dim].stride, visit);
  }
}

template <class Visit>
struct BlockVisitor {
  Visit& visit;
  void operator()(const StridedBlocks& blocks) const { visit_strided(blocks, 0, blocks.offset, visit); }
  void operator()(const ListedBlocks& blocks) const {
    for (std::size_t i = 0; i < blocks.offsets.size(); ++i) visit(blocks.offsets[i], blocks.lengths[i]);
  }
  void operator()(const StructBlocks& blocks) const {
    for (std::int64_t i = 0; i < blocks.count; ++i) visit(i * blocks.stride, blocks.length);
  }
};

}  // namespace detail

template <class Visit>
void Message::for_each_block(Visit&& visit) const {
  std::visit(detail::BlockVisitor<Visit>{visit}, blocks_);
}

}  // namespace gpudt::bench
