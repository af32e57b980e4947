// Nonblocking receives into host memory that may get an RTS. The program's request is MPI's own, because an RTS rarely
// arrives there, and programs post such receives by the thousand. A receive is checked once it is complete: by the call
// that completes it or, once a process has offered this one a message (peer_was_offered()), by the engine. If an RTS
// may have arrived, or the message was too long, the receive becomes an operation (operation.hpp). The operation's
// generalized request stands for the program's in calls that complete it; the program's own stays until then, so that
// MPI does not reuse its handle.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/function_ref.hpp"
#include "datatype/decode.hpp"
#include "interpose/engine/engine.hpp"
#include "interpose/support/errors.hpp"
#include "interpose/transport/payload.hpp"
#include "interpose/transport/peer/peer.hpp"

namespace gpudt::interpose {

struct Operation;

/// The program's buffer, in host memory.
struct WatchedBuffer {
  Outgoing program{};
  datatype::TypeInfoRef info{};  ///< null for a basic type, until a message has arrived
  std::int64_t bytes = 0;
  std::shared_ptr<ReceiveWithRoom> with_room{};  ///< the larger memory that MPI has been given instead, or null
};

class WatchedReceive {
 public:
  enum class State : std::uint8_t {
    pending,   ///< as far as is known
    ended,     ///< nothing is left to do: after remove() MPI may complete the program's request
    replaced,  ///< stand_in() is to be completed first
    given_up,  ///< the program has freed its request, which the engine completes
  };

  /// `place`: index in the list of all.
  WatchedReceive(MPI_Request request, WatchedBuffer&& buffer, const ErrorOwner& owner, std::size_t place)
      : request_(request), place_(place), buffer_(std::move(buffer)), owner_(owner) {}
  /// Checks whether the receive is complete. `drives`: MPI makes progress if it is not. May throw std::bad_alloc and
  /// MpiError; then it is still pending.
  State look(bool drives);
  /// Returns when it is pending no more.
  State wait();
  MPI_Request stand_in() const { return stand_in_; }
  /// Destroys the object: before MPI completes the program's request or, if that has been replaced, after
  /// the stand-in has been completed; then this frees the request.
  void remove();
  /// MPI_Request_free. May throw std::bad_alloc and MpiError.
  int free(MPI_Request* request);

 private:
  friend class WatchedReceives;
  friend int watched_look(Tests tests, bool waits);
  friend void watched_forget_comm(MPI_Comm comm);
  class Looking;
  State look_alone(bool drives);
  State look_on_the_way();
  bool may_be_complete() const;
  void let_looks_end() const;
  void resolve(int code, const MPI_Status& status);
  void replace(int code, const MPI_Status& status, std::int64_t bytes, bool cancelled);
  bool is_settled(std::int64_t bytes) const;
  std::unique_ptr<Operation> as_operation(const MPI_Status* status = nullptr) const;
  bool shares_buffer_with(const WatchedBuffer& other) const;
  void forget_comm(MPI_Comm comm, const std::shared_ptr<const KeptHandler>& kept);

  const MPI_Request request_;
  MPI_Request stand_in_ = MPI_REQUEST_NULL;
  std::atomic<State> state_{State::pending};
  std::atomic<bool> looking_{false};  ///< a thread checks it
  /// Another was pending for the same data. MPI forbids that, but programs that measure do so: then what is found there
  /// may be another's RTS.
  std::atomic<bool> shares_buffer_{false};
  std::size_t place_;
  WatchedBuffer buffer_;
  ErrorOwner owner_;
};

/// Has `pmpi` start a receive into `into`, which is the program's buffer or memory in its place. Returns an MPI error
/// code. May throw std::bad_alloc, before MPI has the receive.
int watched_start(FunctionRef<int(const Outgoing& into, MPI_Request* request)> pmpi, const Outgoing& into,
                  WatchedBuffer&& buffer, const ErrorOwner& owner, const Selects& selects, MPI_Request* request);

extern std::atomic<int> watched_receives;  ///< places that are reserved or in use
inline int watched_count() {
  return watched_receives.load(std::memory_order_relaxed);
}
/// Whether the engine is to check watched receives.
inline bool watched_wanted() {
  return watched_count() != 0 && peer_was_offered();
}
/// The watched receive of `request`; null if there is none.
WatchedReceive* watched_find(MPI_Request request);
/// For the engine: checks some, or all, that are pending. Returns how many have been replaced. `waits`: waits for those
/// that other threads check, instead of skipping them; not within a check.
int watched_look(Tests tests, bool waits = false);
/// The handle `comm` is about to become invalid.
void watched_forget_comm(MPI_Comm comm);
/// At MPI_Finalize: forgets all of them.
void watched_stop();

/// A request that is never complete, for calls that complete some of several. Throws MpiError.
MPI_Request never_complete();

}  // namespace gpudt::interpose
