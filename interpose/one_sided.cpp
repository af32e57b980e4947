// MPI-4.1 chapter 12: Put and Rput from device memory, and the synchronisation calls that complete them.
//
// A Put starts its pack and returns. The call that synchronises the window hands all packed data to MPI, lets MPI
// synchronise, and then gives the staging memory back.
#include "interpose/one_sided.hpp"

#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "interpose/errors.hpp"
#include "interpose/export.hpp"
#include "interpose/operation.hpp"

namespace gpudt::interpose {
namespace {

/// A datatype argument kept until a deferred call: the program may free its own handle meanwhile.
class KeptType {
 public:
  explicit KeptType(MPI_Datatype type) : type_(type) {
    int integers = 0, addresses = 0, types = 0, combiner = MPI_COMBINER_NAMED;
    PMPI_Type_get_envelope(type, &integers, &addresses, &types, &combiner);
    owned_ = combiner != MPI_COMBINER_NAMED;
    if (owned_) PMPI_Type_dup(type, &type_);
  }
  KeptType(KeptType&& other) noexcept : type_(other.type_), owned_(std::exchange(other.owned_, false)) {}
  KeptType(const KeptType&) = delete;
  KeptType& operator=(const KeptType&) = delete;
  ~KeptType() {
    if (owned_) PMPI_Type_free(&type_);
  }
  MPI_Datatype get() const { return type_; }

 private:
  MPI_Datatype type_;
  bool owned_;
};

struct Target {
  int rank;
  MPI_Aint displacement;
  int count;
  MPI_Datatype type;
};

struct PendingPut {
  std::unique_ptr<Staged> staged;
  Target target;
  KeptType type;
  bool issued = false;
};

constexpr int all_ranks = -1;

/// The puts of each window between two synchronisations.
class Windows {
 public:
  void add(MPI_Win win, PendingPut put) {
    const std::lock_guard<std::mutex> lock(mutex_);
    pending_[win].push_back(std::make_unique<PendingPut>(std::move(put)));
    count_.fetch_add(1);
  }
  void clear() {
    const std::lock_guard<std::mutex> lock(mutex_);
    pending_.clear();
    count_.store(0);
  }
  bool none() const { return count_.load(std::memory_order_acquire) == 0; }

  /// Gives the packed data for `rank` to MPI. Returns the first error, after all puts have had their turn.
  int issue(MPI_Win win, int rank) {
    int result = MPI_SUCCESS;
    for (PendingPut* put : select(win, rank)) {
      if (put->issued) continue;
      put->issued = true;
      const int code = guarded(win, "MPI_Put", [&] { return issue(*put, win); });
      if (result == MPI_SUCCESS) result = code;
    }
    return result;
  }

  /// Lets go of what MPI has completed for `rank`.
  void release(MPI_Win win, int rank) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto entry = pending_.find(win);
    if (entry == pending_.end()) return;
    const auto gone = std::erase_if(entry->second, [&](const std::unique_ptr<PendingPut>& put) {
      return put->issued && (rank == all_ranks || put->target.rank == rank);
    });
    count_.fetch_sub(static_cast<int>(gone));
    if (entry->second.empty()) pending_.erase(entry);
  }

 private:
  /// Pointers stay valid without the lock: only the synchronising call itself removes entries of its rank.
  std::vector<PendingPut*> select(MPI_Win win, int rank) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<PendingPut*> chosen;
    const auto entry = pending_.find(win);
    if (entry == pending_.end()) return chosen;
    for (const auto& put : entry->second)
      if (rank == all_ranks || put->target.rank == rank) chosen.push_back(put.get());
    return chosen;
  }

  static int issue(PendingPut& put, MPI_Win win) {
    put.staged->wait();
    const Operand& operand = put.staged->operand();
    return PMPI_Put(put.staged->data(), static_cast<int>(operand.count), operand.twin(), put.target.rank,
                    put.target.displacement, put.target.count, put.type.get(), win);
  }

  std::mutex mutex_;
  std::unordered_map<MPI_Win, std::vector<std::unique_ptr<PendingPut>>> pending_;
  std::atomic<int> count_{0};
};

Windows windows;

/// MPI's own verdict on everything but the data: handles, ranks, types and the state of the epoch.
int check_put(const Operand& operand, const Target& target, MPI_Win win) {
  return PMPI_Put(nullptr, 0, operand.twin(), target.rank, target.displacement, 0, target.type, win);
}

int put(const void* origin, int count, MPI_Datatype type, const Target& target, MPI_Win win) {
  Operand operand;
  if (target.rank == MPI_PROC_NULL || !resolve(origin, count, type, "MPI_Put", operand))
    return PMPI_Put(origin, count, type, target.rank, target.displacement, target.count, target.type, win);
  if (const int code = check_put(operand, target, win)) return code;
  auto staged = std::make_unique<Staged>(operand);
  staged->start_pack();
  windows.add(win, PendingPut{std::move(staged), target, KeptType(target.type)});
  return MPI_SUCCESS;
}

int rput(const void* origin, int count, MPI_Datatype type, const Target& target, MPI_Win win, MPI_Request* request) {
  Operand operand;
  if (target.rank == MPI_PROC_NULL || !resolve(origin, count, type, "MPI_Rput", operand))
    return PMPI_Rput(origin, count, type, target.rank, target.displacement, target.count, target.type, win, request);
  auto operation = std::make_unique<Operation>();
  const auto staged = std::make_shared<Staged>(operand);
  operation->payload = staged;
  staged->start_pack();
  staged->wait();
  const int code = PMPI_Rput(staged->data(), count, operand.twin(), target.rank, target.displacement, target.count,
                             target.type, win, &operation->inner);
  if (code != MPI_SUCCESS) return code;
  return engine_submit(operation.release(), /*issued=*/true, request);
}

/// Wraps a call that completes the window's operations towards `rank`.
template <class Sync>
int synchronise(const char* call, MPI_Win win, int rank, Sync pmpi) {
  if (windows.none()) return pmpi();
  return guarded(win, call, [&] {
    // MPI synchronises whatever happened to the puts: the other ranks wait for it.
    const int issued = windows.issue(win, rank);
    const int code = pmpi();
    if (code == MPI_SUCCESS) windows.release(win, rank);
    return issued == MPI_SUCCESS ? code : issued;
  });
}

}  // namespace

void one_sided_stop() {
  windows.clear();
}

}  // namespace gpudt::interpose

using namespace gpudt::interpose;

GPUDT_EXPORT int MPI_Put(const void* origin, int count, MPI_Datatype type, int rank, MPI_Aint displacement,
                         int target_count, MPI_Datatype target_type, MPI_Win win) {
  return guarded(win, "MPI_Put", [&] {
    return put(origin, count, type, {rank, displacement, target_count, target_type}, win);
  });
}

GPUDT_EXPORT int MPI_Rput(const void* origin, int count, MPI_Datatype type, int rank, MPI_Aint displacement,
                          int target_count, MPI_Datatype target_type, MPI_Win win, MPI_Request* request) {
  return guarded(win, "MPI_Rput", [&] {
    return rput(origin, count, type, {rank, displacement, target_count, target_type}, win, request);
  });
}

GPUDT_EXPORT int MPI_Win_fence(int assert, MPI_Win win) {
  return synchronise("MPI_Win_fence", win, all_ranks, [&] { return PMPI_Win_fence(assert, win); });
}
GPUDT_EXPORT int MPI_Win_complete(MPI_Win win) {
  return synchronise("MPI_Win_complete", win, all_ranks, [&] { return PMPI_Win_complete(win); });
}
GPUDT_EXPORT int MPI_Win_unlock(int rank, MPI_Win win) {
  return synchronise("MPI_Win_unlock", win, rank, [&] { return PMPI_Win_unlock(rank, win); });
}
GPUDT_EXPORT int MPI_Win_unlock_all(MPI_Win win) {
  return synchronise("MPI_Win_unlock_all", win, all_ranks, [&] { return PMPI_Win_unlock_all(win); });
}
GPUDT_EXPORT int MPI_Win_flush(int rank, MPI_Win win) {
  return synchronise("MPI_Win_flush", win, rank, [&] { return PMPI_Win_flush(rank, win); });
}
GPUDT_EXPORT int MPI_Win_flush_all(MPI_Win win) {
  return synchronise("MPI_Win_flush_all", win, all_ranks, [&] { return PMPI_Win_flush_all(win); });
}
GPUDT_EXPORT int MPI_Win_flush_local(int rank, MPI_Win win) {
  return synchronise("MPI_Win_flush_local", win, rank, [&] { return PMPI_Win_flush_local(rank, win); });
}
GPUDT_EXPORT int MPI_Win_flush_local_all(MPI_Win win) {
  return synchronise("MPI_Win_flush_local_all", win, all_ranks, [&] { return PMPI_Win_flush_local_all(win); });
}
GPUDT_EXPORT int MPI_Win_free(MPI_Win* win) {
  const MPI_Win freed = *win;
  return synchronise("MPI_Win_free", freed, all_ranks, [&] { return PMPI_Win_free(win); });
}

// A window over device memory would crash in MPI at the first access from another rank.
GPUDT_EXPORT int MPI_Win_create(void* base, MPI_Aint size, int disp_unit, MPI_Info info, MPI_Comm comm, MPI_Win* win) {
  if (size > 0 && active.load() && gpudt::device::classify(base).on_device())
    return fail(comm, "MPI_Win_create", MPI_ERR_BASE,
                "argument base is device memory; windows over device memory are not supported: use host memory "
                "for the window (the origin of MPI_Put and MPI_Rput may be device memory)");
  return PMPI_Win_create(base, size, disp_unit, info, comm, win);
}
