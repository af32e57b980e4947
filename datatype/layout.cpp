// The form of any count of elements, from that of one, and the other queries of layouts.
#include "datatype/layout.hpp"

namespace gpudt::datatype {
namespace {

constexpr std::int32_t widest_word = 16;

/// The largest power of two, at most widest_word, that divides everything or-ed into `mask`.
std::int32_t alignment(std::uint64_t mask) {
  mask |= widest_word;
  return static_cast<std::int32_t>(mask & (~mask + 1));
}

/// Turns the form of one element into that of `count`, `extent` bytes apart. False if there is no dim left for it.
bool repeat(Shape& shape, std::int64_t count, std::int64_t extent) {
  if (shape.ndims > 0 && extent == shape.dims[0].count * shape.dims[0].stride) {
    shape.dims[0].count *= count;
    return true;
  }
  if (shape.ndims == max_dims) return false;
  std::copy_backward(shape.dims, shape.dims + shape.ndims, shape.dims + shape.ndims + 1);
  shape.dims[0] = {count, extent};
  ++shape.ndims;
  return true;
}

void become_general(Shape& shape) {
  shape.kind = ShapeKind::general;
  shape.ndims = 0;
  shape.run = 0;
  shape.list_count = shape.list_size = shape.list_displs = shape.list_prefix = 0;
  shape.list_longest = 0;
  std::fill(std::begin(shape.dims), std::end(shape.dims), Dim{});
}

}  // namespace

const char* shape_kind_name(ShapeKind kind) {
  switch (kind) {
    case ShapeKind::empty:
      return "empty";
    case ShapeKind::contiguous:
      return "contiguous";
    case ShapeKind::strided:
      return "strided";
    case ShapeKind::list:
      return "list";
    case ShapeKind::general:
      return "general";
  }
  return "unknown";
}

Shape Layout::shape(std::int64_t count) const {
  if (count == 0 || size_ == 0) return {};
  Shape shape = element_;
  shape.count = count;
  shape.total = count * size_;
  std::uint64_t mask = mask_;
  if (count > 1 && shape.kind == ShapeKind::contiguous && extent_ == size_) {
    shape.run = shape.total;
  } else if (count > 1) {
    mask |= static_cast<std::uint64_t>(extent_);
    if (shape.kind == ShapeKind::contiguous) shape.kind = ShapeKind::strided;
    if (shape.kind != ShapeKind::general && !repeat(shape, count, extent_)) become_general(shape);
  }
  if (shape.kind == ShapeKind::contiguous) mask = static_cast<std::uint64_t>(shape.offset | shape.run);
  shape.align = alignment(mask);
  return shape;
}

std::span<const std::byte> Layout::serialised() const {
  return std::as_bytes(std::span(words_));
}

Program Layout::program() const {
  return program_of(words_.data());
}

Program program_at(const void* copy, std::int64_t node_count) {
  const auto* nodes = reinterpret_cast<const Node*>(static_cast<const char*>(copy) + sizeof(SerialisedHeader));
  return {nodes, reinterpret_cast<const std::int64_t*>(nodes + node_count)};
}

Program program_of(const void* serialised) {
  return program_at(serialised, static_cast<const SerialisedHeader*>(serialised)->node_count);
}

std::string Layout::describe() const {
  const Shape& shape = element_;
  std::string text = shape_kind_name(shape.kind);
  if (shape.kind == ShapeKind::empty) return text;
  if (shape.kind == ShapeKind::contiguous) return text + " " + std::to_string(shape.run) + " B";
  if (shape.kind == ShapeKind::general)
    return text + " depth " + std::to_string(depth_) + ", " + std::to_string(runs_) + " runs, " +
           std::to_string(size_) + " B";
  if (shape.ndims > 0) text += " " + std::to_string(shape.ndims) + "-D";
  text += " ";
  for (int i = 0; i < shape.ndims; ++i) text += std::to_string(shape.dims[i].count) + "x";
  if (shape.kind == ShapeKind::list) text += std::to_string(shape.list_count) + "x";
  if (shape.run > 0) return text + std::to_string(shape.run) + " B";
  return text + "(" + std::to_string(shape.list_size / shape.list_count) + " B on average)";
}

}  // namespace gpudt::datatype
