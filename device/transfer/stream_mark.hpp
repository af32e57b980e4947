// What the program has given to a GPU's default stream, as a point that transfers wait for.
#pragma once

#include <cstdint>

namespace gpudt::device {

/// A point in the default stream of a GPU; reached when all work queued before it has completed (like a CUDA event).
class StreamMark {
 public:
  StreamMark() = default;  ///< nothing to wait for
  /// A mark recorded lazily, by make() or the first reached(). For blocking calls, which do other work first. Each copy
  /// makes its own. Not to outlive the program's call.
  static StreamMark late(int ordinal);
  bool made() const { return number_ != unmade; }
  /// Throws Error.
  void make() const;
  /// Stays true. Costs a look at memory, and a lock unless it is known.
  bool reached() const;
  /// Polls until then.
  void wait() const;

 private:
  friend StreamMark mark_default_stream(int ordinal);
  StreamMark(int ordinal, std::uint64_t number) : ordinal_(ordinal), number_(number) {}
  static constexpr std::uint64_t unmade = ~std::uint64_t{0};
  int ordinal_ = 0;
  mutable std::uint64_t number_ = 0;  ///< see DefaultStream
};

/// Marks the default stream of GPU `ordinal` as it is now. To be called when the program makes its call, not later:
/// what it puts there meanwhile may wait for the call to end. Thread-safe. Throws Error.
StreamMark mark_default_stream(int ordinal);

}  // namespace gpudt::device
