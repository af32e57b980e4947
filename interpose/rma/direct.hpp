// Accesses to windows by this process's own GPU, which reaches device memory of other processes of the node: one kernel
// from the origin's layout to the target's, or back. The target has no part in it and need not call MPI.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "base/mutex.hpp"
#include "datatype/decode.hpp"
#include "interpose/rma/access.hpp"
#include "interpose/rma/data.hpp"

namespace gpudt::interpose {

/// What a process tells the others of its memory in a window. Plain data.
struct Exposed {
  std::int64_t size;  ///< bytes
  std::int64_t disp_unit;
  std::uint64_t base;   ///< in its own address space
  std::int32_t lock;    ///< which of the locks in its segment; negative: none
  std::int32_t on_gpu;  ///< 1: all of it is in `memory`
  device::Exported memory;
};

/// This process's. What must come after work in default streams is not for others to access: on_gpu is 0.
Exposed expose(void* base, MPI_Aint size, int disp_unit, int lock);

/// Where an access goes.
struct DirectTarget {
  const Exposed& memory;
  int world_rank;  ///< of the process whose it is
  const datatype::TypeInfoRef& type;
  std::int64_t count;
  std::int64_t displacement;  ///< in bytes

  /// Where the access begins, as a GPU of this process finds it.
  void* address(const device::Mapping& mapping) const {
    return mapping.at(memory.base + static_cast<std::uint64_t>(displacement));
  }
};

/// The target's memory for GPU `ordinal`; empty if it does not reach it. Throws device::Error.
device::Mapping reach(const char* call, int ordinal, const DirectTarget& target);

/// An access that a GPU of this process makes.
class DirectAccess {
 public:
  enum class Kind { put, get };
  /// Null if no GPU of this process can make it: that of the origin's device memory, or `own_gpu`, if it is not
  /// negative, for host memory, by way of staging memory. Throws device::Error.
  static std::shared_ptr<DirectAccess> start(const char* call, Kind kind, const Origin& origin,
                                             const DirectTarget& target, int own_gpu);
  explicit DirectAccess(datatype::TypeInfoRef target_type) : target_type_(std::move(target_type)) {}
  /// One that is done.
  DirectAccess() : done_(true) {}
  DirectAccess(const DirectAccess&) = delete;
  DirectAccess& operator=(const DirectAccess&) = delete;

  /// Both sides' data are where they belong. Thread-safe.
  bool done();
  /// An MPI error class, once it is done.
  int error() const { return error_; }

 private:
  bool prepare(const char* call, Kind kind, const Origin& origin, const DirectTarget& target, int own_gpu);
  void unpack() const;

  DeviceBuffer origin_;  ///< in host memory if there is staging memory
  device::Staging staging_;
  bool unpacks_ = false;  ///< when the data have come to the staging memory
  datatype::TypeInfoRef target_type_, byte_ = datatype::type_info(MPI_BYTE);
  device::Mapping mapping_;
  std::atomic<bool> done_{false};
  int error_ = MPI_SUCCESS;
  Mutex mutex_;
  device::Transfer transfer_ GUARDED_BY(mutex_);  // after what it uses
};
using DirectAccessRef = std::shared_ptr<DirectAccess>;

/// Those of a window that the program has not synchronised yet.
class DirectAccesses {
 public:
  explicit DirectAccesses(std::size_t ranks) : errors_(ranks, MPI_SUCCESS) {}
  /// `with_request`: its error is the request's.
  void add(int rank, DirectAccessRef access, bool with_request);
  /// Returns when those to `rank` so far are done, driving the engine meanwhile: the first error of any since this was
  /// asked last.
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
