// Collectives that move blocks of device memory from layout to layout, by kernels of the receivers' GPUs. Each process
// lists on its board the blocks that it sends and receives, with their layouts. The leader of each GPU (board_call.hpp)
// fetches the blocks that the processes of this GPU receive.
#pragma once

#include "device/device.hpp"
#include "interpose/collectives/block_messages.hpp"
#include "interpose/collectives/board_call.hpp"
#include "interpose/support/report.hpp"
#include "interpose/transport/device_buffer.hpp"

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
  struct Copy {
    DeviceBuffer buffer;
    void* packed = nullptr;
    OperandTransfer transfer{};
    void start(device::Direction direction) {
      transfer = {direction, buffer, 0, buffer.bytes(), packed, device::MemoryKind::device};
    }
  };
  /// The memory that holds all blocks which a process sends, or all which it receives.
  struct Half {
    device::Exported memory{};
    int ordinal = -1;
    /// Packed copies of the blocks, if other processes cannot map the memory yet (device::export_memory()).
    bool copied = false;
    device::Staging staging{};
    std::vector<Copy> copies{};  // after staging
  };
  struct Named {
    datatype::LayoutRef layout;
    peer::LayoutName name;
    std::int32_t at;  ///< peer::Block::layout_at
  };
  struct Move {
    device::Side from, to;  ///< whose layouts are in moved_
    std::int64_t bytes;
    bool contiguous;  ///< both sides
    bool own;         ///< both are memory of this process's GPU
  };
  bool describe(const std::vector<BlockMessage>& blocks, std::vector<peer::Block>& entries, Half& half);
  bool find_memory(const DeviceBuffer& first, Half& half) const;
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
  int ordinal() const override { return ordinal_; }
  bool match(std::size_t receiver);
  bool beside(const Move& move) const;
  bool add(std::size_t giver, const peer::Block& given, std::size_t receiver, const peer::Block& taken);

  const ReportClock::time_point began_ = report_now();
  int ordinal_ = -1;
  std::vector<void*> from_, to_;  ///< by rank: `from.base` and `to.base` as this process's GPU reaches them
  std::vector<Named> named_;
  std::vector<peer::PublishedRef> published_;  ///< layouts in slots, until all processes have read them
  std::vector<Move> moves_;
  Half sent_, received_;
};

}  // namespace gpudt::interpose
