// A point in a stream that transfers wait for: the program's own work up to there comes first.
#pragma once

#include <cstdint>

namespace gpudt::device {

class Gate;

/// A point in a stream of a GPU; reached when all work queued before it has completed (like a CUDA event).
class StreamMark {
 public:
  StreamMark() = default;  ///< nothing to wait for
  /// Where the stream comes to a gate outside of graphs for the `passage`th time.
  StreamMark(const Gate& gate, std::uint32_t passage) : gate_(&gate), number_(passage) {}
  /// Once true, stays true. Reads one word of memory, and takes a lock unless the answer is known. Throws Error if the
  /// stream will not be waited for (Gate::give_up()).
  bool reached() const { return (number_ == 0 && gate_ == nullptr) || is_reached(); }
  /// Polls until reached().
  void wait() const;

 private:
  friend StreamMark mark_default_stream(int ordinal);
  StreamMark(int ordinal, std::uint64_t number) : ordinal_(ordinal), number_(number) {}
  bool is_reached() const;

  const Gate* gate_ = nullptr;  ///< null: the default stream of GPU ordinal_
  int ordinal_ = 0;
  std::uint64_t number_ = 0;  ///< DefaultStream::mark(), or of the passage
};

/// While it lives, marks of the calling thread are `mark`, or empty: the stream in which its operation has been
/// enqueued puts the operation in order, and the default stream may wait for that one.
class OrderedByStream {
 public:
  explicit OrderedByStream(bool ordered = true, const StreamMark& mark = {});
  ~OrderedByStream();
  OrderedByStream(const OrderedByStream&) = delete;
  OrderedByStream& operator=(const OrderedByStream&) = delete;

 private:
  bool before_;
  StreamMark mark_before_;
};
namespace detail {
extern constinit thread_local bool ordered_by_stream;
}
/// Whether one lives in this thread.
inline bool is_ordered_by_stream() {
  return detail::ordered_by_stream;
}

/// Marks the present end of the default stream of GPU `ordinal`, unless the calling thread has another mark. Call it
/// when the program's call begins, not later: work that the program adds meanwhile may wait for the call to end.
/// Thread-safe. Throws Error.
StreamMark mark_default_stream(int ordinal);

}  // namespace gpudt::device
