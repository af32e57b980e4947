// Accesses with device buffers to windows that MPI serves itself, between the call and the synchronisation that
// completes them.
//
// The data of a put are packed while the program continues; the synchronising call gives them to MPI. MPI gets all
// other accesses at once, with staging memory; the synchronising call unpacks what they have fetched.
#pragma once

#include <mpi.h>

#include <atomic>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "interpose/requests/kept_type.hpp"
#include "interpose/requests/operation.hpp"
#include "interpose/rma/access.hpp"
#include "interpose/support/errors.hpp"

namespace gpudt::interpose {

class PendingAccess {
 public:
  explicit PendingAccess(int rank) : rank_(rank) {}
  PendingAccess(const PendingAccess&) = delete;
  PendingAccess& operator=(const PendingAccess&) = delete;
  virtual ~PendingAccess() = default;

  int rank() const { return rank_; }
  /// To be called before MPI synchronises. Returns an MPI error code; may throw device::Error.
  virtual int issue(MPI_Win) { return MPI_SUCCESS; }
  /// To be called after MPI has synchronised: these start the unpacking, and wait for its end. May throw device::Error.
  virtual void start_finish() {}
  virtual void finish() {}
  /// True once the access has been completed elsewhere, by its request.
  virtual bool over() const { return false; }

 private:
  friend class PendingAccesses;
  const int rank_;
  std::atomic<bool> claimed_{false};  ///< by a thread that synchronises
  std::atomic<bool> finished_{false};
};

class PendingAccesses {
 public:
  void add(MPI_Win win, std::shared_ptr<PendingAccess> access);
  /// Drops the accesses to a window that has been freed.
  void forget(MPI_Win win);
  void clear();

  /// Runs `pmpi`, a call that completes the accesses of `win` to `rank`, and completes them.
  template <class Sync>
  int synchronise(const char* call, MPI_Win win, int rank, Sync pmpi) {
    if (count_.load(std::memory_order_acquire) == 0) return pmpi();
    return guarded(OfWindow{win}, call, [&] {
      const Claim claim(*this, win, rank);
      // MPI synchronises whatever happened to the accesses: the other ranks wait for it.
      const int issued = claim.issue(call);
      const int code = pmpi();
      if (code != MPI_SUCCESS) return code;
      claim.finish();
      return issued;
    });
  }

 private:
  using List = std::vector<std::shared_ptr<PendingAccess>>;

  /// The accesses of one synchronising call: those it completes itself, and those another thread is completing.
  class Claim {
   public:
    Claim(PendingAccesses& all, MPI_Win win, int rank);
    ~Claim();
    Claim(const Claim&) = delete;
    Claim& operator=(const Claim&) = delete;
    int issue(const char* call) const;  ///< issues all accesses and returns the first error
    void finish() const;

   private:
    PendingAccesses& all_;
    MPI_Win win_;
    List mine_, theirs_;
  };

  void remove_finished(MPI_Win win);

  Mutex mutex_;
  std::unordered_map<MPI_Win, List> pending_ GUARDED_BY(mutex_);
  std::atomic<int> count_{0};
};

extern PendingAccesses& pending_accesses;

/// A put whose data are being packed.
std::shared_ptr<PendingAccess> pending_put(const DeviceBuffer& operand, const Target& target);
/// An access that MPI has got, with the staged buffers.
std::shared_ptr<PendingAccess> pending_result(int rank, std::shared_ptr<CallPayload> buffers);
/// An access that has a request (MPI_Rput and others); synchronisation completes it as well.
std::shared_ptr<PendingAccess> pending_request(int rank, const std::shared_ptr<Payload>& buffers);

}  // namespace gpudt::interpose
