// The kernels of gpudt-initiated-ends.
#pragma once

#include "initiated/kernel_world.hpp"
#include "initiated/layout.hpp"
#include "initiated/partitions.hpp"

namespace gpudt::initiated::programs {

/// Calls that a checked build ends with a message, and waits that end the program in any build.
enum class Mistake : std::int32_t {
  rank,
  range,
  layout,
  tag,
  source,
  count,
  address,
  partition,
  twice,
  receive,
  granted,
  queue,
  timeout
};
struct OneMistake {
  KernelWorld world;
  Window window;
  Window dynamic;  ///< with nothing attached
  KernelLayout not_made;
  KernelRequest send;  ///< of 3 partitions; started by both sides, but for Mistake::granted by the sender alone
  Mistake mistake;
};
const void* one_mistake_kernel();

/// Each rank puts its number to the next one, and waits.
struct Greeting {
  KernelWorld world;
  Window window;  ///< two words
};
const void* greeting_kernel();

}  // namespace gpudt::initiated::programs
