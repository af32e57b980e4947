// What the cost model expects of the ways to move a message (forecast.cpp).
#pragma once

#include "datatype/layout.hpp"
#include "device/choice/copy_plan.hpp"

namespace gpudt::device {

struct Forecast {
  CopyPlan copy_plan;   ///< for the copy engine; empty: it cannot move the message run by run
  datatype::Span span;  ///< to be copied and packed by the host, if that is the best use of the copy engine; else empty
  double kernel_us, kernel_late_us, copy_us = 0, copy_late_us = 0;
  bool copy_better = false;
  bool together = false;                 ///< one call copies up to CopyPlan::most_together runs
  bool short_runs = false;               ///< these come from the host: Channel::short_runs applies
  bool in_pairs = false;                 ///< each copy moves two runs, where possible
  double span_us = 0;                    ///< estimate for copying and packing the span; 0: there is none
  double job_us = 0, extra_copy_us = 0;  ///< what it adds to a batch; what a copy adds to a busy stream

  bool can_copy() const { return !copy_plan.empty() || span.bytes() != 0; }
};

}  // namespace gpudt::device
