// What a user sets: which runtime, and how data are to be moved.
#pragma once

#include <cstddef>
#include <string>

#include "device/transfer/transfer.hpp"

namespace gpudt::device {

/// Whether a kernel stays on the GPU for a while, for short transfers (resident.hpp).
enum class ResidentUse {
  automatic,  ///< where they follow each other closely
  never,
  always,  ///< it is launched whenever a call waits
};

/// After what of the program's own work its memory is used (StreamMark).
enum class Order {
  default_stream,  ///< what is in the legacy default stream, which waits for all blocking streams
  per_thread,      ///< what is in the default stream of the thread that makes the MPI call
  none,
};

enum class Choice { automatic, cuda, sim, none };

struct Config {
  Choice choice = Choice::automatic;
  Way way = Way::automatic;
  std::size_t staging_limit = 0;                     ///< bytes of staging memory in use and idle, 0: no limit
  std::size_t staging_cache = std::size_t(2) << 30;  ///< bytes of idle staging memory kept for reuse
  ResidentUse resident = ResidentUse::automatic;
  Order order = Order::none;
  bool batches = true;          ///< several short transfers may be launched as one
  std::string tuning = "none";  ///< where the costs come from: "auto", "none", a file (tuning.hpp)
  // Callbacks for warnings and traces; may be null. They must not throw.
  void (*warn)(const std::string& text) = nullptr;
  void (*trace)(const std::string& text) = nullptr;  ///< one for each transfer: what moves it, and why
};

}  // namespace gpudt::device
