// Whether a kernel or the copy engine moves a message, from a model of what each costs (cost_model.hpp). Pure
// functions.
//
// The copy engine starts sooner than a kernel, works while other kernels fill the GPU, and is not time-sliced between
// processes as the multiprocessors are. But it costs
//   - nanoseconds for each row of a strided message,
//   - a microsecond or more for each call; one call copies up to three dimensions,
//   - up to a microsecond for each run of an irregular message, of which one call copies many.
// Short runs from the host that one call copies are moved by the multiprocessors, so that they wait for time slices;
// copied as two rows by one call, they are not. Alternatively the whole extent is copied to the host and packed there;
// this works for any layout that is dense enough.
#pragma once

#include <cstdint>

#include "datatype/layout.hpp"
#include "device/choice/copy_plan.hpp"
#include "device/choice/cost_model.hpp"

namespace gpudt::device {

/// In which direction the data move, and in which memory the packed side lies.
struct TransferContext {
  bool unpack = false;
  bool packed_is_host = false;  ///< false: the packed side is memory of the same GPU, or `peer` is set
  bool peer = false;            ///< one side is memory of another GPU
  bool runs_together = false;   ///< one call moves several runs (Runtime::copy_runs_async())
};

/// Estimated microseconds until the host sees the completion flag, for a kernel without start delay.
double kernel_cost_us(const CostModel& model, std::int64_t bytes, const TransferContext& context);
/// Estimated microseconds that a message adds to a kernel that also moves others.
double batch_job_cost_us(const CostModel& model, std::int64_t bytes, const TransferContext& context);
/// Estimated microseconds for the copies of `copy_plan`, without start delay.
double copy_cost_us(const CostModel& model, std::int64_t bytes, const CopyPlan& copy_plan,
                    const TransferContext& context);
/// Estimated microseconds to copy the span of a whole message to the host and pack it there.
double span_cost_us(const CostModel& model, const datatype::Span& span, const datatype::Layout& layout,
                    const datatype::Shape& shape);
/// The part of span_cost_us() that the copy takes.
double span_copy_cost_us(const CostModel& model, const datatype::Span& span);
/// A lower bound for copy_cost_us() of `bytes` bytes of a message of this shape in at least `calls` copies.
double least_copy_cost_us(const CostModel& model, const datatype::Shape& shape, std::int64_t bytes, std::int64_t calls,
                          const TransferContext& context);
/// Estimated microseconds that a copy adds to a channel that already has work. Concurrent copies from peers do not
/// overlap: each of several copies of 2 or 4 MiB, on one or two CUDA streams, took what copy_to_peer says, within 2 %.
double extra_copy_cost_us(const CostModel& model, std::int64_t bytes, const CopyPlan& copy_plan,
                          const TransferContext& context);

/// How long one way of moving data is expected to take.
struct Estimate {
  double us;                   ///< without start delay
  double late_us;              ///< the start delay
  std::int64_t late_seen = 0;  ///< when a start delay was last seen: Delay::seen()
};
/// Whether to move something by copies rather than by a kernel: the faster one; when both have start delays and similar
/// estimates, the one whose start delay was observed less recently.
bool copy_is_better(const Estimate& copy, const Estimate& kernel, const Lateness& lateness);

/// Estimated microseconds that a kernel takes to pack `count` elements into memory of the same GPU.
double packing_cost_us(const CostModel& model, const datatype::Layout& layout, std::int64_t count);

/// Whether a peer gets a message sooner if it is packed first. `span` is that of the whole message.
bool better_packed_for_peers(const CostModel& model, const datatype::Shape& shape, const datatype::Span& span);

}  // namespace gpudt::device
