// A window that gpudt serves, because some process exposes device memory in it: the accesses of the origin, and the
// epochs in which they may be made. The origin's GPU makes an access if it reaches the memory (direct.hpp). Otherwise
// the access is a message to the target, which serves it (channel.hpp).
//
// The program's handle is an MPI window without memory, which has the name, attributes and error handler. It need not
// span all processes (calls/window.cpp).
#pragma once

#include <mpi.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "interpose/engine/engine.hpp"
#include "interpose/rma/access.hpp"
#include "interpose/rma/accumulate.hpp"
#include "interpose/rma/channel.hpp"
#include "interpose/rma/direct.hpp"
#include "interpose/rma/window_locks.hpp"
#include "interpose/support/errors.hpp"

namespace gpudt::interpose {

/// Memory that a process has attached to a dynamic window.
struct AttachedRegion {
  int rank;  ///< of that process, in the window
  bool on_gpu;
  std::uint64_t address;  ///< in that process
  std::int64_t size;      ///< bytes
  void* here;             ///< where a GPU of this process reaches it; null: not at all
};

/// Where such memory of others is mapped, by rank, address there and the id of its allocation.
using RegionMappings = std::map<std::tuple<int, std::uint64_t, std::uint64_t>, device::Mapping>;

class ServedWindow {
 public:
  /// Collective over `comm`. `win` belongs to the caller.
  ServedWindow(MPI_Win win, MPI_Comm comm, void* base, MPI_Aint size, int disp_unit);
  /// Makes a dynamic window. Collective over `comm`.
  ServedWindow(MPI_Win win, MPI_Comm comm);
  ServedWindow(const ServedWindow&) = delete;
  ServedWindow& operator=(const ServedWindow&) = delete;
  ~ServedWindow();

  // Accesses. An access with a request is complete when the request is, without one at the next synchronisation. Errors
  // go to the window's error handler and are returned.
  int put(const char* call, const Origin& origin, const Target& target, MPI_Request* request);
  int get(const char* call, const Origin& result, const Target& target, MPI_Request* request);
  int accumulate(const char* call, const Origin& origin, const Target& target, MPI_Op op, MPI_Request* request);
  int get_accumulate(const char* call, const Origin& origin, const Origin& result, const Target& target, MPI_Op op,
                     MPI_Request* request);
  int fetch_and_op(const void* origin, void* result, const Target& target, MPI_Op op);
  int compare_and_swap(const void* origin, const void* compare, void* result, const Target& target);

  int fence(int assert);
  int post(MPI_Group group, int assert);
  int start(MPI_Group group, int assert);
  int complete();
  int wait();
  int test(int* flag);
  int lock(int type, int rank, int assert);
  int unlock(int rank);
  int lock_all(int assert);
  int unlock_all();
  int flush(const char* call, int rank);        ///< or all_ranks
  int flush_local(const char* call, int rank);  ///< or all_ranks
  int sync();
  /// Waits until accesses with requests can be made to `rank`. Throws MpiError if none may.
  void expect_access(int rank);
  /// Number of accesses to `rank` up to now that it serves.
  std::uint64_t submitted(int rank) const { return channel_.submitted(rank); }
  /// Makes a request that is complete when these are, there too.
  int flush_later(const char* call, int rank, MPI_Request* request);

  int attach(void* base, MPI_Aint size);
  int detach(const void* base);

  const WindowMemory& memory() const { return memory_; }
  /// Sets `value` as MPI_Win_get_attr does in C, for predefined attributes that the handle has wrong. False for others.
  bool attribute(int keyval, void* value) const;
  /// Where the memory of `rank` (or of the first rank that has any: MPI_PROC_NULL) is for this process's GPU, as
  /// MPI_Win_shared_query answers since MPI-4.1: null, and a size of 0, if the GPU does not reach it. Valid until the
  /// window is freed. A process without device memory in the window reaches its own memory alone.
  int shared_query(int rank, MPI_Aint* size, int* disp_unit, void* address);
  /// Collective: appends what is attached to this dynamic window, by rank and address, as GPU `gpu` of this process
  /// reaches it. The addresses are valid until the memory is detached or the window freed.
  int regions(int gpu, std::vector<AttachedRegion>& found);
  /// How this process's GPU accesses the memory of rank `target`. No value: the GPU is not known. May map the memory.
  std::optional<Went> way_to(int target);
  /// The group of the window's processes, which the caller frees.
  int group(MPI_Group* group) const;
  /// Collective: returns when no access is under way, neither of this process nor of others.
  void settle();
  /// Called by the engine.
  int progress();
  /// After this, progress() does nothing; no call of it is running. The window must be settled.
  void close();

 private:
  enum class Lock {
    none,
    wanted,  ///< MPI_Win_lock_all was called; the first access acquires the lock
    asked,   ///< a thread is acquiring it
    held,
    unchecked,  ///< MPI_MODE_NOCHECK: no lock is needed
  };
  /// Runs `body`; an exception becomes an error of the window.
  template <class Body>
  int guard(const char* call, Body body) {
    return guarded(OfWindow{win_}, call, body);
  }
  /// Makes an access. `check()` lets MPI check the arguments, `build(operation)` adds the origin's data.
  template <class Check, class Build>
  int access(const char* call, MessageKind kind, const Target& target, MPI_Request* request, Check check, Build build);

  void tell_memory(int disp_unit);
  void* address_of(std::size_t rank);
  void forget_unreached();

  // Accesses.
  OriginOperationRef prepare(MessageKind kind, const Target& target, bool with_request);
  void may_access(int rank, bool with_request);
  std::int64_t displacement_in_bytes(const Target& target, const datatype::Layout& layout) const;
  int forbidden(const char* call, const OriginOperation& operation, std::int64_t bytes) const;
  const char* why_not_direct(std::size_t rank) const;
  bool none_served(int rank) const;
  int submit(const OriginOperationRef& operation, MPI_Request* request);
  bool start_direct(const char* call, DirectAccess::Kind kind, const Origin& origin, const Target& target,
                    OriginOperation& operation);

  bool accumulate_direct(const char* call, const AccumulateBuffers& buffers, const Target& target, MPI_Op op,
                         OriginOperation& operation);
  void get_and_combine(const char* call, const Origin& origin, const Origin& result, const Target& target, MPI_Op op,
                       OriginOperation& operation);

  // Synchronisation.
  OriginOperationRef tell(MessageKind kind, int rank, int lock_type = 0);
  static void wait_for(const OriginOperation& operation);
  void acquire(int rank, int type);
  int release(const std::vector<int>& ranks);
  int finish_direct(const std::vector<int>& ranks);
  int complete_at(MessageKind kind, const std::vector<int>& ranks);
  void wait_local(int rank);
  int flush_at(std::vector<int> ranks);
  int report(const char* call, int code) const;
  std::vector<int> ranks_of(MPI_Group group) const;
  std::vector<int> all() const;
  int marked_again();
  int end_exposure();
  bool exposure_over() const;
  void check_rank(int rank) const;
  std::vector<int> passive_targets(int rank) const;

  MPI_Win win_;
  MPI_Aint size_ = 0;
  int flavor_;
  WindowMemory memory_;
  std::optional<OwnWindowLock> own_lock_;  // destroyed after what uses it
  WindowChannel channel_;
  std::vector<Exposed> exposed_;  ///< by rank; empty for a dynamic window
  std::vector<int> world_ranks_;  ///< by rank; negative: the process does not share memory with this one
  /// The locks in shared memory, if all processes share it; otherwise locks are taken by messages.
  std::optional<WindowLocks> node_locks_;
  DirectAccesses direct_;
  int own_rank_ = MPI_PROC_NULL;
  int own_gpu_ = -1;  ///< the GPU with this process's window memory; negative: none
  std::vector<device::Mapping> queried_ GUARDED_BY(mutex_);  ///< by rank; of which shared_query() has told addresses

  std::map<int, RegionMappings> attached_ GUARDED_BY(mutex_);  ///< by GPU; what regions() has told last

  Mutex service_mutex_;  ///< held by progress()
  bool closed_ GUARDED_BY(service_mutex_) = false;

  mutable Mutex mutex_;
  bool fence_open_ GUARDED_BY(mutex_) = false;
  bool lock_all_ GUARDED_BY(mutex_) = false;
  std::vector<Lock> locks_ GUARDED_BY(mutex_);
  std::optional<std::vector<int>> targets_ GUARDED_BY(mutex_);  ///< between start and complete
  std::optional<std::vector<int>> origins_ GUARDED_BY(mutex_);  ///< between post and wait
  std::vector<int> posts_used_;                                 ///< used by the only thread that may call MPI_Win_start
  std::vector<int> completes_used_ GUARDED_BY(mutex_);
};

}  // namespace gpudt::interpose
