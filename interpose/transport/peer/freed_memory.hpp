// Memory that a process has freed is unmapped by those that have had it mapped.
#pragma once

#include <atomic>
#include <chrono>

#include "interpose/engine/engine.hpp"

namespace gpudt::interpose::peer {

/// Polled by the engine while the program is inside MPI.
class FreedMemory final : public Polled {
 public:
  bool due() override { return engine_time() >= next_.load(std::memory_order_relaxed); }
  bool may_become_due() override { return false; }  // there is time
  int poll(Tests) override;
  void settle() override {}

 private:
  std::atomic<std::chrono::steady_clock::time_point> next_{};
};

}  // namespace gpudt::interpose::peer
