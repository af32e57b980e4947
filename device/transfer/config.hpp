// What a user sets: which runtime, and how data are to be moved.
#pragma once

#include <cstddef>
#include <string>

#include "device/transfer/transfer.hpp"

namespace gpudt::device {

/// When a persistent kernel is launched for short transfers (resident.hpp).
enum class ResidentUse {
  automatic,  ///< when short transfers follow each other closely
  never,
  always,  ///< whenever a thread is about to wait
};

/// Which work of the program must be done before its memory is used (StreamMark).
enum class Order {
  default_stream,  ///< work in the legacy default stream, which waits for all blocking streams
  per_thread,      ///< work in the default stream of the calling thread
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
  void (*trace)(const std::string& text) = nullptr;  ///< called for each transfer: what moves it, and why
};

}  // namespace gpudt::device
