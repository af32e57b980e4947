#include "interpose/collectives/board_call.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "interpose/support/errors.hpp"
#include "interpose/support/log.hpp"

namespace gpudt::interpose {

using peer::Board;

BoardCall::BoardCall(const Call& call, BoardGroup& group) : group_(group), all_(group.boards.size()), call_(call) {
  leaders_.reserve(all_.size());  // find_leaders() must not fail
  leader_of_.reserve(all_.size());
}

void BoardCall::tell(const peer::Contribution& mine) {
  group_.tell(mine);
  group_.read(all_);
}

bool BoardCall::all_reach() noexcept {
  find_leaders();
  if (leads()) {
    bool reached = false;
    try {
      reached = map();
    } catch (const std::exception& error) {
      if (tracing()) log_trace(std::string(call_.name) + ": not by GPUs: " + error.what());
    }
    group_.own().mapped.store(Board::outcome(group_.call, !reached), std::memory_order_release);
  }
  return group_.all_succeed(leaders_, &Board::mapped);
}

void BoardCall::run() {
  std::exception_ptr failure;
  if (leads()) {
    try {
      launch();
    } catch (const std::exception&) {
      failure = std::current_exception();
    }
    group_.own().done.store(Board::outcome(group_.call, failure != nullptr), std::memory_order_release);
  }
  const bool succeeded = group_.all_succeed(leaders_, &Board::done);
  if (failure) std::rethrow_exception(failure);
  if (!succeeded) throw MpiError(MPI_ERR_OTHER, "a kernel of another process has failed");
}

void BoardCall::launch() {
  std::vector<device::Transfer> kernels;
  start(kernels);
  for (device::Transfer& kernel : kernels) wait_for_others([&] { return kernel.done(); });
}

void BoardCall::find_leaders() {
  leaders_.clear();
  leader_of_.clear();
  for (std::size_t rank = 0; rank < all_.size(); ++rank) {
    const auto on_same_gpu = [&](int leader) {
      return std::memcmp(all_[static_cast<std::size_t>(leader)].gpu, all_[rank].gpu, sizeof all_[rank].gpu) == 0;
    };
    auto found = std::find_if(leaders_.begin(), leaders_.end(), on_same_gpu);
    if (found == leaders_.end()) found = leaders_.insert(found, static_cast<int>(rank));
    leader_of_.push_back(*found);
  }
}

bool BoardCall::leads() const {
  return std::find(leaders_.begin(), leaders_.end(), group_.rank) != leaders_.end();
}

bool BoardCall::reach(std::size_t rank, const device::Exported& memory, std::uint64_t address, void*& mapped) {
  std::string why;
  const auto exporter = static_cast<std::uint64_t>(group_.world_ranks[rank]);
  device::Mapping mapping = device::import_memory(ordinal(), exporter, memory, &why);
  if (!mapping) {
    if (tracing()) log_trace(std::string(call_.name) + ": not by GPUs: " + why);
    return false;
  }
  mapped = mapping.at(address);
  mappings_.push_back(std::move(mapping));
  return true;
}

}  // namespace gpudt::interpose
