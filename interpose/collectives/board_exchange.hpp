// Collectives that move contiguous blocks of device memory, by kernels of the receivers' GPUs. Each process lists on
// its board the blocks that it sends and receives. The leader of each GPU (board_call.hpp) fetches the blocks that the
// processes of this GPU receive.
#pragma once

#include "device/device.hpp"
#include "interpose/collectives/block_messages.hpp"
#include "interpose/collectives/board_call.hpp"
#include "interpose/support/report.hpp"

namespace gpudt::interpose {

class BoardExchange : public BoardCall {
 public:
  using BoardCall::BoardCall;

  /// Prepares what this process publishes: the blocks that it sends and receives. `fit`: messages between GPUs could do
  /// the call. `weight`: messages should do it if this is positive in any process. Returns whether this process's
  /// blocks allow kernels to do it.
  bool prepare(const BlockMessages& blocks, bool listed, bool fit, std::int64_t weight) noexcept;
  /// After Decision::otherwise: whether messages do the call. All processes get the same answer.
  bool all_want_messages() const;
  void report() const override;

 private:
  /// The memory that holds all blocks which a process sends, or all which it receives.
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
