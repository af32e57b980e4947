#include "interpose/shared/layout_exchange.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <span>

namespace gpudt::interpose::peer {
namespace {

constexpr std::size_t long_kept = 64, received_kept = 512, least_swept = 64;
constexpr std::size_t received_memory = std::size_t{128} << 20;
constexpr std::size_t most_spare = std::size_t{1} << 20;  ///< memory of a slot beyond what its layout takes
constexpr std::size_t numbers_kept = 16384;  ///< of this process's short layouts, and of those of each other process

}  // namespace

bool Layouts::describe(Segment& own, Descriptor& descriptor, std::span<std::byte> data, RemoteBuffer& place,
                       const datatype::LayoutRef& layout, std::size_t effort, PublishedRef& published) {
  if (layout->bytes() > descriptor_data) {
    place.layout = name_long(own, layout, effort, published);
    return published != nullptr;
  }
  std::span<const std::byte> bytes;
  place.layout = name_short(layout, bytes);
  if (descriptor.data_layout != place.layout.number || descriptor.data_owner != own->rank)
    std::copy(bytes.begin(), bytes.end(), data.begin());
  descriptor.data_layout = place.layout.number;
  descriptor.data_owner = own->rank;
  return true;
}

LayoutName Layouts::name_short(const datatype::LayoutRef& layout, std::span<const std::byte>& bytes) {
  const Short& sent = short_one(layout);
  bytes = sent.bytes;
  return {.bytes = std::ssize(sent.bytes), .number = sent.number};
}

LayoutName Layouts::name_long(Segment& own, const datatype::LayoutRef& layout, std::size_t effort,
                              PublishedRef& published) {
  published = publish(own, layout, effort);
  if (!published) return {};
  return {static_cast<std::int64_t>(layout->bytes()), published->number, published->slot};
}

const Layouts::Short& Layouts::short_one(const datatype::LayoutRef& layout) {
  const auto at = short_.find(layout.get());
  if (at != short_.end() && is_same(at->second.layout, layout)) return at->second;
  if (short_.size() >= std::max(2 * short_swept_, least_swept)) {
    std::erase_if(short_, [](const auto& known) { return known.second.layout.expired(); });
    if (short_.size() >= numbers_kept) short_.clear();
    short_swept_ = short_.size();
  }
  return short_.insert_or_assign(layout.get(), Short{layout, ++numbers_, layout->to_bytes()}).first->second;
}

Layouts::Long& Layouts::long_one(const datatype::LayoutRef& layout) {
  const auto at = std::ranges::find_if(long_, [&](const Long& known) { return is_same(known.layout, layout); });
  if (at != long_.end()) return *at;
  std::erase_if(long_, [](const Long& known) { return known.layout.expired(); });
  if (long_.size() >= long_kept) long_.erase(long_.begin());
  long_.push_back({layout, ++numbers_, 0});
  return long_.back();
}

/// Null if the layout has not earned a slot, or if there is no room.
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
  sent.earned = 0;  // publishing it again, or trying again, has to be earned, too
  Slot* const slot = room_for(own, bytes);
  if (slot == nullptr) return nullptr;
  const int index = index_of(*slot);
  const std::vector<std::byte> image = layout->to_bytes();
  // No process reads the slot any more: all reads happened before the last reference to it was released.
  slot->layout.reset();
  own->layout_numbers[index].store(0);
  std::copy(image.begin(), image.end(), own->layouts[index]);
  own->layout_numbers[index].store(sent.number);
  slot->used = ++clock_;
  slot->layout = std::make_shared<const PublishedLayout>(PublishedLayout{index, sent.number});
  return slot->layout;
}

/// The least recently used slot that no process reads; null if there is none.
Layouts::Slot* Layouts::oldest_idle(bool with_memory) {
  Slot* oldest = nullptr;
  for (Slot& slot : slots_) {
    const bool idle = !slot.layout || slot.layout.use_count() == 1;
    if (idle && (slot.made != 0 || !with_memory) && (oldest == nullptr || slot.used < oldest->used)) oldest = &slot;
  }
  return oldest;
}

/// Returns the slot's memory, which no process may be reading.
void Layouts::empty(Segment& own, Slot& slot) {
  own->layout_numbers[index_of(slot)].store(0);
  own.drop_layout_slot(index_of(slot));
  slot = {};
}

/// A slot with `bytes` bytes of memory, for which others are emptied if need be; null if there is none.
Layouts::Slot* Layouts::room_for(Segment& own, std::size_t bytes) {
  Slot* const slot = oldest_idle(/*with_memory=*/false);
  if (slot == nullptr) return nullptr;
  if (slot->made >= bytes && slot->made <= bytes + most_spare) return slot;
  if (slot->made != 0) empty(own, *slot);
  const auto made = [&] {
    return std::transform_reduce(slots_.begin(), slots_.end(), bytes, std::plus<>(),
                                 [](const Slot& each) { return each.made; });
  };
  while (made() > layout_memory) {
    Slot* const oldest = oldest_idle(/*with_memory=*/true);
    if (oldest == nullptr) return nullptr;
    empty(own, *oldest);
  }
  if (!own.make_layout_slot(index_of(*slot), bytes)) {
    empty(own, *slot);
    return nullptr;
  }
  slot->made = bytes;
  return slot;
}

/// Makes room for another layout, of `bytes` bytes.
void Layouts::forget_oldest(ReceivedList& received, std::size_t bytes) {
  const auto memory = [&] {
    return std::transform_reduce(received.begin(), received.end(), bytes, std::plus<>(),
                                 [](const auto& known) { return known->layout->bytes(); });
  };
  while (received.size() >= received_kept || (!received.empty() && memory() > received_memory))
    received.erase(std::ranges::min_element(received, {}, [](const auto& known) { return known->used; }));
}

datatype::LayoutRef Layouts::find(const Segment& other, const LayoutName& name, std::span<const std::byte> beside) {
  Numbered& numbered = numbered_[other->rank];
  if (const auto at = numbered.find(name.number); at != numbered.end())
    if (const auto known = at->second.lock()) {
      known->used = ++clock_;
      return known->layout;
    }
  const bool is_long = name.slot >= 0;
  if (name.slot >= layout_slots || name.bytes < 0) return nullptr;
  const std::span<const std::byte> room = is_long ? std::span<const std::byte>(other->layouts[name.slot]) : beside;
  if (static_cast<std::size_t>(name.bytes) > room.size()) return nullptr;
  const std::span<const std::byte> bytes = room.first(static_cast<std::size_t>(name.bytes));
  ReceivedList& received = is_long ? received_long_ : received_short_;
  const auto alike = std::find_if(received.rbegin(), received.rend(), [&](const std::shared_ptr<Received>& known) {
    return std::ranges::equal(known->bytes, bytes);
  });
  std::shared_ptr<Received> found = alike != received.rend() ? *alike : nullptr;
  if (!found) {
    const auto holds = [&] { return !is_long || other->layout_numbers[name.slot].load() == name.number; };
    datatype::LayoutRef layout = holds() ? datatype::Layout::from_bytes(bytes) : nullptr;
    if (!layout || !holds()) return nullptr;
    forget_oldest(received, bytes.size());
    const auto kept = is_long ? bytes.first(0) : bytes;
    found = std::make_shared<Received>(Received{{kept.begin(), kept.end()}, std::move(layout), 0});
    received.push_back(found);
  }
  found->used = ++clock_;
  if (numbered.size() >= numbers_kept) numbered.clear();
  numbered[name.number] = found;
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
