// A collective that GPUs do for all processes of a communicator, on what these have told each other by their boards
// (board_group.hpp). Of each GPU the lowest-ranked process, its leader, maps memory and launches kernels for all:
// kernels of several processes would take turns on it.
//
// A call advances in steps that wait for nobody: a blocking call takes them in a loop (by_gpus()), a nonblocking one
// in the engine (call_order.hpp).
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "device/device.hpp"
#include "interpose/collectives/board_group.hpp"

namespace gpudt::interpose {

class BoardCall {
 public:
  /// `call`: its name, which must last.
  BoardCall(const char* call, std::shared_ptr<BoardGroup> group);
  BoardCall(const BoardCall&) = delete;
  BoardCall& operator=(const BoardCall&) = delete;
  /// Declines the call if it has not been told of.
  virtual ~BoardCall();

  /// Tells all what this process has to do with the call, which its class has prepared. If the group has room.
  void tell();
  /// Instead: returns when there is room, and tells; or declines, also if the call is not `fit`. False if it has.
  bool tell_when_possible(bool fit);

  enum class Decision {
    open,       ///< others have not said all
    by_gpus,    ///< kernels have been started
    otherwise,  ///< nothing has been done
  };
  /// All processes come to the same decision.
  Decision decide();
  /// After `by_gpus`: whether the call is complete. Throws device::Error or MpiError if a kernel has failed.
  bool complete();
  /// For the report and the trace, when it is complete.
  virtual void report() const = 0;

 protected:
  /// Where this process's GPU finds memory of process `rank`; false if it does not reach it. Throws device::Error.
  bool reach(std::size_t rank, const device::Exported& memory, std::uint64_t address, void*& mapped);
  /// Whether the process's GPU is this leader's.
  bool serves(std::size_t rank) const { return leader_of_[rank] == group_->rank(); }
  /// Of a process that has not declined.
  const peer::Blocks& blocks_of(std::size_t rank) const { return group_->told_by(rank, number_)->blocks; }

  const char* const call_;
  const std::shared_ptr<BoardGroup> group_;
  peer::Contribution mine_{};
  std::vector<peer::Block> given_, taken_;  ///< of this process, in an exchange
  std::vector<peer::Contribution> all_;     ///< by rank, once all have told
  std::vector<int> leaders_;

 private:
  enum class Stage { telling, mapping, otherwise, launched, ending, delivering };

  /// Whether all processes would have it done by GPUs, by what all have told.
  virtual bool all_agree() const = 0;
  /// Of a leader: whether it reaches all that it needs. May throw.
  virtual bool map() = 0;
  /// After the processes of the group have agreed and reach what they need, or not (`ready`): whether all do. Of a
  /// blocking call whose group is a part of its processes it waits for the others.
  virtual bool all_nodes_agree(bool ready) { return ready; }
  /// Of a leader: starts its kernels. May throw.
  virtual void start(std::vector<device::Transfer>& kernels) = 0;
  /// The result comes to where the program wants it. May throw.
  virtual void start_delivery() {}
  virtual bool delivered() { return true; }
  /// Of the GPU whose kernels a leader launches.
  virtual int ordinal() const = 0;

  bool read_all();
  void find_leaders();
  bool leads() const;
  void map_as_leader();
  void settle(bool ready);
  void launch();
  bool kernels_done();
  bool all_outcomes(std::atomic<std::uint64_t> peer::Slot::*outcome);

  std::uint64_t number_ = 0;  ///< 0: not told
  bool declined_ = false;
  Stage stage_ = Stage::telling;
  std::size_t heard_ = 0;  ///< processes, or leaders, in this stage
  bool succeeded_ = true;  ///< all of them
  std::exception_ptr failure_;
  std::vector<int> leader_of_;  ///< by rank
  std::vector<device::Mapping> mappings_;
  std::vector<device::Transfer> kernels_;  // after mappings_
};

/// Of a blocking call: whether GPUs have done it. If it is not `fit` for GPUs, as far as this process knows, all are
/// told so, and nobody waits; else it returns when all have said. Resets `backoff` once all have decided that GPUs do
/// it. Throws device::Error or MpiError if a kernel has failed.
bool by_gpus(BoardCall& call, bool fit, AskBackoff& backoff);

}  // namespace gpudt::interpose
