#include "tests/random/layout.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

namespace gpudt::test {
namespace {

constexpr int most_runs = 4000;
constexpr int block_lengths[] = {1, 2, 3, 4, 7, 8, 12, 16, 24, 32, 64, 100, 128, 256, 1000, 4096};
constexpr int gaps[] = {0, 1, 3, 4, 8, 8, 16, 24, 32, 100};

/// Blocks of one length and a rest, `stride` apart.
std::vector<MapRun> regular(std::int64_t bytes, std::int64_t length, std::int64_t stride) {
  std::vector<MapRun> map;
  for (std::int64_t done = 0, at = 0; done < bytes; done += length, at += stride)
    map.push_back({at, std::min(length, bytes - done)});
  return map;
}

std::vector<MapRun> irregular(Dice& dice, std::int64_t bytes) {
  const auto typical = static_cast<int>(std::max<std::int64_t>(bytes / dice.between(1, 300), 1));
  std::vector<MapRun> map;
  std::int64_t at = dice.one_in(4) ? dice.between(-100, 100) : 0;
  for (std::int64_t done = 0; done < bytes;) {
    const std::int64_t length = std::min<std::int64_t>(dice.between(1, 2 * typical), bytes - done);
    map.push_back({at, length});
    done += length;
    at += length + dice.pick(gaps);
  }
  if (dice.one_in(3)) std::shuffle(map.begin(), map.end(), dice.engine());
  return map;
}

MPI_Datatype hindexed(const std::vector<MapRun>& map) {
  std::vector<int> lengths;
  std::vector<MPI_Aint> displacements;
  for (const MapRun& run : map) {
    lengths.push_back(static_cast<int>(run.length));
    displacements.push_back(run.displ);
  }
  MPI_Datatype type = MPI_DATATYPE_NULL;
  PMPI_Type_create_hindexed(static_cast<int>(map.size()), lengths.data(), displacements.data(), MPI_BYTE, &type);
  return type;
}

/// The same as a vector and a struct of it and the rest.
MPI_Datatype strided(std::int64_t bytes, std::int64_t length, std::int64_t stride) {
  const auto blocks = static_cast<int>(bytes / length), rest = static_cast<int>(bytes % length);
  MPI_Datatype vector = MPI_DATATYPE_NULL, type = MPI_DATATYPE_NULL;
  PMPI_Type_vector(blocks, static_cast<int>(length), static_cast<int>(stride), MPI_BYTE, &vector);
  if (rest == 0) return vector;
  const int lengths[] = {1, rest};
  const MPI_Aint displacements[] = {0, blocks * stride};
  const MPI_Datatype types[] = {vector, MPI_BYTE};
  PMPI_Type_create_struct(2, lengths, displacements, types, &type);
  PMPI_Type_free(&vector);
  return type;
}

std::int64_t span(const std::vector<MapRun>& map) {
  std::int64_t low = map.front().displ, high = low;
  for (const MapRun& run : map) {
    low = std::min(low, run.displ);
    high = std::max(high, run.displ + run.length);
  }
  return high - low;
}

}  // namespace

Layout Layout::element_of_bytes(Dice& dice, std::int64_t bytes) {
  Layout made;
  made.count_ = 1;
  std::vector<MapRun> map{{0, bytes}};
  const std::int64_t length = std::max<std::int64_t>(dice.pick(block_lengths), bytes / most_runs + 1);
  const int way = bytes == 0 ? 0 : dice.below(4);
  made.owned_ = way != 0 || bytes != 1;
  if (way == 1 && length < bytes) {
    const std::int64_t stride = length + dice.pick(gaps);
    map = regular(bytes, length, stride);
    made.type_ = strided(bytes, length, stride);
    made.text_ = "vector " + std::to_string(length) + "/" + std::to_string(stride);
  } else if (way == 2) {
    map = irregular(dice, bytes);
    made.type_ = hindexed(map);
    made.text_ = "hindexed of " + std::to_string(map.size());
  } else if (made.owned_) {
    PMPI_Type_contiguous(static_cast<int>(bytes), MPI_BYTE, &made.type_);
    made.text_ = "contiguous";
  }
  std::int64_t extent = bytes == 0 ? 0 : span(map);
  if (made.owned_ && bytes != 0 && dice.one_in(4)) {
    extent += dice.pick(gaps);
    MPI_Aint lower = 0, old_extent = 0;
    PMPI_Type_get_extent(made.type_, &lower, &old_extent);
    MPI_Datatype wider = MPI_DATATYPE_NULL;
    PMPI_Type_create_resized(made.type_, lower, extent, &wider);
    PMPI_Type_free(&made.type_);
    made.type_ = wider;
    made.text_ += ", resized";
  }
  if (made.owned_) PMPI_Type_commit(&made.type_);
  if (bytes == 0) map.clear();
  made.set_one_map(std::move(map), extent);
  return made;
}

Layout Layout::of_bytes(Dice& dice, std::int64_t bytes) {
  if (dice.one_in(3)) return plain(bytes);
  int elements = 1;
  for (const int factor : {2, 3, 5, 8, 10, 16})
    if (bytes % factor == 0 && dice.one_in(6)) elements = factor;
  Layout made = element_of_bytes(dice, bytes / elements);
  made.count_ = elements;
  return made;
}

Layout Layout::packed(std::int64_t bytes) {
  Layout made;
  made.type_ = MPI_PACKED;
  made.text_ = "packed";
  made.count_ = static_cast<int>(bytes);
  made.set_one_map({{0, 1}}, 1);
  return made;
}

Layout Layout::plain(std::int64_t bytes) {
  Layout made = packed(bytes);
  made.type_ = MPI_BYTE;
  made.text_ = "bytes";
  return made;
}

Layout Layout::random(Dice& dice, bool receivable) {
  RandomTypeLimits limits;
  limits.depth = 4;
  limits.unpack_safe = receivable;
  const RandomType type(dice.engine(), limits);
  Layout made;
  PMPI_Type_dup(type.handle(), &made.type_);
  made.owned_ = true;
  made.count_ = dice.between(1, 12);
  made.text_ = type.description();
  made.set_one_map(type.map(), type.extent());
  return made;
}

Layout::~Layout() {
  free_type();
}

Layout::Layout(Layout&& other) noexcept {
  *this = std::move(other);
}

Layout& Layout::operator=(Layout&& other) noexcept {
  std::swap(type_, other.type_);
  std::swap(owned_, other.owned_);
  std::swap(count_, other.count_);
  std::swap(text_, other.text_);
  std::swap(map_, other.map_);
  std::swap(size_, other.size_);
  std::swap(extent_, other.extent_);
  std::swap(low_, other.low_);
  std::swap(high_, other.high_);
  return *this;
}

void Layout::free_type() {
  if (owned_) PMPI_Type_free(&type_);
  owned_ = false;
}

void Layout::set_one_map(std::vector<MapRun> map, std::int64_t extent) {
  map_ = std::move(map);
  extent_ = extent;
  bool first = true;
  for (const MapRun& run : map_) {
    size_ += run.length;
    low_ = first ? run.displ : std::min(low_, run.displ);
    high_ = first ? run.displ + run.length : std::max(high_, run.displ + run.length);
    first = false;
  }
}

std::int64_t Layout::low(std::int64_t count) const {
  return size_ == 0 || count == 0 ? 0 : low_ + std::min<std::int64_t>(0, (count - 1) * extent_);
}

std::int64_t Layout::high(std::int64_t count) const {
  return size_ == 0 || count == 0 ? 0 : high_ + std::max<std::int64_t>(0, (count - 1) * extent_);
}

template <class Visit>
void Layout::for_each_run(std::int64_t bytes, Visit&& visit) const {
  if (size_ == 0) return;
  if (map_.size() == 1 && map_[0].length == extent_) return visit(map_[0].displ, bytes);
  for (std::int64_t element = 0; bytes > 0; ++element)
    for (const MapRun& run : map_) {
      const std::int64_t length = std::min(run.length, bytes);
      visit(element * extent_ + run.displ, length);
      bytes -= length;
      if (bytes == 0) return;
    }
}

void Layout::gather(const char* base, std::vector<char>& stream) const {
  char* to = stream.data();
  for_each_run(static_cast<std::int64_t>(stream.size()), [&](std::int64_t displacement, std::int64_t length) {
    std::memcpy(to, base + displacement, static_cast<std::size_t>(length));
    to += length;
  });
}

void Layout::scatter(char* base, const std::vector<char>& stream) const {
  const char* from = stream.data();
  for_each_run(static_cast<std::int64_t>(stream.size()), [&](std::int64_t displacement, std::int64_t length) {
    std::memcpy(base + displacement, from, static_cast<std::size_t>(length));
    from += length;
  });
}

Spot reserve(Context& context, Place place, const Layout& layout, std::int64_t count, int skew) {
  Arena& arena = context.arenas.at(place);
  return {&arena, arena.reserve(layout.low(count), layout.high(count), skew)};
}

}  // namespace gpudt::test
