// What moving data costs on one GPU of one machine: all constants that choices are made from. The defaults are medians
// on an H200 over PCIe 5; gpudt-tune measures the values of a machine (tuning.hpp reads them).
#pragma once

#include <cstdint>
#include <string>

namespace gpudt::device {

/// Smallest DRAM access (one sector).
inline constexpr std::int64_t sector_bytes = 32;

/// Costs of one way in one direction: a message takes base_us until the host sees the flag, plus CostModel::per_call_us
/// for each call after the first (or per_run_us for each further run that the same call moves to the host), plus the
/// time for its rows or that for its bytes, whichever is longer.
struct Cost {
  double base_us;
  double row_ns;
  double bytes_per_us;
};

/// When a transfer counts as having a start delay, and how long that observation is believed (delay.hpp).
struct Lateness {
  /// Lateness below this is noise; so is a time within `model_error` times the estimate.
  double significant_us = 20;
  double model_error = 3;
  /// In place of model_error for runs that one call moves from the host: their time is known better, and the wait for a
  /// time slice is not much longer than the time for a hundred runs.
  double runs_error = 1.5;
  /// In place of model_error for long messages moved by kernels, whose time depends on more than their size.
  double rough_error = 12;
  /// A delay is believed for `belief` times its length, within the two limits; then a message tries again. So retries
  /// cost at most 1 % of the time, and a delay is forgotten soon after it has ended.
  double belief = 100;
  double shortest_belief_us = 5e3;
  double longest_belief_us = 2e6;
  /// If both ways are believed late and their estimates differ by less than this factor, they are tried in turn: what
  /// delays one of them may have ended.
  double alike = 2;
  /// What a kernel costs where processes take turns on the GPU: it waits some 145 us for its turn, and the other
  /// process's next kernel waits as long for its own.
  double turn_us = 300;
  /// For how long after the last known use by another process turns are expected.
  double turns_believed_us = 100e3;
};

struct CostModel {
  Cost kernel_pack_to_host = {7.3, 0, 51e3};
  Cost kernel_unpack_from_host = {8.4, 0, 49.5e3};
  Cost kernel_on_device = {7.0, 0, 1100e3};

  Cost copy_pack_to_host = {6.1, 1.25, 54e3};
  Cost copy_unpack_from_host = {6.6, 0, 54e3};  ///< contiguous data
  Cost copy_rows_unpack_from_host = {7.6, 1.9, 53e3};
  /// Runs that one call moves from the host; each counts as a row (for those to the host see per_run_us). Measured on
  /// an idle GPU and beside a kernel of the same process that fills it: 2 runs take 13.1 and 9.1 us, 4 take 12.7
  /// and 10.4, 8 take 19.4 and 13.5, 16 take 19.7 and 21.2, 32 take 30.2 and 32.6, 64 take 56 and 63.
  Cost copy_runs_unpack_from_host = {8.8, 850, 53e3};
  /// Only for large contiguous messages: kernels are quicker for all others.
  Cost copy_on_device = {9.5, 1000, 1200e3};
  /// One side is memory of another GPU. The rows are the sectors of 32 bytes, whole or in part, that are read from
  /// there.
  Cost kernel_to_peer = {7.9, 0.117, 360e3};
  /// A message is packed before a peer fetches it only if that is estimated to be this many times faster, since the
  /// receiver still has to unpack.
  double packing_gain = 1.5;
  Cost copy_to_peer = {5.8, 0.6, 385e3};

  /// What the host takes to pack a message from a copied span; each run counts as a row. The copy of the span itself
  /// has a single row.
  Cost host_pack = {0.1, 20, 8e3};

  double per_call_us = 2.4;
  /// Each run after the first that one call copies to the host (Runtime::copy_runs_async()).
  double per_run_us = 0.36;

  /// What one more message adds to a launch of several, besides its bytes.
  double batch_job_us = 0.2;
  /// What a copy adds to a stream that already has work, besides its bytes: the call, setting the flag, and the
  /// engine's pause between two copies.
  double extra_copy_us = 4.0;

  /// A short job of the persistent kernel (resident.hpp); a job that takes much longer has begun late.
  double resident_us = 4.0;

  /// Copies from the host of a single row shorter than this are executed where kernels run, not by the copy
  /// engine, also if one call moves several: they wait for time slices of other processes as kernels do, but not for
  /// other kernels of this process.
  double engine_row_bytes = 64 << 10;
  /// Single rows from this length on are also quicker as two rows.
  double engine_quicker_bytes = 4 << 10;

  Lateness lateness;
};

/// Calls visit(name, value, least) for each constant of a CostModel, const or not: `name` is its name in a tuning file,
/// `value` a reference to it, and no value below `least` makes sense.
template <class Model, class Visit>
void for_each_constant(Model& model, Visit&& visit) {
  constexpr double slowest_bytes_per_us = 1;
  const auto cost = [&](const std::string& name, auto& way) {
    visit(name + ".base_us", way.base_us, 0.0);
    visit(name + ".row_ns", way.row_ns, 0.0);
    visit(name + ".bytes_per_us", way.bytes_per_us, slowest_bytes_per_us);
  };
  cost("kernel_pack_to_host", model.kernel_pack_to_host);
  cost("kernel_unpack_from_host", model.kernel_unpack_from_host);
  cost("kernel_on_device", model.kernel_on_device);
  cost("copy_pack_to_host", model.copy_pack_to_host);
  cost("copy_unpack_from_host", model.copy_unpack_from_host);
  cost("copy_rows_unpack_from_host", model.copy_rows_unpack_from_host);
  cost("copy_runs_unpack_from_host", model.copy_runs_unpack_from_host);
  cost("copy_on_device", model.copy_on_device);
  cost("kernel_to_peer", model.kernel_to_peer);
  cost("copy_to_peer", model.copy_to_peer);
  cost("host_pack", model.host_pack);
  visit(std::string("packing_gain"), model.packing_gain, 0.0);
  visit(std::string("per_call_us"), model.per_call_us, 0.0);
  visit(std::string("per_run_us"), model.per_run_us, 0.0);
  visit(std::string("batch_job_us"), model.batch_job_us, 0.0);
  visit(std::string("extra_copy_us"), model.extra_copy_us, 0.0);
  visit(std::string("resident_us"), model.resident_us, 0.0);
  visit(std::string("engine_row_bytes"), model.engine_row_bytes, 0.0);
  visit(std::string("engine_quicker_bytes"), model.engine_quicker_bytes, 0.0);
  visit(std::string("lateness.significant_us"), model.lateness.significant_us, 0.0);
  visit(std::string("lateness.model_error"), model.lateness.model_error, 1.0);
  visit(std::string("lateness.runs_error"), model.lateness.runs_error, 1.0);
  visit(std::string("lateness.rough_error"), model.lateness.rough_error, 1.0);
  visit(std::string("lateness.belief"), model.lateness.belief, 0.0);
  visit(std::string("lateness.shortest_belief_us"), model.lateness.shortest_belief_us, 0.0);
  visit(std::string("lateness.longest_belief_us"), model.lateness.longest_belief_us, 0.0);
  visit(std::string("lateness.alike"), model.lateness.alike, 1.0);
  visit(std::string("lateness.turn_us"), model.lateness.turn_us, 0.0);
  visit(std::string("lateness.turns_believed_us"), model.lateness.turns_believed_us, 0.0);
}

}  // namespace gpudt::device
