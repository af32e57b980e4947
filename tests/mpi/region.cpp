// Regions (region.hpp).
#include "tests/mpi/region.hpp"

#include <algorithm>
#include <cstring>

#include "tests/support/mpi_world.hpp"

namespace gpudt::test {
namespace {

constexpr std::size_t guard_bytes = 192;

struct Bounds {
  MPI_Aint low = 0, high = 0;
};

/// Of the bytes that the blocks touch, from the address.
Bounds bounds_of(const std::vector<Region::Block>& blocks) {
  Bounds all;
  bool any = false;
  for (const Region::Block& block : blocks) {
    int size = 0;
    PMPI_Type_size(block.type, &size);
    if (block.count == 0 || size == 0) continue;
    MPI_Aint lb = 0, extent = 0, low = 0, width = 0;
    PMPI_Type_get_extent(block.type, &lb, &extent);
    PMPI_Type_get_true_extent(block.type, &low, &width);
    const MPI_Aint last = (block.count - 1) * extent;
    const MPI_Aint first = block.displ + low + std::min<MPI_Aint>(0, last);
    const MPI_Aint end = block.displ + low + width + std::max<MPI_Aint>(0, last);
    all = any ? Bounds{std::min(all.low, first), std::max(all.high, end)} : Bounds{first, end};
    any = true;
  }
  return all;
}

std::size_t packed_size(const std::vector<Region::Block>& blocks) {
  std::size_t bytes = 0;
  for (const Region::Block& block : blocks) {
    int size = 0;
    PMPI_Type_size(block.type, &size);
    bytes += static_cast<std::size_t>(block.count) * static_cast<std::size_t>(size);
  }
  return bytes;
}

/// From the beginning of the memory to the address: aligned but for the skew.
std::ptrdiff_t origin_of(const Bounds& bounds, std::size_t skew) {
  constexpr std::ptrdiff_t alignment = 64;
  const std::ptrdiff_t least = static_cast<std::ptrdiff_t>(guard_bytes) - bounds.low;
  return (least + alignment - 1) / alignment * alignment + static_cast<std::ptrdiff_t>(skew);
}

std::size_t whole_bytes(const Bounds& bounds, std::size_t skew) {
  return static_cast<std::size_t>(origin_of(bounds, skew) + bounds.high) + guard_bytes;
}

}  // namespace

Region::Region(Place place, const std::vector<Block>& blocks, std::size_t skew)
    : blocks_(blocks),
      packed_bytes_(packed_size(blocks)),
      origin_(origin_of(bounds_of(blocks), skew)),
      initial_(whole_bytes(bounds_of(blocks), skew)),
      reference_(initial_),
      is_data_(initial_.size()),
      is_undefined_(initial_.size()),
      memory_(place, initial_.size()) {
  mark(false, is_data_);
  mark(true, is_undefined_);
  fill(0);
}

void Region::unpack(std::vector<char>& image, const Stream& packed) const {
  if (packed.empty()) return;  // MPI_Unpack takes no null pointer
  int position = 0;
  for (const Block& block : blocks_)
    if (block.count != 0)
      PMPI_Unpack(packed.data(), static_cast<int>(packed.size()), &position, image.data() + origin_ + block.displ,
                  static_cast<int>(block.count), block.type, world());
}

Stream Region::packed() const {
  Stream packed(packed_bytes_);
  int position = 0;
  for (const Block& block : blocks_)
    if (block.count != 0 && !packed.empty())
      PMPI_Pack(initial_.data() + origin_ + block.displ, static_cast<int>(block.count), block.type, packed.data(),
                static_cast<int>(packed.size()), &position, world());
  return packed;
}

void Region::accept(const Stream& packed) {
  accepted_ = initial_;
  unpack(accepted_, packed);
}

/// Marks the bytes of all data, or of undefined data alone: those that unpacking changes.
void Region::mark(bool undefined, std::vector<char>& bytes) const {
  Stream packed;
  for (const Block& block : blocks_) packed.insert(packed.end(), packed_size({block}), block.undefined || !undefined);
  unpack(bytes, packed);
}

void Region::fill(std::uint64_t key) {
  for (std::size_t at = 0; at < initial_.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t value = mix(key, at);
    std::memcpy(initial_.data() + at, &value, std::min(sizeof value, initial_.size() - at));
  }
  reference_ = initial_;
  accepted_.clear();
  memory_.write(initial_.data(), initial_.size());
}

void Region::put(const Stream& packed) {
  unpack(initial_, packed);
  reference_ = initial_;
  memory_.write(initial_.data(), initial_.size());
}

std::string Region::difference() const {
  const std::string text = compare(reference_, true);
  return text.empty() || accepted_.empty() ? text : compare(accepted_, true);
}

std::string Region::difference_outside() const {
  return compare(reference_, false);
}

/// What `compare` looks at first: without branches the compiler makes vector instructions.
bool Region::differs(const std::vector<char>& found, const std::vector<char>& wanted, bool data_too) const {
  unsigned char all = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const bool data = is_data_[i] != 0;
    const bool looked_at = (is_undefined_[i] == 0) & (!data | data_too);
    const int expected = data ? wanted[i] : initial_[i];
    all |= static_cast<unsigned char>(looked_at ? found[i] ^ expected : 0);
  }
  return all != 0;
}

std::string Region::compare(const std::vector<char>& wanted, bool data_too) const {
  std::vector<char> found(initial_.size());
  memory_.read(found.data(), found.size());
  if (!differs(found, wanted, data_too)) return "";
  std::size_t wrong = 0, first = 0, wrong_data = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (is_undefined_[i] || (is_data_[i] && !data_too)) continue;
    if (found[i] == (is_data_[i] ? wanted[i] : initial_[i])) continue;
    if (wrong++ == 0) first = i;
    wrong_data += is_data_[i] ? 1 : 0;
  }
  if (wrong == 0) return "";
  return std::to_string(wrong) + " of " + std::to_string(found.size()) + " bytes differ, " +
         std::to_string(wrong_data) + " of them data, first at offset " +
         std::to_string(static_cast<std::ptrdiff_t>(first) - origin_) + ": found " +
         std::to_string(static_cast<unsigned char>(found[first])) + ", expected " +
         std::to_string(static_cast<unsigned char>(is_data_[first] ? wanted[first] : initial_[first]));
}

}  // namespace gpudt::test
