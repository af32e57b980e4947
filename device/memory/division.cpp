#include "device/memory/division.hpp"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "datatype/runs.hpp"

namespace gpudt::device {
namespace {

/// A message that does not begin in device memory and has more places than this, at regular strides of `long_stride`
/// bytes or more, is taken to be an array in one memory.
constexpr std::int64_t most_long_strides = 16;
constexpr std::int64_t long_stride = 4096;

bool same_memory(const Location& a, const Location& b) {
  return a.on_device() ? b.on_device() && a.ordinal == b.ordinal : !b.on_device();
}

/// Whether the driver says where the memory begins and ends.
bool has_known_end(const Location& location) {
  return location.kind == MemoryKind::device;
}

std::uintptr_t at(const void* user, std::int64_t offset) {
  return reinterpret_cast<std::uintptr_t>(user) + static_cast<std::uintptr_t>(offset);
}

/// Where the data of one element lie, by address. If it has very many runs, those at short regular strides are one
/// piece, and if there are still too many pieces, so are all that are less than a page apart.
class Pieces : public datatype::Attachment {
 public:
  explicit Pieces(const datatype::Layout& layout) {
    if (layout.runs() <= most_exact_runs)
      datatype::for_each_run(layout, 0, layout.size(), [&](std::int64_t offset, std::int64_t, std::int64_t length) {
        add({offset, offset + length});
      });
    else
      datatype::for_each_stretch(layout, page - 1, [&](const datatype::Span& span) { add(span); });
    join();
    list_.shrink_to_fit();
  }

  /// Whether data may end in one memory and go on in another within a piece, behind a gap.
  bool have_irregular_gaps() const { return most_gap_ != 0; }

  static const Pieces& of(const datatype::Layout& layout) {
    return static_cast<const Pieces&>(
        layout.attachment(datatype::Layout::gpu_slots, [&] { return std::make_unique<Pieces>(layout); }));
  }

  auto begin() const { return list_.begin(); }
  auto end() const { return list_.end(); }
  /// The first one that ends behind `offset`.
  auto behind(std::int64_t offset) const {
    return std::upper_bound(list_.begin(), list_.end(), offset,
                            [](std::int64_t value, const datatype::Span& piece) { return value < piece.end; });
  }

 private:
  static constexpr std::int64_t most_exact_runs = 1 << 18;
  static constexpr std::size_t most_pieces = 1 << 22;  ///< 64 MiB
  static constexpr std::int64_t page = 4096;

  bool are_near(const datatype::Span& a, const datatype::Span& b) const {
    return b.begin - a.end <= most_gap_ && a.begin - b.end <= most_gap_;
  }
  static void extend(datatype::Span& span, const datatype::Span& by) {
    span = {std::min(span.begin, by.begin), std::max(span.end, by.end)};
  }

  void add(const datatype::Span& span) {
    if (!list_.empty() && are_near(list_.back(), span)) return extend(list_.back(), span);
    if (list_.size() == most_before_join_) {
      join();
      if (list_.size() > most_pieces / 2 && most_gap_ == 0) {
        most_gap_ = page - 1;
        join();
      }
      most_before_join_ = std::max(most_before_join_, 2 * list_.size());
    }
    list_.push_back(span);
  }

  /// Sorts the pieces, and joins those that are near each other.
  void join() {
    const auto by_begin = [](const datatype::Span& a, const datatype::Span& b) { return a.begin < b.begin; };
    if (!std::is_sorted(list_.begin(), list_.end(), by_begin)) std::sort(list_.begin(), list_.end(), by_begin);
    std::size_t joined = 0;
    for (const datatype::Span& span : list_)
      if (joined != 0 && are_near(list_[joined - 1], span))
        extend(list_[joined - 1], span);
      else
        list_[joined++] = span;
    list_.resize(joined);
  }

  std::int64_t most_gap_ = 0;  ///< bytes between runs that are one piece although their strides are not regular
  std::vector<datatype::Span> list_;
  std::size_t most_before_join_ = most_pieces;
};

/// The region of an address within a contiguous piece that ends at `end`.
Region region_within(std::uintptr_t address, std::uintptr_t end, FindRegion find) {
  Region region = find(reinterpret_cast<const void*>(address));
  if (!has_known_end(region.location)) region.end = std::max(region.end, end);
  return region;
}

/// Whether all data of one element at `user` lie in the memory of `region`, which becomes that of the last of them.
bool in_memory_of(const Pieces& pieces, const void* user, Region& region, FindRegion find) {
  const Location memory = region.location;
  for (auto piece = pieces.begin(); piece != pieces.end();) {
    const std::uintptr_t first = at(user, piece->begin), end = at(user, piece->end);
    for (std::uintptr_t next = first; next < end; next = region.end) {
      if (!region.holds(next, next)) region = region_within(next, pieces.have_irregular_gaps() ? next : end, find);
      if (!same_memory(region.location, memory)) return false;
    }
    piece = pieces.behind(static_cast<std::int64_t>(region.end - at(user, 0)));
  }
  return true;
}

/// How many elements from the first one at `user` on lie in `region` with all between their data.
std::int64_t elements_in(const Region& region, const datatype::Layout& layout, const void* user, std::int64_t count) {
  const std::uintptr_t first = at(user, layout.true_lb()), last = at(user, layout.true_ub() - 1);
  if (!region.holds(first, last)) return 0;
  const std::int64_t extent = layout.extent();
  if (extent == 0) return count;
  const std::uintptr_t room = extent > 0 ? region.end - 1 - last : first - region.begin;
  return std::min(count, 1 + static_cast<std::int64_t>(room) / std::abs(extent));
}

/// Whether all data lie in the memory of `region`, that of the first of them.
bool in_one_memory(const datatype::Layout& layout, std::int64_t count, const void* user, Region region,
                   FindRegion find) {
  const Pieces& pieces = Pieces::of(layout);
  for (std::int64_t element = 0; element < count;) {
    const void* const there = reinterpret_cast<const void*>(at(user, element * layout.extent()));
    if (const std::int64_t more = elements_in(region, layout, there, count - element)) {
      element += more;
    } else {
      if (!in_memory_of(pieces, there, region, find)) return false;
      ++element;
    }
  }
  return true;
}

/// Whether the elements are irregular, or lie in a few places that are far apart; otherwise they are an array.
bool may_be_divided(const datatype::Shape& shape) {
  if (shape.kind == datatype::ShapeKind::contiguous) return false;
  if (shape.kind != datatype::ShapeKind::strided) return true;
  std::int64_t places = 1;
  for (const datatype::Dim& dim : std::span(shape.dims).first(static_cast<std::size_t>(shape.ndims)))
    if (std::abs(dim.stride) >= long_stride) places *= dim.count;
  return places > 1 && places <= most_long_strides;
}

}  // namespace

TooManyParts::TooManyParts()
    : Exception(
          "the data of the buffer argument change between host memory and GPUs, as its datatype lists "
          "them, more than " +
          std::to_string(most_parts) +
          " times; send what lies in each memory by a datatype of its own, or list it together") {}

std::optional<Location> one_memory(const datatype::Layout& layout, std::int64_t count, const void* user,
                                   const Region& first, FindRegion find) {
  const datatype::Span span = layout.span(count);
  if (first.holds(at(user, span.begin), at(user, span.end - 1)) ||
      (!has_known_end(first.location) && !may_be_divided(layout.shape(count))) ||
      in_one_memory(layout, count, user, first, find))
    return first.location;
  return std::nullopt;
}

const Region& Regions::of(std::uintptr_t address, std::uintptr_t end) {
  if (last_ != nullptr && last_->holds(address, address)) return *last_;
  const auto known = by_end_.upper_bound(address);
  if (known != by_end_.end() && known->second.begin <= address) return *(last_ = &known->second);
  const Region region = region_within(address, end, find_);
  return *(last_ = &(by_end_[region.end] = region));
}

Division::Division(datatype::LayoutRef layout, std::int64_t count, const void* user, FindRegion find)
    : layout_(std::move(layout)), count_(count), bytes_(count * layout_->size()), user_(user), regions_(find) {}

Division::Division(std::int64_t bytes)
    : count_(0), bytes_(bytes), user_(nullptr), regions_(nullptr), parts_{{0, bytes, {}}} {}

const std::vector<Part>& Division::up_to(std::int64_t bytes) {
  while (parts_.empty() || parts_.back().end < std::min(bytes, bytes_)) go_on();
  return parts_;
}

std::optional<int> Division::first_gpu() {
  for (std::size_t part = 0; part < parts_.size() || begin_another(); ++part)
    if (parts_[part].location.on_device()) return parts_[part].location.ordinal;
  return std::nullopt;
}

bool Division::is_one() {
  while (parts_.size() < 2 && begin_another()) {
  }
  return parts_.size() == 1;
}

/// Finds the next part. False if there is none.
bool Division::begin_another() {
  const std::size_t before = parts_.size();
  while (parts_.size() == before && (parts_.empty() || parts_.back().end < bytes_)) go_on();
  return parts_.size() > before;
}

/// Appends all further elements that lie in one region, or else the runs of one element.
void Division::go_on() {
  const std::int64_t element = (parts_.empty() ? 0 : parts_.back().end) / layout_->size();
  const void* const there = reinterpret_cast<const void*>(at(user_, element * layout_->extent()));
  const std::uintptr_t first = at(there, layout_->true_lb());
  const Region& region = regions_.of(first, first + 1);
  if (const std::int64_t more = elements_in(region, *layout_, there, count_ - element))
    return append(more * layout_->size(), region.location);
  const auto add = [&](std::int64_t offset, std::int64_t, std::int64_t length) {
    const std::uintptr_t end = at(there, offset + length);
    for (std::uintptr_t next = end - static_cast<std::uintptr_t>(length); next < end;) {
      const Region& holds = regions_.of(next, end);
      const std::uintptr_t until = std::min(holds.end, end);
      append(static_cast<std::int64_t>(until - next), holds.location);
      next = until;
    }
  };
  datatype::for_each_run(*layout_, 0, layout_->size(), add);
}

void Division::append(std::int64_t bytes, const Location& location) {
  const std::int64_t begin = parts_.empty() ? 0 : parts_.back().end;
  if (!parts_.empty() && same_memory(parts_.back().location, location)) {
    parts_.back().end += bytes;
    return;
  }
  if (parts_.size() == most_parts) throw TooManyParts();
  parts_.push_back({begin, begin + bytes, location});
}

}  // namespace gpudt::device
