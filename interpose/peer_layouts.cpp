#include "interpose/peer_layouts.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <span>

namespace gpudt::interpose::peer {
namespace {

constexpr std::size_t layouts_kept = 64;  ///< of each kind
constexpr std::size_t received_memory = std::size_t{64} << 20;
constexpr std::size_t numbers_kept = 4096;  ///< of other processes' layouts

template <class List>
void make_room(List& list) {
  if (list.size() >= layouts_kept) list.erase(list.begin());
}

bool same(const std::weak_ptr<const datatype::Layout>& known, const datatype::LayoutRef& layout) {
  return !known.owner_before(layout) && !layout.owner_before(known);
}

}  // namespace

bool Layouts::describe(Segment& own, Descriptor& descriptor, Whereabouts& place, const datatype::LayoutRef& layout,
                       std::size_t effort, PublishedRef& published) {
  const std::size_t bytes = layout->bytes();
  if (bytes <= descriptor_data) {
    const Short& sent = short_one(layout);
    if (descriptor.data_layout != sent.number || descriptor.data_owner != own->rank)
      std::copy(sent.bytes.begin(), sent.bytes.end(), descriptor.data);
    descriptor.data_layout = place.layout_number = sent.number;
    descriptor.data_owner = own->rank;
    place.layout_slot = -1;
  } else {
    published = publish(own, layout, effort);
    if (!published) return false;
    place.layout_number = published->number;
    place.layout_slot = published->slot;
  }
  place.layout_bytes = static_cast<std::int64_t>(bytes);
  return true;
}

const Layouts::Short& Layouts::short_one(const datatype::LayoutRef& layout) {
  const auto at = std::ranges::find(short_, layout, &Short::layout);
  if (at != short_.end()) return *at;
  make_room(short_);
  short_.push_back({layout, ++numbers_, layout->to_bytes()});
  return short_.back();
}

Layouts::Long& Layouts::long_one(const datatype::LayoutRef& layout) {
  const auto at = std::ranges::find_if(long_, [&](const Long& known) { return same(known.layout, layout); });
  if (at != long_.end()) return *at;
  std::erase_if(long_, [](const Long& known) { return known.layout.expired(); });
  make_room(long_);
  long_.push_back({layout, ++numbers_, 0});
  return long_.back();
}

/// Null if it is not worth it, or if there is no room.
PublishedRef Layouts::publish(Segment& own, const datatype::LayoutRef& layout, std::size_t effort) {
  const std::size_t bytes = layout->bytes();
  if (bytes > layout_slot_size) return nullptr;
  Long& sent = long_one(layout);
  const auto there =
      std::ranges::find_if(slots_, [&](const Slot& slot) { return slot.layout && slot.layout->number == sent.number; });
  if (there != slots_.end()) {
    there->used = ++clock_;
    return there->layout;
  }
  sent.earned += effort;
  if (sent.earned < bytes) return nullptr;
  Slot* const slot = idle_slot(bytes);
  if (slot == nullptr) return nullptr;
  const auto index = static_cast<int>(slot - slots_.data());
  if (slot->made < bytes) {
    no_memory_ = !own.make_layout_slot(index, bytes);
    if (no_memory_) return nullptr;
    slot->made = bytes;
  }
  const std::vector<std::byte> image = layout->to_bytes();
  // Nobody reads the slot any more: letting the last reference go comes after what others did before they let go.
  slot->layout.reset();
  own->layout_numbers[index].store(0);
  std::copy(image.begin(), image.end(), own->layouts[index]);
  own->layout_numbers[index].store(sent.number);
  slot->used = ++clock_;
  slot->layout = std::make_shared<const PublishedLayout>(PublishedLayout{index, sent.number});
  sent.earned = 0;  // another time has to be earned, too
  return slot->layout;
}

/// The one that has not been used for longest; null: there is none.
Layouts::Slot* Layouts::idle_slot(std::size_t bytes) {
  const std::size_t made = std::transform_reduce(slots_.begin(), slots_.end(), std::size_t{0}, std::plus<>(),
                                                 [](const Slot& slot) { return slot.made; });
  Slot* idle = nullptr;
  for (Slot& slot : slots_) {
    const bool free = !slot.layout || slot.layout.use_count() == 1;
    const bool can_grow = !no_memory_ && made - slot.made + bytes <= layout_memory;
    if (free && (slot.made >= bytes || can_grow) && (idle == nullptr || slot.used < idle->used)) idle = &slot;
  }
  return idle;
}

/// Makes room for another one.
void Layouts::forget_oldest(ReceivedList& received) {
  const auto memory = [&] {
    return std::transform_reduce(received.begin(), received.end(), std::size_t{0}, std::plus<>(),
                                 [](const auto& known) { return known->layout->bytes(); });
  };
  while (received.size() >= layouts_kept || memory() > received_memory)
    received.erase(std::ranges::min_element(received, {}, [](const auto& known) { return known->used; }));
}

datatype::LayoutRef Layouts::find(const Segment& other, const Descriptor& descriptor, const Whereabouts& place) {
  const std::pair<int, std::uint64_t> key = {other->rank, place.layout_number};
  if (const auto at = numbered_.find(key); at != numbered_.end())
    if (const auto known = at->second.lock()) {
      known->used = ++clock_;
      return known->layout;
    }
  const bool is_long = place.layout_slot >= 0;
  const std::int64_t most = is_long ? layout_slot_size : std::int64_t{descriptor_data};
  if (place.layout_slot >= layout_slots || place.layout_bytes < 0 || place.layout_bytes > most) return nullptr;
  const std::span<const std::byte> bytes(is_long ? other->layouts[place.layout_slot] : descriptor.data,
                                         static_cast<std::size_t>(place.layout_bytes));
  ReceivedList& received = is_long ? received_long_ : received_short_;
  const auto alike = std::find_if(received.rbegin(), received.rend(), [&](const std::shared_ptr<Received>& known) {
    return std::ranges::equal(known->bytes, bytes);
  });
  std::shared_ptr<Received> found = alike != received.rend() ? *alike : nullptr;
  if (!found) {
    const auto holds = [&] { return !is_long || other->layout_numbers[place.layout_slot].load() == key.second; };
    datatype::LayoutRef layout = holds() ? datatype::Layout::from_bytes(bytes) : nullptr;
    if (!layout || !holds()) return nullptr;
    forget_oldest(received);
    const auto kept = is_long ? bytes.first(0) : bytes;
    found = std::make_shared<Received>(Received{{kept.begin(), kept.end()}, std::move(layout), 0});
    received.push_back(found);
  }
  found->used = ++clock_;
  if (numbered_.size() >= numbers_kept) numbered_.clear();
  numbered_[key] = found;
  return found->layout;
}

void Layouts::clear() {
  short_.clear();
  long_.clear();
  received_short_.clear();
  received_long_.clear();
  numbered_.clear();
}

}  // namespace gpudt::interpose::peer
