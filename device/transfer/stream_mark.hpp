// A point in a GPU's default stream that transfers wait for: the program's own work up to there comes first.
#pragma once

#include <cstdint>

namespace gpudt::device {

/// A point in the default stream of a GPU; reached when all work queued before it has completed (like a CUDA event).
class StreamMark {
 public:
  StreamMark() = default;  ///< nothing to wait for
  /// Once true, stays true. Reads one word of memory, and takes a lock unless the answer is known.
  bool reached() const { return number_ == 0 || is_reached(); }
  /// Polls until reached().
  void wait() const;

 private:
  friend StreamMark mark_default_stream(int ordinal);
  StreamMark(int ordinal, std::uint64_t number) : ordinal_(ordinal), number_(number) {}
  bool is_reached() const;

  int ordinal_ = 0;
  std::uint64_t number_ = 0;  ///< DefaultStream::mark()
};

/// While it lives, marks of the calling thread are empty: the stream in which its operation has been enqueued has put
/// the operation in order, and the default stream may wait for that one.
class OrderedByStream {
 public:
  explicit OrderedByStream(bool ordered = true);
  ~OrderedByStream();
  OrderedByStream(const OrderedByStream&) = delete;
  OrderedByStream& operator=(const OrderedByStream&) = delete;

 private:
  bool before_;
};
namespace detail {
extern constinit thread_local bool ordered_by_stream;
}
/// Whether one lives in this thread.
inline bool is_ordered_by_stream() {
  return detail::ordered_by_stream;
}

/// Marks the present end of the default stream of GPU `ordinal`. Call it when the program's call begins, not later:
/// work that the program adds meanwhile may wait for the call to end. Thread-safe. Throws Error.
StreamMark mark_default_stream(int ordinal);

}  // namespace gpudt::device
