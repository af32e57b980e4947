// Layouts that travel with offers (transport/peer/peer.hpp). An offer has the sender's number of a layout. The receiver
// reads a new layout itself: a short one in the descriptor, a long one in a slot of the sender's segment.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "datatype/layout.hpp"
#include "interpose/shared/shared_segment.hpp"

namespace gpudt::interpose::peer {

/// A long layout is published in the segment only after enough messages have used it: each message earns this many
/// bytes, and a layout is published when it has earned its own size. Publishing costs sender, receiver and receiving
/// GPU about 1 us per KiB. Before that, the data are packed first and the packed copy is fetched. Between two GPUs that
/// is one kernel more; on one GPU, whose processes take turns, it is one that waits, and makes the others wait.
inline constexpr std::size_t published_by_message = 8 << 10;
inline constexpr std::size_t published_by_message_on_one_gpu = 128 << 10;

/// Whether this is the layout that is remembered, and not another one at the address of one that has been freed.
inline bool is_same(const std::weak_ptr<const datatype::Layout>& known, const datatype::LayoutRef& layout) {
  return !known.owner_before(layout) && !layout.owner_before(known);
}

/// A long layout in this process's segment. It stays there while a PublishedRef outside Layouts refers to it.
struct PublishedLayout {
  int slot;
  std::uint64_t number;
};
using PublishedRef = std::shared_ptr<const PublishedLayout>;

/// The layouts that this process has sent and received. For one thread at a time; any thread may release PublishedRefs.
/// May throw std::bad_alloc.
class Layouts {
 public:
  /// Writes the layout's name into `place`, and a short layout into the descriptor's `data`; `own` is this process's
  /// segment. `published` is to be held until the other process is done. False if the layout is too long, or if it is
  /// long and its messages, `effort` bytes each, have not earned publishing yet.
  bool describe(Segment& own, Descriptor& descriptor, std::span<std::byte> data, RemoteBuffer& place,
                const datatype::LayoutRef& layout, std::size_t effort, PublishedRef& published);
  /// The name of a short layout, of which the caller copies the bytes at once.
  LayoutName name_short(const datatype::LayoutRef& layout, std::span<const std::byte>& bytes);
  /// The name of a long layout, published as by describe(); number 0 if it is not published.
  LayoutName name_long(Segment& own, const datatype::LayoutRef& layout, std::size_t effort, PublishedRef& published);

  /// The layout that the process of segment `other` has named; `beside` is where a short one lies. The same object for
  /// the same number, or short layout, while it is remembered: the GPU's copy is kept with it. Null if damaged.
  datatype::LayoutRef find(const Segment& other, const LayoutName& name, std::span<const std::byte> beside);

  void clear();

 private:
  // Numbers are from 1 on, and never used again.
  struct Short {
    std::weak_ptr<const datatype::Layout> layout;
    std::uint64_t number;
    std::vector<std::byte> bytes;
  };
  struct Long {
    std::weak_ptr<const datatype::Layout> layout;
    std::uint64_t number;
    std::size_t earned;  ///< bytes, since it was published last
  };
  struct Slot {
    PublishedRef layout;
    std::uint64_t used = 0;
    std::size_t made = 0;  ///< bytes of memory
  };
  struct Received {
    std::vector<std::byte> bytes;  ///< empty for long ones
    datatype::LayoutRef layout;
    std::uint64_t used;
  };
  using ReceivedList = std::vector<std::shared_ptr<Received>>;
  const Short& short_one(const datatype::LayoutRef& layout);
  Long& long_one(const datatype::LayoutRef& layout);
  PublishedRef publish(Segment& own, const datatype::LayoutRef& layout, std::size_t effort);
  Slot* oldest_idle(bool with_memory);
  Slot* room_for(Segment& own, std::size_t bytes);
  void empty(Segment& own, Slot& slot);
  int index_of(const Slot& slot) const { return static_cast<int>(&slot - slots_.data()); }
  static void forget_oldest(ReceivedList& received, std::size_t bytes);

  std::unordered_map<const datatype::Layout*, Short> short_;
  std::size_t short_swept_ = 0;  ///< size of short_ after freed layouts were last removed
  std::vector<Long> long_;       ///< few
  // The latest is last.
  ReceivedList received_short_, received_long_;
  std::array<Slot, layout_slots> slots_;
  std::uint64_t numbers_ = 0, clock_ = 0;
  /// The layouts of another process, by its numbers.
  using Numbered = std::unordered_map<std::uint64_t, std::weak_ptr<Received>>;
  std::unordered_map<int, Numbered> numbered_;
};

}  // namespace gpudt::interpose::peer
