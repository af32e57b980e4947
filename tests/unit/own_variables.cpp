// The places of gpudt's counters among the variables of an MPI library that adds some later.
#include "interpose/calls/own_variables.hpp"

#include "interpose/support/report.hpp"
#include "tests/support/catch.hpp"

using namespace gpudt::interpose;

TEST_CASE("Variables that the MPI library adds come behind gpudt's, which stay where they are", "[datatype]") {
  constexpr int own = 13, before = 5, after = 8, started_anew = 3;
  const gpudt::LockGuard lock(numbering);
  buffers_followed = true;
  CHECK(number_with_own(before) == before + own);
  CHECK(own_index("gpudt_buffers_by_gpus", before) == before);
  for (const int now : {before, after}) {
    CHECK(number_with_own(now) == now + own);
    CHECK(own_index("gpudt_buffers_by_gpus", now) == before);
    CHECK_FALSE(own_index("buffers_by_gpus", now).has_value());
    for (int index = 0; index < now + own; ++index) {
      const Variable variable = variable_at(index, now);
      CHECK(variable.own == (index >= before && index < before + own));
      if (!variable.own) CHECK(shown_index(variable.index, now) == index);
      if (variable.own) CHECK(own_index(own_name(variable.index).c_str(), now) == index);
    }
  }
  CHECK(own_index("gpudt_buffers_by_gpus", started_anew) == started_anew);
  CHECK(number_with_own(started_anew) == started_anew + own);
  buffers_followed = false;
  CHECK(number_with_own(after) == after);
  CHECK(shown_index(after - 1, after) == after - 1);
  CHECK_FALSE(variable_at(after - 1, after).own);
}
