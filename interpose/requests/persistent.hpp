// Persistent operations on device buffers (MPI-4.1 section 3.9).
//
// The user's handle is MPI's persistent request on the staging memory, but the user's MPI_Start never starts it
// directly: each start creates an operation (requests/operation.hpp) that starts the real one when its data is packed,
// and unpacks when it has completed. The completion calls exchange the handle for the started operation's generalized
// request and back.
#pragma once

#include <mpi.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.hpp"
#include "interpose/requests/operation.hpp"

namespace gpudt::interpose {

class PersistentOffer;  // collectives/persistent_offer.hpp

/// Guards the registry of persistent requests, and members of each.
extern Mutex persistent_mutex;

struct Persistent {
  Moved moved;
  const DeviceBuffer* operand = nullptr;  ///< the device buffer of a send or receive, owned by the payload; or null
  /// The communicator or, once the user has freed it, its error handler.
  ErrorOwner owner GUARDED_BY(persistent_mutex);
  std::thread::id starter GUARDED_BY(persistent_mutex);  ///< the thread that is starting it, if one is
  int peer = MPI_PROC_NULL;
  int tag = 0;
  NonblockingSend send = nullptr;
  MPI_Request real = MPI_REQUEST_NULL;     ///< on the staging memory; also the user's handle
  MPI_Request active = MPI_REQUEST_NULL;   ///< the generalized request while started
  std::shared_ptr<PersistentOffer> offer;  ///< of a collective whose starts GPUs may do
  bool has_answered = false;               ///< a start was offered and then failed: its repetition is not offered

  explicit Persistent(MPI_Comm comm) : owner{.comm = comm} {}
  Persistent(const Persistent&) = delete;
  Persistent& operator=(const Persistent&) = delete;
  ~Persistent() {
    if (real != MPI_REQUEST_NULL) PMPI_Request_free(&real);
  }
};

using PersistentRef = std::shared_ptr<Persistent>;

/// Registers a persistent request under its `real`, a persistent request of MPI's on the payload's memory, which is
/// also the handle for the user.
void persistent_enter(PersistentRef persistent);
/// Registers `real` as a persistent request of ours. Each start packs what `moved` sends, then starts `real`.
void persistent_adopt(Moved moved, MPI_Comm comm, MPI_Request real);
/// Null if `request` is none of ours.
PersistentRef persistent_find(MPI_Request request);
/// Unregisters and returns it. An active operation keeps it until it has completed. Null if `request` is none of ours.
PersistentRef persistent_remove(MPI_Request request);
/// Registers the request under the handle that MPI has given it in place of `before`.
void persistent_follow(const PersistentRef& persistent, MPI_Request before);

/// While it lives, the communicator of a persistent request that is being started stays: another thread that frees it
/// waits.
class PersistentStarting {
 public:
  explicit PersistentStarting(Persistent& persistent);
  ~PersistentStarting();
  PersistentStarting(const PersistentStarting&) = delete;
  PersistentStarting& operator=(const PersistentStarting&) = delete;
  const ErrorOwner& owner() const { return owner_; }

 private:
  Persistent& persistent_;
  ErrorOwner owner_;
};

/// The payload of `request`, a persistent one of ours; null if it is none.
std::shared_ptr<Payload> persistent_payload(MPI_Request request);
/// Whether it has been started, and no call has completed it yet.
bool persistent_active(MPI_Request request);

namespace detail {
extern std::atomic<int> persistent_requests;
}
/// Persistent requests of ours that exist.
inline int persistent_count() {
  return detail::persistent_requests.load(std::memory_order_relaxed);
}

/// Exchanges our persistent requests for what MPI is to see: the generalized request of a started one,
/// MPI_REQUEST_NULL for an inactive one. Sets `mine[i]` if requests[i] was exchanged; it has as many elements.
void persistent_exchange(std::vector<MPI_Request>& requests, std::vector<bool>& mine);

/// The started operation of `request` has completed and its generalized request is gone: inactive again.
void persistent_completed(MPI_Request request);

/// The handle `comm` is about to become invalid.
void persistent_forget_comm(MPI_Comm comm);

/// At MPI_Finalize: releases the persistent requests that the program has not freed.
void persistent_stop();

}  // namespace gpudt::interpose
