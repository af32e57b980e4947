// Exponential back-off.
#pragma once

#include <algorithm>

namespace gpudt {

/// After attempts that have failed, `first` are left out before the next one; twice as many each time that this fails,
/// too, up to `most`.
template <int first, int most>
class Backoff {
 public:
  /// To be asked before each attempt: whether it is to be left out.
  bool passes() { return left_ > 0 && left_-- > 0; }
  /// Whether the next one is to be.
  bool waits() const { return left_ > 0; }
  /// Whether the last one has failed.
  bool failing() const { return passing_ > 0; }

  void failed() {
    passing_ = passing_ == 0 ? first : std::min(2 * passing_, most);
    left_ = passing_;
  }
  /// The next attempt is made.
  void worked() { passing_ = left_ = 0; }

 private:
  int passing_ = 0;  ///< that the last failure has made
  int left_ = 0;     ///< of these
};

}  // namespace gpudt
