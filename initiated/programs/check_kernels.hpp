// The kernels of gpudt-initiated-check: what they are told.
#pragma once

#include "initiated/gaspi_host.hpp"
#include "initiated/kernel_world.hpp"
#include "initiated/layout.hpp"

namespace gpudt::initiated::programs {

enum class By : std::int32_t { thread, warp, block, grid };
enum class Call : std::int32_t { put, get };

/// GPU 0 puts to GPU 1's window, or gets from there: packed bytes [0, bytes). It notifies GPU 1's rank. Before that it
/// makes the same move to memory `aside` bytes further, for what is remembered of moves.
struct OneMove {
  KernelWorld world;  ///< view(1)
  Window window;      ///< the other GPU's side
  KernelLayout here, there;
  char* memory;         ///< GPU 0's side: what its layout counts from
  std::int64_t offset;  ///< what the other side's counts from
  std::int64_t bytes, aside;
  By by;
  Call call;
  std::int32_t plain_here, plain_there;  ///< without layouts
  std::int32_t* status;                  ///< a Status
};
const void* one_move_kernel();

/// Every rank notifies every rank, `steps` times, with random tags and windows, and consumes as much.
enum class Matching : std::int32_t { by_source, by_tag, by_window, any };
struct ManyNotifications {
  KernelWorld world;
  Matching matching;  ///< by_source: one by one, in order; by_tag, by_window: as many as there are of each at once
  std::int32_t steps;
  unsigned long long* wrong;     ///< counts what was not expected
  unsigned long long* consumed;  ///< [tag]
};
constexpr int tags = 4, windows = 3;
GPUDT_HD std::uint32_t random_of(int source, int target, int step) {
  std::uint32_t bits = static_cast<std::uint32_t>(step) * 2654435761u + static_cast<std::uint32_t>(source) * 40503u +
                       static_cast<std::uint32_t>(target) * 2246822519u;
  bits = (bits ^ bits >> 15) * 2246822519u;
  return (bits ^ bits >> 13) >> 4;
}
GPUDT_HD int tag_of(int source, int target, int step) {
  return static_cast<int>(random_of(source, target, step) % tags);
}
GPUDT_HD int window_of(int source, int target, int step) {
  return static_cast<int>(random_of(source, target, step) / tags % windows);
}
const void* many_notifications_kernel();

/// Barriers and reductions against what they should be.
struct Collectives {
  KernelWorld world;
  Window window;  ///< a word for each rank
  std::int32_t steps;
  unsigned long long* wrong;
};
const void* collectives_kernel();

/// Every rank adds to GPU 0's and the last GPU's window, by layouts: elements of four kinds, one behind the other.
constexpr int accumulated = 300;  ///< elements of a kind
struct Accumulations {
  KernelWorld world;
  Window window;              ///< parts of 2 * 8 * accumulated bytes for each kind: every other element
  KernelLayout from_4, to_4;  ///< `accumulated` elements of 4 bytes, in different runs; to_4 every other one
  KernelLayout from_8, to_8;
  char* source;  ///< 4 * accumulated elements of 8 bytes
  std::int32_t* status;
};
const void* accumulations_kernel();
/// What a rank contributes to an element.
GPUDT_HD int contribution(int rank, int element) {
  return (rank * 37 + element * 11) % 101 - 50;
}

/// GPI's calls between GPUs 0 and 1.
constexpr int gaspi_flags = 16;
struct GaspiExchange {
  gpu_gaspi_context context;  ///< with two segments of `words` words of 4 bytes
  std::int32_t words, steps;
  unsigned long long* wrong;
};
const void* gaspi_kernel();

/// Wrong calls; `statuses` gets what each says.
constexpr int wrong_calls = 8;
struct WrongCalls {
  KernelWorld world;
  Window window;
  KernelLayout layout, not_made;
  std::int32_t* statuses;
};
const void* wrong_calls_kernel();
void expected_statuses(std::int32_t (&statuses)[wrong_calls]);

}  // namespace gpudt::initiated::programs
