// A collective that GPUs do for all processes of a communicator. The processes publish their buffers on boards
// (board_group.hpp). On each GPU the process of lowest rank, the leader, maps memory and launches the kernels for all
// processes of that GPU, because kernels of several processes take turns there.
//
// A call advances in steps, none of which waits. A blocking call takes them in a loop (by_gpus()), a nonblocking one in
// the engine (call_order.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "device/device.hpp"
#include "interpose/collectives/board_group.hpp"
#include "interpose/support/points.hpp"

namespace gpudt::interpose {

class BoardCall {
 public:
  /// `call`: the name of the MPI function, a string literal.
  BoardCall(const char* call, std::shared_ptr<BoardGroup> group);
  BoardCall(const BoardCall&) = delete;
  BoardCall& operator=(const BoardCall&) = delete;
  /// Declines the call unless it has been published.
  virtual ~BoardCall();

  /// Publishes this process's part of the call, which the derived class has prepared. The group must have room.
  void tell() {
    number_ = blocks_ ? group_->tell(mine_, *blocks_) : group_->tell(mine_);
    mark(point::published);
  }
  /// Waits until the group has room, then publishes. Declines, and returns false, if there will be no room or if the
  /// call is not `fit`.
  bool tell_when_possible(bool fit);

  enum class Decision {
    open,       ///< other processes have not published everything yet
    by_gpus,    ///< kernels have been started
    otherwise,  ///< GPUs do not do the call; nothing has been done
  };
  /// All processes reach the same decision.
  Decision decide();
  /// After `by_gpus`: whether the call is complete. Throws device::Error or MpiError if a kernel has failed.
  bool complete();
  /// For the report and the trace, when it is complete.
  virtual void report() const = 0;

 protected:
  /// Sets `mapped` to the address at which this process's GPU sees memory of process `rank`. False if the GPU does not
  /// reach it. Throws device::Error.
  bool reach(std::size_t rank, const device::Exported& memory, std::uint64_t address, void*& mapped);
  /// The rank of the leader of the GPU of process `rank`.
  int leader_of(std::size_t rank) const { return leader_of_[rank]; }
  /// Whether this process is the leader of the GPU of process `rank`.
  bool serves(std::size_t rank) const { return leader_of(rank) == group_->rank(); }
  /// The blocks of process `rank`, which must not have declined.
  const peer::Blocks& blocks_of(std::size_t rank) const { return group_->told_by(rank, number_)->blocks; }
  std::span<const std::byte> layouts_of(std::size_t rank) const { return group_->layouts_by(rank, number_); }

  const char* const call_;
  const std::shared_ptr<BoardGroup> group_;
  peer::Contribution mine_{};
  std::shared_ptr<const peer::PublishedBlocks> blocks_;  ///< of this process, in an exchange
  std::vector<peer::Contribution> all_;                  ///< by rank, once all have published
  std::vector<int> leaders_;
  int ordinal_ = -1;                    ///< the GPU on which this process, if a leader, launches kernels
  std::shared_ptr<const void> needed_;  ///< what the kernels need: an exchange's layouts

 private:
  enum class Stage { telling, mapping, otherwise, launched, ending, delivering };

  /// Whether what all processes have published allows GPUs to do the call.
  virtual bool all_agree() const = 0;
  /// Called in a leader: maps the buffers that it needs. False if its GPU does not reach one. May throw.
  virtual bool map() = 0;
  /// `ready`: all processes of the group agree, and its leaders reach all buffers. Returns whether this holds for all
  /// processes of the call. If the group is only a part of these, a blocking call waits here for the others.
  virtual bool all_nodes_agree(bool ready) { return ready; }
  /// Called in a leader: starts its kernels. May throw.
  virtual void start(std::vector<device::Transfer>& kernels) = 0;
  /// Starts copying the result to the program's buffer. May throw.
  virtual void start_delivery() {}
  virtual bool delivered() { return true; }
  /// After a failure: whether this process's own data are missing (device::UserData). An exchange has seen that they
  /// are there.
  virtual bool own_data_missing() const { return false; }

  bool read_all();
  void find_leaders();
  void note_shared_gpu() const;
  bool leads() const;
  void map_as_leader();
  void settle(bool ready);
  void launch();
  bool kernels_done();
  [[noreturn]] void fail() const;
  bool all_outcomes(std::atomic<std::uint64_t> peer::Slot::*outcome);

  std::uint64_t number_ = 0;  ///< of the call in its group; 0: not published
  bool declined_ = false;
  Stage stage_ = Stage::telling;
  std::size_t heard_ = 0;  ///< number of processes, or leaders, whose state in this stage is known
  bool succeeded_ = true;  ///< no leader has failed
  std::exception_ptr failure_;
  std::vector<int> leader_of_;  ///< by rank
  std::vector<device::Mapping> mappings_;
  std::vector<device::Transfer> kernels_;  // after mappings_ and needed_
};

/// For GPUDT_REQUIRE: why GPUs have not done calls.
inline constexpr const char* not_all_for_gpus =
    "not all processes have their data in memory that the others' GPUs reach";
inline constexpr const char* others_were_not = "GPUs could not do earlier calls like it, which is not tried each time";
inline constexpr const char* gpus_take_no_part =
    "GPUs do no collectives in this run (GPUDT_PROTOCOL, or a process lacks gpudt or shared memory)";
inline constexpr const char* not_on_one_node = "its processes are not one group of one node, all with gpudt and a GPU";

/// Does a blocking call by GPUs if all processes can; false if they cannot. If the call is not `fit` for GPUs in this
/// process, it declines and returns at once; else it waits for what the others publish. Resets `backoff` once all have
/// decided for GPUs. Throws device::Error or MpiError if a kernel has failed.
bool by_gpus(BoardCall& call, bool fit, AskBackoff& backoff);

}  // namespace gpudt::interpose
