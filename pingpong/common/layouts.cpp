#include "pingpong/common/layouts.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <random>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace gpudt::bench {
namespace {

constexpr std::int64_t vector_stride = 512;  // the paper's: it is where cudaMemcpy2D is at its best
constexpr int volume_side = 64;              // the paper's 4-D volume, in doubles
constexpr int block_depth = 64;              // of the 3-D block, across the face that is sent
constexpr std::int64_t real = sizeof(double);

/// The widest basic type of which blocks of `bytes` are made.
std::pair<MPI_Datatype, std::int64_t> basic_type(std::int64_t bytes) {
  if (bytes % real == 0) return {MPI_DOUBLE, real};
  if (bytes % static_cast<std::int64_t>(sizeof(int)) == 0) return {MPI_INT, sizeof(int)};
  return {MPI_BYTE, 1};
}

Message committed(MPI_Datatype type, int count, Blocks blocks) {
  PMPI_Type_commit(&type);
  return {type, true, count, std::move(blocks)};
}

std::int64_t at_least_one(std::int64_t n) {
  return std::max<std::int64_t>(n, 1);
}

Message make_contiguous(std::int64_t bytes, std::int64_t) {
  const std::int64_t n = at_least_one(bytes / real);
  return {MPI_DOUBLE, false, static_cast<int>(n), StridedBlocks{0, n * real, {}}};
}

Message make_vector(std::int64_t bytes, std::int64_t block) {
  const std::int64_t n = at_least_one(bytes / block);
  const auto [basic, width] = basic_type(block);
  MPI_Datatype type;
  PMPI_Type_create_hvector(static_cast<int>(n), static_cast<int>(block / width), vector_stride, basic, &type);
  return committed(type, 1, StridedBlocks{0, block, {{n, vector_stride}}});
}

/// log2 of the largest power of two that is not above the doubles in `bytes`.
int log2_doubles(std::int64_t bytes) {
  return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(at_least_one(bytes / real)))) - 1;
}

Message make_subarray(std::int64_t bytes, std::int64_t) {
  const int log2 = log2_doubles(bytes);
  std::array<int, 4> box = {1, 1, 1, 1};
  for (int i = 0; i < log2; ++i) box[static_cast<std::size_t>(3 - i % 4)] *= 2;
  if (box[3] > volume_side) throw std::invalid_argument("subarray: a 64^4 volume of doubles holds 128 MiB");
  std::array<int, 4> sizes, start;
  sizes.fill(volume_side);
  for (std::size_t i = 0; i < box.size(); ++i) start[i] = (volume_side - box[i]) / 2;
  return make_box(sizes, box, start);
}

/// The boundary layer of a 3-D block with one layer of ghost cells, across dimension `across` (0: z, 1: y, 2: x).
template <std::size_t Across>
Message make_face(std::int64_t bytes, std::int64_t) {
  const int log2 = log2_doubles(bytes);
  std::array<int, 3> inner, box;
  int fast = 1 << ((log2 + 1) / 2), slow = 1 << (log2 / 2);
  for (std::size_t i = 3; i-- > 0;) {
    inner[i] = i == Across ? block_depth : std::exchange(fast, slow);
    box[i] = i == Across ? 1 : inner[i];
  }
  std::array<int, 3> sizes;
  for (std::size_t i = 0; i < sizes.size(); ++i) sizes[i] = inner[i] + 2;
  return make_box(sizes, box, std::array{1, 1, 1});
}

/// Blocks in slots `vector_stride` bytes apart, at random places in them, so that nobody can take the list for a
/// vector. Lengths, where `vary`, come in pairs that sum to 2 * block.
ListedBlocks random_blocks(std::int64_t n, std::int64_t block, std::int64_t unit, bool vary) {
  std::mt19937_64 random(static_cast<std::uint64_t>(n * 1000 + block));
  const auto below = [&](std::int64_t limit) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(limit));
  };
  ListedBlocks blocks;
  blocks.regular = !vary;
  std::int64_t surplus = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    if (i % 2 == 1 || !vary) {
      surplus = -surplus;
    } else {
      surplus = i + 1 < n ? (below(block / unit) - block / unit / 2) * unit : 0;
    }
    const std::int64_t length = block + surplus;
    blocks.lengths.push_back(length);
    blocks.offsets.push_back(i * vector_stride + below((vector_stride - length) / unit + 1) * unit);
  }
  return blocks;
}

std::vector<int> in_units(const std::vector<std::int64_t>& bytes, std::int64_t unit) {
  std::vector<int> units(bytes.size());
  std::transform(bytes.begin(), bytes.end(), units.begin(), [&](auto b) { return static_cast<int>(b / unit); });
  return units;
}

Message make_indexed(std::int64_t bytes, std::int64_t block) {
  const auto [basic, unit] = basic_type(block);
  ListedBlocks blocks = random_blocks(at_least_one(bytes / block), block, unit, true);
  const std::vector<int> lengths = in_units(blocks.lengths, unit), displs = in_units(blocks.offsets, unit);
  MPI_Datatype type;
  PMPI_Type_indexed(static_cast<int>(lengths.size()), lengths.data(), displs.data(), basic, &type);
  return committed(type, 1, std::move(blocks));
}

Message make_indexed_block(std::int64_t bytes, std::int64_t block) {
  const auto [basic, unit] = basic_type(block);
  ListedBlocks blocks = random_blocks(at_least_one(bytes / block), block, unit, false);
  const std::vector<int> displs = in_units(blocks.offsets, unit);
  MPI_Datatype type;
  PMPI_Type_create_indexed_block(static_cast<int>(displs.size()), static_cast<int>(block / unit), displs.data(), basic,
                                 &type);
  return committed(type, 1, std::move(blocks));
}

Message make_struct(std::int64_t bytes, std::int64_t) {
  struct Record {
    double value;
    int ids[2];
    char tag;
  };
  constexpr std::int64_t data = sizeof(double) + 2 * sizeof(int) + 1;
  const int lengths[] = {1, 2, 1};
  const MPI_Aint displs[] = {offsetof(Record, value), offsetof(Record, ids), offsetof(Record, tag)};
  const MPI_Datatype types[] = {MPI_DOUBLE, MPI_INT, MPI_CHAR};
  MPI_Datatype members, type;
  PMPI_Type_create_struct(3, lengths, displs, types, &members);
  PMPI_Type_create_resized(members, 0, sizeof(Record), &type);
  PMPI_Type_free(&members);
  const std::int64_t n = at_least_one(bytes / data);
  return committed(type, static_cast<int>(n), StructBlocks{n, sizeof(Record), data});
}

/// Vectors of vectors of vectors: 16-byte blocks, 8 at stride 64, those 4 at stride 1024, those n at stride 8192.
Message make_nested(std::int64_t bytes, std::int64_t) {
  const StridedDim inner = {8, 64}, middle = {4, 1024};
  constexpr std::int64_t run = 2 * real, outer_stride = 8192;
  const std::int64_t n = at_least_one(bytes / (run * inner.count * middle.count));
  MPI_Datatype rows, planes, type;
  PMPI_Type_vector(static_cast<int>(inner.count), 2, static_cast<int>(inner.stride / real), MPI_DOUBLE, &rows);
  PMPI_Type_create_hvector(static_cast<int>(middle.count), 1, middle.stride, rows, &planes);
  PMPI_Type_create_hvector(static_cast<int>(n), 1, outer_stride, planes, &type);
  PMPI_Type_free(&rows);
  PMPI_Type_free(&planes);
  return committed(type, 1, StridedBlocks{0, run, {{n, outer_stride}, middle, inner}});
}

struct Family {
  std::string_view name;
  std::int64_t default_block;  // 0: the name takes no block length
  Message (*make)(std::int64_t, std::int64_t);
  std::string_view summary;
};

constexpr Family families[] = {
    {"contiguous", 0, make_contiguous, "doubles without gaps"},
    {"vector", 8, make_vector, "blocks of N bytes (vector:N) at stride 512"},
    {"subarray", 0, make_subarray, "4-D box of doubles in a 64^4 volume"},
    {"indexed", 32, make_indexed, "blocks of N/2 to 3N/2 bytes, N on average, at random places 512 bytes apart"},
    {"indexed_block", 32, make_indexed_block, "blocks of N bytes at random places 512 bytes apart"},
    {"struct", 0, make_struct, "a double, two ints and a char: 17 of 24 bytes"},
    {"face_xy", 0, make_face<0>, "face of a 3-D block of doubles with ghost cells, rows and columns contiguous"},
    {"face_xz", 0, make_face<1>, "the same, rows contiguous, planes apart"},
    {"face_yz", 0, make_face<2>, "the same, single doubles"},
    {"nested", 0, make_nested, "vectors of vectors of vectors of 16-byte blocks"},
};

}  // namespace

Message make_box(std::span<const int> sizes, std::span<const int> box, std::span<const int> start) {
  MPI_Datatype type;
  PMPI_Type_create_subarray(static_cast<int>(sizes.size()), sizes.data(), box.data(), start.data(), MPI_ORDER_C,
                            MPI_DOUBLE, &type);
  StridedBlocks blocks;
  std::int64_t stride = real;
  for (std::size_t i = sizes.size(); i-- > 0;) {
    blocks.offset += start[i] * stride;
    if (i + 1 == sizes.size()) {
      blocks.run = box[i] * real;
    } else if (box[i] > 1) {
      blocks.dims.insert(blocks.dims.begin(), {box[i], stride});
    }
    stride *= sizes[i];
  }
  return committed(type, 1, std::move(blocks));
}

Message::Message(MPI_Datatype type, bool owned, int count, Blocks blocks)
    : type_(type), owned_(owned), count_(count), blocks_(std::move(blocks)) {
  for_each_block([&](std::int64_t offset, std::int64_t length) {
    size_ += length;
    span_ = offset + length;
    ++block_count_;
  });
}

Message::Message(Message&& other) noexcept
    : type_(other.type_),
      owned_(std::exchange(other.owned_, false)),
      count_(other.count_),
      size_(other.size_),
      span_(other.span_),
      block_count_(other.block_count_),
      blocks_(std::move(other.blocks_)) {}

Message::~Message() {
  if (owned_) PMPI_Type_free(&type_);
}

LayoutFamily::LayoutFamily(const std::string& name) : name_(name) {
  const std::size_t colon = name.find(':');
  for (const Family& family : families) {
    if (family.name != std::string_view(name).substr(0, colon)) continue;
    make_ = family.make;
    block_ = family.default_block;
    if (colon == std::string::npos) {
      if (block_ != 0) name_ += ':' + std::to_string(block_);
      return;
    }
    const char* last = name.data() + name.size();
    const auto [end, error] = std::from_chars(name.data() + colon + 1, last, block_);
    // Varying lengths reach to half as much again, and a block must stay in its slot.
    const std::int64_t limit = family.name == "indexed" ? vector_stride / 2 : vector_stride;
    if (family.default_block != 0 && error == std::errc() && end == last && block_ >= 1 && block_ <= limit) return;
    throw std::invalid_argument("layout '" + name + "': expected " + std::string(family.name) +
                                (family.default_block == 0 ? "" : ":1 to :" + std::to_string(limit)));
  }
  throw std::invalid_argument("no layout is called '" + name + "'; there are:\n" + layout_help());
}

Message LayoutFamily::message(std::int64_t bytes) const {
  return make_(bytes, block_);
}

const std::vector<std::string>& default_layouts() {
  static const std::vector<std::string> names = {"contiguous", "vector:8",   "vector:32",        "vector:128",
                                                 "subarray",   "indexed:32", "indexed_block:32", "struct",
                                                 "face_xy",    "face_xz",    "face_yz",          "nested"};
  return names;
}

std::string layout_help() {
  std::string help;
  for (const Family& family : families) {
    std::string name(family.name);
    if (family.default_block != 0) name += ":N";
    name.resize(18, ' ');
    help += "  " + name + std::string(family.summary) + '\n';
  }
  return help;
}

}  // namespace gpudt::bench
