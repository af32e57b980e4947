// What a kernel is told of all GPUs and ranks: plain data, made by World (world.hpp), passed in a kernel's parameters.
#pragma once

#include <cstdint>

#include "initiated/notifications.hpp"
#include "initiated/proxy_ring.hpp"

namespace gpudt::initiated {

struct WordPlace;  // layout.hpp

/// One GPU's part of a window.
struct alignas(16) WindowPart {
  std::int64_t distance = 0;  ///< from this GPU's part to that one's, for loads and stores
  std::int64_t bytes = 0;
  std::int64_t unit = 1;  ///< bytes: the displacement unit (MPI_Win_create)
};

/// Memory that has been attached to a dynamic window, at the addresses that it has in its own process.
struct alignas(16) WindowRegion {
  std::int64_t begin = 0, end = 0;  ///< as MPI_Get_address says there
  std::int64_t distance = 0;        ///< from there to where this GPU reaches it
};

/// Those of one GPU, by address, none beside another of the same distance. In this GPU's memory.
struct alignas(16) WindowRegions {
  const WindowRegion* first = nullptr;
  std::int64_t count = 0;
};

/// Memory of all GPUs: an MPI window, or symmetric memory of NVSHMEM's heap, where every GPU has as many bytes at the
/// same offset. For MPI and CUDA it is ordinary memory of the process's own GPU.
struct Window {
  char* base = nullptr;  ///< on this GPU; null: a dynamic window, whose offsets are addresses of the target's process
  std::int64_t bytes = 0;
  std::int32_t id = no_window;             ///< what notifications name it by
  const WindowPart* parts = nullptr;       ///< [GPU], in this GPU's memory; null: symmetric memory
  const WindowRegions* regions = nullptr;  ///< [GPU], in this GPU's memory, of a dynamic window alone
};

/// Most GPUs, and most values of a reduction.
constexpr int most_gpus = 64;
constexpr int most_values = 32;
/// Slots for puts by a whole grid that are under way.
constexpr int grid_slots = 64;

/// Words of 64 bits one behind the other, for barriers and reductions, which are numbered; the first two are symmetric.
struct CollectiveState {
  std::uint64_t* flags = nullptr;    ///< [gpu]: the latest collective at which that GPU has arrived; written by it
  std::uint64_t* values = nullptr;   ///< [2][gpu][most_values]: what it contributes to even and odd ones
  std::uint64_t* local = nullptr;    ///< [rank of this GPU][most_values]
  std::uint64_t* result = nullptr;   ///< [most_values]
  std::uint64_t* arrived = nullptr;  ///< ranks of this GPU that have arrived at the present one
  std::uint64_t* left = nullptr;     ///< the latest one that has ended here
};

/// Of KernelWorld::grid, in words, behind the counters of blocks that have done their part of each put: how many of the
/// grid's puts and waits have ended, in all launches; blocks of this launch that have started (0: all); for each put
/// the place and the word of its notification.
constexpr int grid_ended = grid_slots, grid_told = grid_slots + 1, grid_started = grid_slots + 2,
              grid_postings = grid_slots + 4, grid_words = grid_postings + 2 * grid_slots;

/// All addresses are of this GPU's memory.
struct KernelWorld {
  std::int32_t gpu = 0, gpus = 1;
  RankDivision ranks;              ///< 1 for each GPU: it is a rank, and one of its blocks speaks for it
  std::int32_t capacity_log = 10;  ///< of a ring of notifications
  std::int32_t most_ranks = 1;     ///< of a GPU, in any launch: what memory is laid out for
  std::int32_t direct = 1;         ///< 0: never by loads and stores to other GPUs
  std::int32_t reaches_all = 1;    ///< by loads and stores; 0 if `direct` is
  /// From this GPU's queues (and symmetric memory) to those of another, for loads and stores; `unreachable` where there
  /// is none.
  std::int64_t distance[most_gpus] = {};
  std::uint64_t timeout_ns = 0;  ///< after which a wait ends the program; 0: never
  // Notifications (notifications.hpp): [most_ranks][gpus]... of this GPU's ranks, [gpus][most_ranks] of their targets.
  // Symmetric: at `distance` on another GPU. The rings come first of all symmetric memory that World has.
  std::uint64_t* rings = nullptr;   ///< symmetric
  std::uint64_t* credit = nullptr;  ///< symmetric, [target GPU][target]: by the target
  Ticket* sent = nullptr;           ///< [target GPU][target]: tickets that have been taken
  Ticket* heads = nullptr;          ///< [rank][2][GPU]: Inbox::heads and ::returned, from launch to launch
  CollectiveState all, device;      ///< of all ranks; of those of this GPU
  /// [grid_words]: what blocks know of calls by the whole grid.
  std::uint64_t* grid = nullptr;
  WordPlace* places = nullptr;     ///< [block][known_moves][known_words]: see layout.hpp
  char* staging = nullptr;         ///< symmetric, [most_ranks][staging_bytes]
  std::int64_t staging_bytes = 0;  ///< a multiple of 16
  ProxyPort proxy;                 ///< by which other GPUs are reached than by loads and stores, if there is one

  static constexpr std::int64_t unreachable = 1;

  GPUDT_HD int size() const { return gpus * ranks.per_gpu; }
  /// Where symmetric memory of another GPU is for loads and stores; null if it is not reached so.
  GPUDT_HD char* reach(char* symmetric, int of_gpu) const {
    if (of_gpu == gpu) return symmetric;
    return direct == 0 || distance[of_gpu] == unreachable ? nullptr : symmetric + distance[of_gpu];
  }
  GPUDT_HD std::uint64_t* ring(int local, int source_gpu) const {
    return rings + ((static_cast<std::uint64_t>(local) * static_cast<std::uint64_t>(gpus) +
                     static_cast<std::uint64_t>(source_gpu))
                    << capacity_log);
  }
  GPUDT_HD std::uint64_t target_index(int gpu_of_target, int local) const {
    return static_cast<std::uint64_t>(gpu_of_target) * static_cast<std::uint64_t>(most_ranks) +
           static_cast<std::uint64_t>(local);
  }
};

/// Operators of accumulate() that are values: MPI_SUM and its like. Bits: of integers alone.
enum class Op : std::int32_t { sum, product, minimum, maximum, bit_and, bit_or, bit_xor, replace };

/// What device functions answer. In a build with GPUDT_INITIATED_CHECK anything but ok (and, from a test for
/// notifications or partitions, not_yet) is printed with the call and the rank, and ends the kernel.
enum class Status : std::int32_t {
  ok = 0,
  not_yet,        ///< test_notifications: there are not enough; parrived: the partition is not there
  bad_rank,       ///< there is no such rank
  bad_range,      ///< beyond the window, or the region of a dynamic one
  bad_layout,     ///< a KernelLayout that no Layout has made, or shorter than what is to be moved
  bad_tag,        ///< negative, or a count of less than 1
  bad_window,     ///< none that World has made
  bad_count,      ///< negative or too many, or more bytes on one side than on the other
  bad_type,       ///< a KernelType that no Datatype has made; accumulate: not of one predefined datatype that it takes
  bad_op,         ///< an operator that the elements do not have
  queue_full,     ///< what is waited for cannot come: the queues hold nothing but other notifications
  unreachable,    ///< accumulate: a GPU that is not reached by loads and stores
  bad_request,    ///< pready: no send, parrived: no receive that World::match has matched
  bad_partition,  ///< there is no such partition
  not_started,    ///< pready: the request has not been started since the partition was marked ready
  timed_out,      ///< see Options::timeout_seconds
};

GPUDT_HD const char* status_text(Status status) {
  switch (status) {
    case Status::ok:
      return "ok";
    case Status::not_yet:
      return "there are not enough notifications";
    case Status::bad_rank:
      return "there is no such rank";
    case Status::bad_range:
      return "the data reach beyond the window, or the region that is attached to it";
    case Status::bad_layout:
      return "a layout that was not made by Layout, or is shorter than the message";
    case Status::bad_tag:
      return "a negative tag, or a count of less than 1";
    case Status::bad_window:
      return "no window that World has made";
    case Status::bad_count:
      return "a negative count or one that is too large, or sides of different length";
    case Status::bad_type:
      return "a type that was not made by Datatype; of accumulate, one that is not of elements of 4 or 8 bytes, alike";
    case Status::bad_op:
      return "an operator that these elements do not have";
    case Status::queue_full:
      return "the queues are full of notifications that do not match: wait for those, or raise Options::notifications";
    case Status::unreachable:
      return "a GPU that is not reached by loads and stores";
    case Status::bad_request:
      return "not a request of this kind that World::match has matched";
    case Status::bad_partition:
      return "there is no such partition";
    case Status::not_started:
      return "the request has not been started, or not since this partition was marked ready";
    default:
      return "timed out";
  }
}

}  // namespace gpudt::initiated
