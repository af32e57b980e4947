// Collectives that move blocks, each in one piece of device memory, by kernels of the receivers' GPUs: each process
// lists on its board what it gives and takes, and the leader of each GPU (board_call.hpp) fetches what its processes
// take.
#pragma once

#include "device/copy_blocks.hpp"
#include "interpose/collectives/block_messages.hpp"
#include "interpose/collectives/board_call.hpp"

namespace gpudt::interpose {

class BoardExchange : public BoardCall {
 public:
  using BoardCall::BoardCall;

  /// Tells all what this process gives and takes, returns when all have told. `fit`: messages could do it; `weight`: if
  /// that is positive in any process, they should.
  void tell_blocks(const BlockMessages& blocks, bool listed, bool fit, std::int64_t weight);
  /// What all processes know then.
  bool all_on_gpus() const;
  bool all_want_messages() const;

 private:
  /// Of what a process gives, or of what it takes.
  struct Half {
    device::Exported memory{};
    int ordinal = -1;
  };
  bool describe(const std::vector<BlockMessage>& blocks, peer::Block* entries, Half& half) const;
  bool map() override;
  void start(std::vector<device::Transfer>& kernels) override;
  int ordinal() const override { return ordinal_; }
  bool match(std::size_t receiver);

  int ordinal_ = -1;
  std::vector<void*> from_, to_;  ///< by rank: `from.base` and `to.base` as this process's GPU reaches them
  std::vector<device::BlockCopy> moves_;
};

}  // namespace gpudt::interpose
