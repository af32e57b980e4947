// Exponential back-off.
#pragma once

#include <algorithm>

namespace gpudt {

/// After attempts that have failed, `first` are left out before the next one; twice as many each time that this fails,
/// too, up to `most`. `failures`: in a row, before any is left out.
template <int first, int most, int failures = 1>
class Backoff {
 public:
  /// To be asked before each attempt: whether it is to be left out.
  bool passes() { return left_ > 0 && left_-- > 0; }
  /// Whether the next one is to be.
  bool waits() const { return left_ > 0; }
  /// Whether the last one has failed.
  bool failing() const { return failed_ > 0; }

  void failed() {
    failed_ = std::min(failed_ + 1, failures);
    if (failed_ < failures) return;
    passing_ = passing_ == 0 ? first : std::min(2 * passing_, most);
    left_ = passing_;
  }
  /// The next attempt is made.
  void worked() { failed_ = passing_ = left_ = 0; }

 private:
  int failed_ = 0;   ///< in a row, as far as it matters
  int passing_ = 0;  ///< that the last failure has made
  int left_ = 0;     ///< of these
};

}  // namespace gpudt
