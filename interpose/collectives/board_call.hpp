// A collective that GPUs do for all processes of a communicator, on what these have told each other by their boards
// (board_group.hpp). Of each GPU the lowest-ranked process, its leader, maps memory and launches kernels for all:
// kernels of several processes would take turns on it.
#pragma once

#include <string>
#include <vector>

#include "device/device.hpp"
#include "interpose/collectives/board_group.hpp"
#include "interpose/requests/call_buffers.hpp"

namespace gpudt::interpose {

class BoardCall {
 public:
  BoardCall(const Call& call, BoardGroup& group);
  BoardCall(const BoardCall&) = delete;
  BoardCall& operator=(const BoardCall&) = delete;
  virtual ~BoardCall() { group_.leave(); }

  /// After all have agreed: whether all leaders reach what they need. Returns when all have said.
  bool all_reach() noexcept;
  /// Returns when all kernels have ended. Throws device::Error or MpiError if one has failed.
  void run();

 protected:
  /// Tells what this process has to do with the call, and returns when all_ has everybody's.
  void tell(const peer::Contribution& mine);
  /// Where this process's GPU finds memory of process `rank`; false if it does not reach it. Throws device::Error.
  bool reach(std::size_t rank, const device::Exported& memory, std::uint64_t address, void*& mapped);
  const Call& call() const { return call_; }
  /// Whether the process's GPU is this leader's.
  bool serves(std::size_t rank) const { return leader_of_[rank] == group_.rank; }

  BoardGroup& group_;
  std::vector<peer::Contribution> all_;  ///< by rank
  std::vector<int> leaders_;

 private:
  /// Of a leader: whether it reaches all that it needs. May throw.
  virtual bool map() = 0;
  /// Of a leader: starts its kernels. May throw.
  virtual void start(std::vector<device::Transfer>& kernels) = 0;
  /// Of the GPU whose kernels a leader launches.
  virtual int ordinal() const = 0;

  void find_leaders();
  bool leads() const;
  void launch();

  const Call& call_;
  std::vector<int> leader_of_;  ///< by rank
  std::vector<device::Mapping> mappings_;
};

}  // namespace gpudt::interpose
