#include "interpose/collectives/board_call.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "interpose/support/errors.hpp"
#include "interpose/support/log.hpp"
#include "interpose/support/report.hpp"
#include "interpose/transport/peer/state.hpp"

namespace gpudt::interpose {

using peer::Slot;

BoardCall::BoardCall(const char* call, std::shared_ptr<BoardGroup> group)
    : call_(call), group_(std::move(group)), all_(group_->size()) {
  leaders_.reserve(all_.size());  // find_leaders() must not fail
  leader_of_.reserve(all_.size());
}

BoardCall::~BoardCall() {
  if (number_ != 0)
    group_->leave(number_);
  else if (!declined_)
    group_->decline();
}

bool BoardCall::tell_when_possible(bool fit) {
  if (fit && group_->await_room()) {
    tell();
    return true;
  }
  group_->decline();
  declined_ = true;
  all_nodes_agree(false);
  return false;
}

BoardCall::Decision BoardCall::decide() {
  if (stage_ == Stage::telling) {
    if (!read_all()) return Decision::open;
    heard_ = 0;
    mark(point::all_published);
    if (all_agree()) {
      stage_ = Stage::mapping;
      map_as_leader();
      mark(point::reached);
    } else {
      settle(/*ready=*/false);
    }
  }
  if (stage_ == Stage::mapping) {
    if (!all_outcomes(&Slot::mapped)) return Decision::open;
    mark(point::decided);
    settle(succeeded_);
  }
  return stage_ == Stage::otherwise ? Decision::otherwise : Decision::by_gpus;
}

bool BoardCall::complete() {
  if (stage_ == Stage::launched) {
    if (!kernels_done()) return false;
    mark(point::own_ended);
    if (leads()) group_->set_outcome(number_, &Slot::done, failure_ != nullptr);
    stage_ = Stage::ending;
  }
  if (stage_ == Stage::ending) {
    if (!all_outcomes(&Slot::done)) return false;
    mark(point::all_ended);
    if (failure_ || !succeeded_) fail();
    start_delivery();
    stage_ = Stage::delivering;
  }
  return delivered();
}

void BoardCall::fail() const {
  if (own_data_missing())
    throw MpiError(MPI_ERR_BUFFER, "a kernel has failed, and a buffer of this process reaches beyond its GPU memory");
  if (failure_) std::rethrow_exception(failure_);
  throw MpiError(MPI_ERR_OTHER, "a kernel of another process has failed");
}

/// Whether all processes have published or declined the call; fills all_.
bool BoardCall::read_all() {
  for (; heard_ < all_.size(); ++heard_) {
    if (!group_->has_told(heard_, number_)) return false;
    const Slot* const slot = group_->told_by(heard_, number_);
    if (slot != nullptr) all_[heard_] = slot->contribution;
  }
  return true;
}

/// Whether the outcomes of all leaders are known. If one has failed, succeeded_ becomes false.
bool BoardCall::all_outcomes(std::atomic<std::uint64_t> Slot::*outcome) {
  for (; heard_ < leaders_.size(); ++heard_) {
    const auto leader = static_cast<std::size_t>(leaders_[heard_]);
    const std::optional<bool> success = group_->outcome_of(leader, number_, outcome);
    if (!success) return false;
    if (!*success) succeeded_ = false;
  }
  heard_ = 0;
  return true;
}

void BoardCall::map_as_leader() {
  find_leaders();
  note_shared_gpu();
  if (!leads()) return;
  bool reached = false;
  try {
    reached = map();
  } catch (const std::exception& error) {
    if (tracing()) log_trace(std::string(call_) + ": not by GPUs: " + error.what());
  }
  group_->set_outcome(number_, &Slot::mapped, !reached);
}

void BoardCall::settle(bool ready) {
  stage_ = all_nodes_agree(ready) ? Stage::launched : Stage::otherwise;
  if (stage_ == Stage::launched) launch();
}

void BoardCall::launch() {
  if (!leads()) return;
  try {
    start(kernels_);
  } catch (const std::exception&) {
    failure_ = std::current_exception();
  }
  mark(point::started);
  // While these kernels run, a kernel for the next short calls is launched at no cost.
  device::about_to_wait(device::WaitKind::group);
}

/// Whether all have ended, also if one has failed.
bool BoardCall::kernels_done() {
  bool all_done = true;
  for (device::Transfer& kernel : kernels_) {
    try {
      if (!kernel.done()) all_done = false;
    } catch (const std::exception&) {
      failure_ = std::current_exception();
    }
  }
  return all_done;
}

void BoardCall::find_leaders() {
  for (std::size_t rank = 0; rank < all_.size(); ++rank) {
    const auto on_same_gpu = [&](int leader) {
      return std::memcmp(all_[static_cast<std::size_t>(leader)].gpu, all_[rank].gpu, sizeof all_[rank].gpu) == 0;
    };
    auto found = std::find_if(leaders_.begin(), leaders_.end(), on_same_gpu);
    if (found == leaders_.end()) found = leaders_.insert(found, static_cast<int>(rank));
    leader_of_.push_back(*found);
  }
}

/// On a GPU that several processes use no kernel is to stay, for which those of the others would wait.
void BoardCall::note_shared_gpu() const {
  const int leader = leader_of_[static_cast<std::size_t>(group_->rank())];
  if (ordinal_ >= 0 && std::count(leader_of_.begin(), leader_of_.end(), leader) > 1)
    device::shared_with_others(ordinal_, /*yields=*/false);
}

bool BoardCall::leads() const {
  return std::find(leaders_.begin(), leaders_.end(), group_->rank()) != leaders_.end();
}

bool BoardCall::reach(std::size_t rank, const device::Exported& memory, std::uint64_t address, void*& mapped) {
  if (static_cast<int>(rank) == group_->rank() && device::turn_of(memory) == std::to_array(mine_.gpu)) {
    mapped = reinterpret_cast<void*>(address);  // this GPU's own memory
    return true;
  }
  std::string why;
  device::Mapping mapping = device::import_memory(ordinal_, peer::exporter_of(group_->segment(rank)), memory, &why);
  if (!mapping) {
    if (tracing()) log_trace(std::string(call_) + ": not by GPUs: " + why);
    return false;
  }
  mapped = mapping.at(address);
  mappings_.push_back(std::move(mapping));
  return true;
}

bool by_gpus(BoardCall& call, bool fit, AskBackoff& backoff) {
  if (!call.tell_when_possible(fit)) return false;
  BoardCall::Decision decision = BoardCall::Decision::open;
  wait_until([&] { return (decision = call.decide()) != BoardCall::Decision::open; }, for_others);
  if (decision == BoardCall::Decision::otherwise) return false;
  backoff.worked();  // before anything can fail in this process alone
  wait_until([&] { return call.complete(); }, for_others);
  return true;
}

}  // namespace gpudt::interpose
