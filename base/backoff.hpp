// Exponential back-off.
#pragma once

#include <algorithm>

namespace gpudt {

/// Says which attempts to skip: after a failed attempt the next `first`, and after each further failure twice as many,
/// up to `most`.
template <int first, int most>
class Backoff {
 public:
  /// Call before each attempt: true if it is to be skipped.
  bool passes() { return left_ > 0 && left_-- > 0; }
  /// Whether passes() would return true.
  bool waits() const { return left_ > 0; }
  /// Whether the latest attempt failed.
  bool failing() const { return passing_ > 0; }

  void failed() {
    passing_ = passing_ == 0 ? first : std::min(2 * passing_, most);
    left_ = passing_;
  }
  /// Resets the back-off.
  void worked() { passing_ = left_ = 0; }

 private:
  int passing_ = 0;  ///< attempts to skip after the latest failure
  int left_ = 0;     ///< those of them still to be skipped
};

}  // namespace gpudt
