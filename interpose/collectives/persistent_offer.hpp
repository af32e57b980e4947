// What this process offers to GPUs (board_call.hpp) each time that a persistent collective is started.
//
// Processes may start persistent collectives in any order, each in another one. So each has boards of its own, which
// its initialisation agrees on: start number n is call number n of these. The initialisation also fixes the buffers: if
// one process has none for GPUs, then all know that no start is to be asked about.
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
  /// In the initialisation: collective over `comm`, whose processes can all be asked. `prepare` is empty if this
  /// process has nothing for GPUs. Null: in one process it is, or boards are used up. May throw std::bad_alloc before
  /// anything has been exchanged.
  static std::unique_ptr<PersistentOffer> agree(MPI_Comm comm, PrepareOffer prepare);

  /// Of the next start: what is to be told; null: this process has declined, as it must if `declines`.
  std::unique_ptr<BoardCall> next(bool declines);

 private:
  PersistentOffer(std::shared_ptr<BoardGroup> group, PrepareOffer prepare);

  const std::shared_ptr<BoardGroup> group_;
  const PrepareOffer prepare_;
};

}  // namespace gpudt::interpose
