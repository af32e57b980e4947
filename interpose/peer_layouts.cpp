#include "interpose/peer_layouts.hpp"

#include <algorithm>
#include <cstring>
#include <span>

namespace gpudt::interpose::peer {
namespace {

constexpr std::size_t layouts_kept = 64;    ///< of each kind
constexpr std::size_t numbers_kept = 4096;  ///< of other processes' layouts
/// A long layout is published when it has been sent so often, for each so many bytes of it. Up to then its data are
/// packed to be fetched, which costs two kernels instead of one; what publishing costs, by this process, the receiver
/// and its GPU, takes about as many messages to pay.
constexpr std::int64_t published_bytes_per_use = 8 << 10;

template <class List>
void make_room(List& list) {
  if (list.size() >= layouts_kept) list.erase(list.begin());
}

}  // namespace

bool Layouts::describe(Segment& own, Descriptor& descriptor, const datatype::LayoutRef& layout,
                       PublishedRef& published) {
  if (layout->serialised().size() >= descriptor_data && !worth_publishing(layout)) return false;
  const Sent& sent = this->sent(layout);
  if (sent.bytes.size() <= descriptor_data) {
    if (descriptor.layout_number != sent.number) std::copy(sent.bytes.begin(), sent.bytes.end(), descriptor.data);
    descriptor.layout_slot = -1;
  } else {
    published = publish(own, sent);
    if (!published) return false;
    descriptor.layout_slot = published->slot;
  }
  descriptor.layout_number = sent.number;
  descriptor.layout_bytes = static_cast<std::int64_t>(sent.bytes.size());
  return true;
}

const Layouts::Sent& Layouts::sent(const datatype::LayoutRef& layout) {
  const auto at = std::ranges::find(sent_, layout, &Sent::layout);
  if (at != sent_.end()) return *at;
  make_room(sent_);
  return sent_.emplace_back(layout, ++numbers_, layout->to_bytes());
}

bool Layouts::worth_publishing(const datatype::LayoutRef& layout) {
  const auto bytes = static_cast<std::int64_t>(layout->serialised().size());
  if (bytes > layout_slot_size) return false;
  const auto at = std::ranges::find_if(long_, [&](const Long& each) { return each.layout.lock() == layout; });
  if (at != long_.end()) return ++at->uses * published_bytes_per_use >= bytes;
  make_room(long_);
  long_.push_back({layout, 1});
  return false;
}

/// Null if there is no memory, or none that is not in use.
PublishedRef Layouts::publish(Segment& own, const Sent& sent) {
  if (sent.bytes.size() > layout_slot_size) return nullptr;
  int chosen = -1;
  for (int slot = 0; slot < layout_slots; ++slot) {
    const auto at = static_cast<std::size_t>(slot);
    if (published_[at] && published_[at]->number == sent.number) {
      published_used_[at] = ++uses_;
      return published_[at];
    }
    const bool idle = !published_[at] || published_[at].use_count() == 1;
    if (idle && (chosen < 0 || published_used_[at] < published_used_[static_cast<std::size_t>(chosen)])) chosen = slot;
  }
  if (chosen < 0 || !own.make_layout_slot(chosen)) return nullptr;
  const auto at = static_cast<std::size_t>(chosen);
  published_[at].reset();
  std::copy(sent.bytes.begin(), sent.bytes.end(), own->layouts[chosen]);
  published_used_[at] = ++uses_;
  return published_[at] = std::make_shared<PublishedLayout>(chosen, sent.number);
}

datatype::LayoutRef Layouts::find(const Segment& sender, const Descriptor& descriptor) {
  const std::pair<int, std::uint64_t> key = {sender->rank, descriptor.layout_number};
  if (const auto known = numbered_.find(key); known != numbered_.end())
    if (datatype::LayoutRef layout = known->second.lock()) return layout;
  const int slot = descriptor.layout_slot;
  const bool is_long = slot >= 0;
  const std::int64_t most = is_long ? layout_slot_size : std::int64_t{descriptor_data};
  if (slot >= layout_slots || descriptor.layout_bytes < 0 || descriptor.layout_bytes > most) return nullptr;
  const std::span<const std::byte> bytes(is_long ? sender->layouts[slot] : descriptor.data,
                                         static_cast<std::size_t>(descriptor.layout_bytes));
  const auto alike = std::find_if(received_.rbegin(), received_.rend(),
                                  [&](const Received& each) { return std::ranges::equal(each.bytes, bytes); });
  datatype::LayoutRef layout = alike != received_.rend() ? alike->layout : datatype::Layout::from_bytes(bytes);
  if (!layout) return nullptr;
  if (alike == received_.rend()) {
    make_room(received_);
    const auto kept = is_long ? bytes.first(0) : bytes;
    received_.push_back({{kept.begin(), kept.end()}, layout});
  }
  if (numbered_.size() >= numbers_kept) numbered_.clear();
  numbered_[key] = layout;
  return layout;
}

void Layouts::clear() {
  sent_.clear();
  long_.clear();
  received_.clear();
  numbered_.clear();
}

}  // namespace gpudt::interpose::peer
