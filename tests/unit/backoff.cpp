// Exponential back-off (base/backoff.hpp).
#include "base/backoff.hpp"

#include "tests/support/catch.hpp"

using gpudt::Backoff;

namespace {

/// How many attempts are left out before the next one.
template <class Any>
int left_out(Any& backoff) {
  int left = 0;
  while (backoff.passes()) ++left;
  return left;
}

}  // namespace

TEST_CASE("backoff: twice as many attempts are left out after each failure, up to the most", "[chooser]") {
  Backoff<2, 16> backoff;
  CHECK(left_out(backoff) == 0);
  for (const int expected : {2, 4, 8, 16, 16}) {
    backoff.failed();
    CHECK(backoff.waits());
    CHECK(backoff.failing());
    CHECK(left_out(backoff) == expected);
    CHECK_FALSE(backoff.waits());
  }
}

TEST_CASE("backoff: after a success the next attempt is made, and counting begins anew", "[chooser]") {
  Backoff<2, 16> backoff;
  backoff.failed();
  backoff.failed();
  backoff.worked();
  CHECK_FALSE(backoff.failing());
  CHECK(left_out(backoff) == 0);
  backoff.failed();
  CHECK(left_out(backoff) == 2);
}
