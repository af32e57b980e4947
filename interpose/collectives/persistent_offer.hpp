// What this process publishes (board_call.hpp) each time that a persistent collective is started.
//
// Each process may start persistent collectives in another order. So each persistent collective has boards of its own,
// which all processes find by the number of its initialisation on the communicator; start n is call n of these boards.
// The initialisation also fixes the buffers: a process that has none for GPUs declines all starts there.
#pragma once

#include <mpi.h>

#include <functional>
#include <memory>

#include "interpose/collectives/board_call.hpp"

namespace gpudt::interpose {

/// What this process publishes about one start, if the group has room; null: it has declined. Throws std::bad_alloc
/// only before it declines.
using PrepareOffer = std::function<std::unique_ptr<BoardCall>(const std::shared_ptr<BoardGroup>&)>;

class PersistentOffer {
 public:
  /// To be called in the initialisation of a request whose starts the processes agree about. If `prepare` is empty,
  /// this process has nothing for GPUs; returns null then. May throw std::bad_alloc.
  static std::unique_ptr<PersistentOffer> make(CommState& state, PrepareOffer prepare);

  /// What this process publishes about the next start; null: it has declined. `declines`: it must decline.
  std::unique_ptr<BoardCall> next(bool declines);

 private:
  PersistentOffer(std::shared_ptr<BoardGroup> group, PrepareOffer prepare);

  const std::shared_ptr<BoardGroup> group_;
  const PrepareOffer prepare_;
};

}  // namespace gpudt::interpose
