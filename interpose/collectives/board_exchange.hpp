// Collectives that move blocks, each in one piece of device memory, by kernels of the receivers' GPUs: each process
// lists on its board what it gives and takes, and the leader of each GPU (board_call.hpp) fetches what its processes
// take.
#pragma once

#include "device/kernels/copy_blocks.hpp"
#include "interpose/collectives/block_messages.hpp"
#include "interpose/collectives/board_call.hpp"
#include "interpose/support/report.hpp"

namespace gpudt::interpose {

class BoardExchange : public BoardCall {
 public:
  using BoardCall::BoardCall;

  /// What this process is to tell: what it gives and takes. `fit`: messages could do it; `weight`: if that is positive
  /// in any process, they should. Returns whether GPUs could, for this process. It need not be told then.
  bool prepare(const BlockMessages& blocks, bool listed, bool fit, std::int64_t weight) noexcept;
  /// What all processes know once they have decided otherwise.
  bool all_want_messages() const;
  void report() const override;

 private:
  /// Of what a process gives, or of what it takes.
  struct Half {
    device::Exported memory{};
    int ordinal = -1;
  };
  static bool describe(const std::vector<BlockMessage>& blocks, std::vector<peer::Block>& entries, Half& half);
  bool all_agree() const override;
  bool map() override;
  void start(std::vector<device::Transfer>& kernels) override;
  int ordinal() const override { return ordinal_; }
  bool match(std::size_t receiver);

  const ReportClock::time_point began_ = report_now();
  int ordinal_ = -1;
  std::vector<void*> from_, to_;  ///< by rank: `from.base` and `to.base` as this process's GPU reaches them
  std::vector<device::BlockCopy> moves_;
};

}  // namespace gpudt::interpose
