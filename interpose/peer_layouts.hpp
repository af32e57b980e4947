// Layouts that travel with offers (peer.hpp). A receiver is told a layout's number, and reads the layout itself, out of
// the sender's segment, if it does not know it yet: short ones lie in the descriptor, long ones in slots of their own.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "datatype/layout.hpp"
#include "interpose/peer_segment.hpp"

namespace gpudt::interpose::peer {

/// A long layout in this process's segment, which stays there as long as anybody but Layouts holds this.
struct PublishedLayout {
  int slot;
  std::uint64_t number;
};
using PublishedRef = std::shared_ptr<const PublishedLayout>;

/// Those that a process has sent and received. For one thread at a time. May throw std::bad_alloc.
class Layouts {
 public:
  /// Tells in `descriptor`, which is of segment `own`, what the layout is. `published` is to be held until the receiver
  /// is done. False if it is too long, or if it is long and has not been sent so often that it is worth the trouble.
  bool describe(Segment& own, Descriptor& descriptor, const datatype::LayoutRef& layout, PublishedRef& published);

  /// The layout that a descriptor of segment `sender` tells; the same object for the same bytes, as far as that is
  /// remembered, since the GPU's copy is kept with it. Null if it is damaged.
  datatype::LayoutRef find(const Segment& sender, const Descriptor& descriptor);

  void clear();

 private:
  struct Sent {
    datatype::LayoutRef layout;
    std::uint64_t number;  ///< from 1 on, and never used again
    std::vector<std::byte> bytes;
  };
  struct Received {
    std::vector<std::byte> bytes;  ///< none of long ones
    datatype::LayoutRef layout;
  };
  struct Long {
    std::weak_ptr<const datatype::Layout> layout;
    std::int64_t uses;
  };
  const Sent& sent(const datatype::LayoutRef& layout);
  bool worth_publishing(const datatype::LayoutRef& layout);
  PublishedRef publish(Segment& own, const Sent& sent);

  std::vector<Sent> sent_;  ///< few, latest last
  std::uint64_t numbers_ = 0;
  std::vector<Long> long_;  ///< likewise
  std::array<PublishedRef, layout_slots> published_;
  std::array<std::uint64_t, layout_slots> published_used_ = {};
  std::uint64_t uses_ = 0;
  std::vector<Received> received_;                                                           ///< likewise
  std::map<std::pair<int, std::uint64_t>, std::weak_ptr<const datatype::Layout>> numbered_;  ///< by sender and number
};

}  // namespace gpudt::interpose::peer
