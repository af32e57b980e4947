// What this process offers to GPUs (board_call.hpp) each time that a persistent collective is started.
//
// Processes may start persistent collectives in any order, each in another one. So each has boards of its own, which
// all processes find by the number of its initialisation on the communicator: start number n is call number n of these.
// The initialisation also fixes the buffers: a process that has none for GPUs declines all starts in it.
#pragma once

#include <mpi.h>

#include <functional>
#include <memory>

#include "interpose/collectives/board_call.hpp"

namespace gpudt::interpose {

/// Of one start, if the group has room: what is to be told; null: this process has declined. Throws std::bad_alloc
/// only before it has declined.
using PrepareOffer = std::function<std::unique_ptr<BoardCall>(const std::shared_ptr<BoardGroup>&)>;

class PersistentOffer {
 public:
  /// In the initialisation, of a request whose starts all processes are asked about. `prepare` is empty if this process
  /// has nothing for GPUs: null then. May throw std::bad_alloc.
  static std::unique_ptr<PersistentOffer> make(CommState& state, PrepareOffer prepare);

  /// Of the next start: what is to be told; null: this process has declined, as it must if `declines`.
  std::unique_ptr<BoardCall> next(bool declines);

 private:
  PersistentOffer(std::shared_ptr<BoardGroup> group, PrepareOffer prepare);

  const std::shared_ptr<BoardGroup> group_;
  const PrepareOffer prepare_;
};

}  // namespace gpudt::interpose
