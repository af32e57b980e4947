// Accesses to windows by this process's GPU, if it reaches the memory of the target on the same node: one kernel copies
// from the origin's layout to the target's, or back. The target takes no part, and need not call MPI.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "base/mutex.hpp"
#include "datatype/decode.hpp"
#include "interpose/rma/access.hpp"
#include "interpose/rma/data.hpp"

namespace gpudt::interpose {

/// The description of a process's memory in a window, for the other processes. Plain data.
struct Exposed {
  std::int64_t size;  ///< bytes
  std::int64_t disp_unit;
  std::uint64_t base;   ///< in its own address space
  std::int32_t lock;    ///< index of a lock in its segment; negative: none
  std::int32_t on_gpu;  ///< 1: `memory` describes all of it
  device::Exported memory;
};

/// Describes this process's memory. With GPUDT_ORDER on_gpu is 0: other processes cannot wait for its streams.
Exposed expose(void* base, MPI_Aint size, int disp_unit, int lock);

/// Why GPUs do not access memory of other processes in this run; null if they may.
const char* obstacle_to_direct_access();

/// Where an access goes.
struct DirectTarget {
  const Exposed& memory;
  int world_rank;  ///< of the target
  const datatype::TypeInfoRef& type;
  std::int64_t count;
  std::int64_t displacement;  ///< in bytes

  /// The address at which the access begins, in this process's mapping.
  void* address(const device::Mapping& mapping) const {
    return mapping.at(memory.base + static_cast<std::uint64_t>(displacement));
  }
};

/// Maps what process `world_rank` exposes for GPU `ordinal`; empty if the GPU does not reach it. Throws device::Error.
device::Mapping reach(const char* call, int ordinal, const Exposed& memory, int world_rank);

/// An access that a GPU of this process makes.
class DirectAccess {
 public:
  enum class Kind { put, get };
  /// Starts the access on the GPU of the origin buffer. If the buffer lies in host memory, `own_gpu` makes the access
  /// through staging memory; negative: none. Null if no GPU of this process can make it. Throws device::Error.
  static std::shared_ptr<DirectAccess> start(const char* call, Kind kind, const Origin& origin,
                                             const DirectTarget& target, int own_gpu);
  explicit DirectAccess(datatype::TypeInfoRef target_type) : target_type_(std::move(target_type)) {}
  /// An access that is complete.
  DirectAccess() : done_(true) {}
  DirectAccess(const DirectAccess&) = delete;
  DirectAccess& operator=(const DirectAccess&) = delete;

  /// Whether the access is complete at the origin and at the target. Thread-safe.
  bool done();
  /// An MPI error class; only after done().
  int error() const { return error_; }

 private:
  bool prepare(const char* call, Kind kind, const Origin& origin, const DirectTarget& target, int own_gpu);
  void unpack() const;
  device::UserData data() const { return staging_ ? device::UserData{} : user_data(origin_); }

  DeviceBuffer origin_;  ///< in host memory if there is staging memory
  device::Staging staging_;
  bool unpacks_ = false;  ///< the host unpacks when the data are in the staging memory
  datatype::TypeInfoRef target_type_, byte_ = datatype::type_info(MPI_BYTE);
  device::Mapping mapping_;
  std::atomic<bool> done_{false};
  int error_ = MPI_SUCCESS;
  Mutex mutex_;
  device::Transfer transfer_ GUARDED_BY(mutex_);  // after what it uses
};
using DirectAccessRef = std::shared_ptr<DirectAccess>;

/// The accesses by GPUs to a window that the program has not synchronised yet.
class DirectAccesses {
 public:
  explicit DirectAccesses(std::size_t ranks) : errors_(ranks, MPI_SUCCESS) {}
  /// `with_request`: the request reports the error of the access.
  void add(int rank, DirectAccessRef access, bool with_request);
  /// Waits for the accesses to `rank` up to now, and drives the engine meanwhile. Returns the first error since the
  /// last call of this function.
  int finish(int rank);

 private:
  struct Entry {
    int rank;
    bool with_request;
    DirectAccessRef access;
  };
  void remove_done() REQUIRES(mutex_);

  Mutex mutex_;
  std::vector<Entry> entries_ GUARDED_BY(mutex_);
  std::vector<int> errors_ GUARDED_BY(mutex_);  ///< by rank
};

}  // namespace gpudt::interpose
