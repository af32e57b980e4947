// Collectives that move blocks of device memory from layout to layout, by kernels of the receivers' GPUs. Each process
// lists on its board the blocks that it sends and receives, with their layouts. The leader of each GPU (board_call.hpp)
// fetches the blocks that the processes of this GPU receive. A long block that one process gives to all is divided
// among the leaders, each of which stores its part to all receivers, once the exchange is repeated.
#pragma once

#include <optional>

#include "device/device.hpp"
#include "interpose/collectives/block_messages.hpp"
#include "interpose/collectives/board_call.hpp"
#include "interpose/collectives/exchange_plan.hpp"
#include "interpose/support/report.hpp"
#include "interpose/transport/device_buffer.hpp"

namespace gpudt::interpose {

class BoardExchange : public BoardCall {
 public:
  using BoardCall::BoardCall;

  /// Whether this process publishes what it has published before for the same blocks (ExchangePlans::find()). Otherwise
  /// prepare() is to be called.
  bool recall(const BlockMessages& blocks, std::int64_t least) noexcept;
  /// After recall(): what messages would have to do.
  std::size_t given() const { return plan_->blocks.given.size(); }
  std::int64_t taken_bytes() const { return plan_->taken_bytes; }
  /// Prepares what this process publishes: the blocks that it sends and receives. `weight`: messages should do the call
  /// if this is positive in any process. Returns whether this process's blocks allow kernels to do it.
  bool prepare(const BlockMessages& blocks, bool listed, bool fit, std::int64_t weight) noexcept;
  /// Lets recall() find what was prepared. `listed`: the blocks as the program gave them.
  void remember(BlockMessages listed, std::int64_t least) noexcept;
  /// Messages between GPUs could do the call.
  void set_fit(bool fit) { mine_.fit = fit ? 1 : 0; }
  /// After Decision::otherwise: whether messages do the call. All processes get the same answer.
  bool all_want_messages() const;
  void report() const override;

 private:
  struct Copy {
    DeviceBuffer buffer;
    void* packed = nullptr;
    OperandTransfer transfer{};
    void start(device::Direction direction) {
      transfer = {direction, buffer, 0, buffer.bytes(), packed, device::MemoryKind::device};
    }
  };
  /// What this process sends, or what it receives.
  struct Half {
    ExchangePlan::Memory memory{};
    /// Packed copies of the blocks, if other processes cannot map the memory yet (device::export_memory()).
    bool copied = false;
    device::Staging staging{};
    std::vector<Copy> copies{};  // after staging
  };
  bool describe(const std::vector<BlockMessage>& blocks, std::vector<peer::Block>& entries, Half& half);
  bool takes_part() const;
  bool find_memory(const DeviceBuffer& first, Half& half) const;
  bool find_pieces(std::uint64_t begin, std::uint64_t end, Half& half) const;
  bool place_copies(std::vector<peer::Block>& entries, Half& half) const;
  bool describe(const DeviceBuffer& buffer, peer::Block& entry);
  bool name(const datatype::LayoutRef& layout, peer::Block& entry);
  bool better_packed(const peer::Block& block) const;
  datatype::LayoutRef layout_of(std::size_t rank, const peer::Block& block) const;
  bool all_agree() const override;
  bool map() override;
  void start(std::vector<device::Transfer>& kernels) override;
  void copy_given();
  void start_delivery() override;
  bool delivered() override;
  bool reach_again(const Moves& before);
  bool all_share() const;
  std::optional<std::size_t> shared_root() const;
  bool takes_only_from(std::size_t receiver, std::size_t root) const;
  std::vector<int> sharing_leaders(std::size_t root) const;
  bool find_share(std::size_t root);
  bool match(std::size_t receiver);
  bool beside(const Move& move) const;
  bool add(std::size_t giver, const peer::Block& given, std::size_t receiver, const peer::Block& taken);

  const ReportClock::time_point began_ = report_now();
  std::shared_ptr<const ExchangePlan> plan_;
  std::shared_ptr<ExchangePlan> made_;         ///< the same, if this call has made it
  std::vector<peer::PublishedRef> published_;  ///< layouts in slots, until all processes have read them
  std::shared_ptr<Moves> found_;               ///< while map() finds them
  std::shared_ptr<const Moves> moves_;
  Half sent_, received_;
};

}  // namespace gpudt::interpose
