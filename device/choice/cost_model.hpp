// What moving data costs on one GPU of one machine: the constants that every choice is made from, in one place. The
// defaults are medians on an H200 over PCIe 5; gpudt-tune measures a machine's own (tuning.hpp reads them).
#pragma once

#include <cstdint>
#include <string>

namespace gpudt::device {

/// Smallest DRAM access (one sector).
inline constexpr std::int64_t sector_bytes = 32;

/// Costs of one way in one direction: a message takes base_us until the host sees the flag, CostModel::per_call_us for
/// each call beyond the first (or per_run_us for each run that goes to the host by the same call), and the greater of
/// what its rows and its bytes take.
struct Cost {
  double base_us;
  double row_ns;
  double bytes_per_us;
};

/// When a transfer counts as having a start delay, and how long that observation is believed (delay.hpp).
struct Lateness {
  /// Lateness below this is noise, as is what a model that is wrong by the factor `model_error` would explain.
  double significant_us = 20;
  double model_error = 3;
  /// The same of runs from the host by one call: their time is known better, and a wait for a time slice is not much
  /// longer than that of a hundred.
  double runs_error = 1.5;
  /// The same of long messages by kernels, whose time depends on more than their size.
  double rough_error = 12;
  /// A delay is believed for so many times its length, within limits; then a message tries again. Retrying costs at
  /// most 1 % of the time, and the delay is forgotten soon after it has ended.
  double belief = 100;
  double shortest_belief_us = 5e3;
  double longest_belief_us = 2e6;
  /// Two ways that are both believed late, so that they take about as long to within this factor, are tried in turn:
  /// what makes one of them late may have gone.
  double alike = 2;
  /// What a kernel costs where another process has the GPU in turns: it waits for its own, some 145 us, and the other
  /// one's next kernel waits as long again. How long that is expected after the other one's last use that is known.
  double turn_us = 300;
  double turns_believed_us = 100e3;
};

struct CostModel {
  Cost kernel_pack_to_host = {7.3, 0, 51e3};
  Cost kernel_unpack_from_host = {8.4, 0, 49.5e3};
  Cost kernel_on_device = {7.0, 0, 1100e3};

  Cost copy_pack_to_host = {6.1, 1.25, 54e3};
  Cost copy_unpack_from_host = {6.6, 0, 54e3};  ///< contiguous data
  Cost copy_rows_unpack_from_host = {7.6, 1.9, 53e3};
  /// Runs by one call, which are the rows (those to the host: per_run_us). Measured, with the GPU idle and beside a
  /// kernel of the same process that fills it: 2 runs 13.1 and 9.1 us, 4: 12.7 and 10.4, 8: 19.4 and 13.5, 16: 19.7 and
  /// 21.2, 32: 30.2 and 32.6, 64: 56 and 63.
  Cost copy_runs_unpack_from_host = {8.8, 850, 53e3};
  /// Contiguous only, and only if large: kernels are quicker at everything else.
  Cost copy_on_device = {9.5, 1000, 1200e3};
  /// One side is memory of a peer.
  /// The rows are sectors of 32 bytes, or parts of such, that are read from afar.
  Cost kernel_to_peer = {7.9, 0.117, 360e3};
  /// Pack before a peer fetches only if the estimate is at least this many times lower, since the receiver still has to
  /// unpack.
  double packing_gain = 1.5;
  Cost copy_to_peer = {5.8, 0.6, 385e3};

  /// What the host takes to pack a message that the copy engine has brought with all that lies between its runs: these
  /// are the rows. The copy is one of a single row.
  Cost host_pack = {0.1, 20, 8e3};

  double per_call_us = 2.4;
  /// A further run of a message that one call packs to the host (Runtime::copy_runs_async()).
  double per_run_us = 0.36;

  /// What one more message adds to a launch of several, besides its bytes; and a copy by itself to a stream that works
  /// anyway: the call, what sets the flag, and the engine's pause between two.
  double batch_job_us = 0.2;
  double extra_copy_us = 4.0;

  /// A short job of the persistent kernel (resident.hpp): what takes much longer has begun late.
  double resident_us = 4.0;

  /// Copies of one row of less than this from the host, alone or several by one call, are done by the multiprocessors'
  /// side of the GPU, not by the copy engine: they wait where kernels wait for those of other processes, though not
  /// where they wait for others of this one.
  double engine_row_bytes = 64 << 10;
  /// From here on, two rows are quicker besides.
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
