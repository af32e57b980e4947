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

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "datatype/layout.hpp"
#include "device/choice/cost_model.hpp"
#include "device/runtime/copy_box.hpp"

namespace gpudt::device {

/// The copies that make up a range of a message, in the order of the packed stream, one for each call of its own; none
/// if the copy engine cannot. Runs may go several by one call. Either some that are listed, or one that is repeated
/// under further strides.
class CopyPlan {
 public:
  /// The rest of a row, whole rows, the beginning of a row: so many are listed without memory from the heap.
  static constexpr std::size_t most_within = 3;
  /// More would keep the host in calls for more than 3.5 ms, or 10 if each box has one of its own.
  static constexpr std::int64_t most_calls = 4096;
  /// Runs by one call (Runtime::copy_runs_async()).
  static constexpr std::int64_t most_together = 64;
  void add(const CopyBox& box);
  /// Of those that are to be added; there may be more.
  void reserve(std::int64_t copies);
  /// The only box again at each place of `dims` (outermost first), which are strides of its side `user`; on the other
  /// side each follows the one before. There must be no more than most_calls of them.
  void repeat(std::span<const datatype::Dim> dims, BoxSide CopyBox::*user);

  bool empty() const { return count_ == 0; }
  std::int64_t calls() const { return static_cast<std::int64_t>(count_ + further_.size()) * repetitions_; }
  std::int64_t rows() const;
  /// Several, each of a single row.
  bool are_runs() const { return calls() > 1 && rows() == calls(); }
  /// Of those listed.
  const CopyBox& first() const { return listed_[0]; }
  /// The box of call `index`, 0 <= index < calls().
  CopyBox operator[](std::int64_t index) const;

 private:
  std::array<CopyBox, most_within> listed_ = {};
  std::size_t count_ = 0;         ///< of listed_
  std::vector<CopyBox> further_;  ///< beyond those
  std::array<datatype::Dim, datatype::max_dims> dims_ = {};
  std::size_t ndims_ = 0;
  std::int64_t repetitions_ = 1;
  BoxSide CopyBox::*user_ = &CopyBox::from;
};

/// Packed bytes [begin, end) of the message, whose first byte lies at `packed`. An irregular one of at most `most_runs`
/// runs (no more than CopyPlan::most_calls) has a box for each run in the range if its layout is given.
CopyPlan copy_plan_of(const datatype::Shape& shape, bool unpack, void* user, void* packed, std::int64_t begin,
                      std::int64_t end, const datatype::Layout* layout = nullptr,
                      std::int64_t most_runs = CopyPlan::most_together);

/// Lower bound for the number of copy calls for `bytes` bytes; 0 if the copy engine cannot move the message (a positive
/// result does not promise that it can). Takes less time than copy_plan_of(), and no more for many runs. Of an
/// irregular message about so many: a few neighbours within its list may adjoin, and in a part of more than
/// CopyPlan::most_together runs these are taken to be as long as elsewhere.
std::int64_t least_calls(const datatype::Shape& shape, std::int64_t bytes, const datatype::Layout* layout = nullptr,
                         std::int64_t most_runs = CopyPlan::most_together);

/// Longer extents are not copied: they would need that much staging memory.
inline constexpr std::int64_t most_span_bytes = std::int64_t{4} << 20;
/// The span of all of a message, if it may come with what lies between its runs; else empty.
datatype::Span span_to_bring(const datatype::Layout& layout, const datatype::Shape& shape);

/// What moves the data of `from`, copies to packed memory, to where `to`, copies from packed memory, lead; none if the
/// two are not divided alike.
CopyPlan copy_plan_between(const CopyPlan& from, const CopyPlan& to);

/// Turns rows shorter than `row_bytes` into 2-row copies, which the copy engine executes: pairs rows of equal length,
/// or (if `in_pairs` is false or there is no partner) splits a row in two. CopyPlan of more rows, and of a single byte,
/// stay as they are. In another order.
CopyPlan in_two_rows(const CopyPlan& copy_plan, double row_bytes, bool in_pairs = true);
/// Whether there is a single row of less than `row_bytes` bytes.
bool has_short_row(const CopyPlan& copy_plan, double row_bytes);

/// Where the packed side lies.
struct TransferContext {
  bool unpack = false;
  bool packed_is_host = false;  ///< else it is memory of the same GPU
  bool peer = false;            ///< ... or one side is memory of another
  bool runs_together = false;   ///< several runs go by one call (Runtime::copy_runs_async())
};

/// Estimated microseconds until the host sees the completion flag, for a kernel without start delay.
double kernel_cost_us(const CostModel& model, std::int64_t bytes, const TransferContext& context);
/// What a message adds to a kernel that moves others, too.
double batch_job_cost_us(const CostModel& model, std::int64_t bytes, const TransferContext& context);
double copy_cost_us(const CostModel& model, std::int64_t bytes, const CopyPlan& copy_plan,
                    const TransferContext& context);
/// Of all of a message that the copy engine brings to the host as a span, for the host to pack; of which the copy
/// alone.
double span_cost_us(const CostModel& model, const datatype::Span& span, const datatype::Layout& layout,
                    const datatype::Shape& shape);
double span_copy_cost_us(const CostModel& model, const datatype::Span& span);
/// No copy of `bytes` bytes of a message of such a shape in `calls` copies or more takes less.
double least_copy_cost_us(const CostModel& model, const datatype::Shape& shape, std::int64_t bytes, std::int64_t calls,
                          const TransferContext& context);
/// Additional cost as a copy while the channel already has work. Those from peers take as long as alone: of streams of
/// 2 and 4 MiB, by copies of one or two CUDA streams, each took what copy_to_peer says, to 2 %.
double extra_copy_cost_us(const CostModel& model, std::int64_t bytes, const CopyPlan& copy_plan,
                          const TransferContext& context);

/// What a way takes, and by how much work that goes so begins late at the moment; when that was last seen.
struct Estimate {
  double us;
  double late_us;
  std::int64_t late_seen = 0;  ///< Delay::seen()
};
/// Whether to move something by copies rather than by a kernel: the faster one; when both have start delays and similar
/// estimates, the one whose start delay was observed less recently.
bool copy_is_better(const Estimate& copy, const Estimate& kernel, const Lateness& lateness);

/// Estimated microseconds that a kernel takes to pack `count` elements into memory of the same GPU.
double packing_cost_us(const CostModel& model, const datatype::Layout& layout, std::int64_t count);

/// Whether a message is fetched sooner by a peer if it is packed first (device.hpp).
/// `span`: of all of it.
bool better_packed_for_peers(const CostModel& model, const datatype::Shape& shape, const datatype::Span& span);

}  // namespace gpudt::device
