// The program's streams (MPIX_Stream), the communicators on which it enqueues in them, and what it has enqueued.
#pragma once

#include <mpi.h>

#include <atomic>
#include <deque>
#include <memory>
#include <vector>

#include "base/mutex.hpp"
#include "interpose/streams/enqueued_call.hpp"
#include "interpose/support/errors.hpp"

namespace gpudt::interpose {

/// A stream of a GPU.
class ProgramStream {
 public:
  /// `handle`: the CUDA stream. Readies its GPU. Throws device::Error.
  explicit ProgramStream(void* handle);

  int gpu() const { return gpu_; }
  /// Whether it is being captured into a graph.
  bool is_captured() const { return device::is_captured(gpu_, handle_); }
  /// Lets the stream tell of the call when it comes here and, if `waits`, wait until it is complete. `call`: new; the
  /// stream shares it from now on. Throws device::Error, std::bad_alloc and, after abandon(), MpiError: then the stream
  /// does not come to it.
  void enqueue(EnqueuedCall* call, bool waits);
  /// Lets the stream wait for calls that it has been given before. Throws device::Error, and MpiError if it is being
  /// captured and the graphs of a call are gone.
  void wait_for(const std::vector<EnqueuedCall*>& calls);

  // For the thread that carries out the calls.
  /// Takes over what has been enqueued since the last time.
  void take_incoming();
  /// Notes to which calls that have begun early the stream has come. Whether to any.
  bool pass_early();
  /// A call that the stream has come to and that has not begun; null: there is none now. Calls that are returned twice
  /// at a time are in graphs, launched anew.
  EnqueuedCall* next_begun();
  /// A call that may begin early, as all before it have begun; null: there is none now.
  EnqueuedCall* next_early();
  /// Forgets calls whose graphs are gone. Returns how many.
  int forget_graphs();
  bool empty() const { return plain_.empty() && in_graphs_.empty(); }
  bool has_plain() const { return !plain_.empty(); }
  /// The lowest number of a call to which the stream has not come, or that is in a graph; `otherwise` if there is none.
  std::uint64_t first_number(std::uint64_t otherwise) const;
  bool has_graphs() const { return !in_graphs_.empty(); }
  /// Opens all gates and forgets the calls, since MPI ends; those that have begun early fail. Returns the number of
  /// calls to which the stream had not come, those in graphs apart.
  int abandon();

 private:
  void keep(EnqueuedCall* call);
  void share(EnqueuedCall* call);

  void* const handle_;
  const int gpu_;
  Mutex enqueuing_
      ACQUIRED_BEFORE(mutex_);  ///< held while something is put into the stream, perhaps until there is room for it
  Mutex mutex_;
  EnqueuedCall* first_incoming_ GUARDED_BY(mutex_) = nullptr;  ///< a list in order
  EnqueuedCall* last_incoming_ GUARDED_BY(mutex_) = nullptr;
  std::atomic<bool> has_incoming_{false};
  std::atomic<bool> abandoned_{false};
  // Only for the thread.
  std::deque<EnqueuedCall*> plain_;  ///< that the stream has not come to, in order: first those that have begun early
  std::vector<EnqueuedCall*> in_graphs_;
};

Mutex& outcome_mutex();

/// Makes a handle of MPIX_Stream, or finds the stream of one; null if it is none of ours.
int make_stream_handle(std::shared_ptr<ProgramStream> stream);
std::shared_ptr<ProgramStream> find_stream(int handle);
/// False if the handle is none of ours.
bool forget_stream_handle(int handle);

/// Lets the process enqueue on `comm`.
void attach_stream(MPI_Comm comm, std::shared_ptr<ProgramStream> stream);
/// Lets it enqueue accesses to `*win`, if that has been made on `comm`, where it can enqueue. Returns `code`, of the
/// call that was to make it.
int attach_if(int code, const MPI_Win* win, MPI_Comm comm);
/// Null if the communicator or window has no stream.
std::shared_ptr<StreamComm> find_stream_comm(MPI_Comm comm);
std::shared_ptr<StreamComm> find_stream_comm(OfWindow window);
/// The same; the process cannot enqueue on it any more.
std::shared_ptr<StreamComm> detach_stream(MPI_Comm comm);
std::shared_ptr<StreamComm> detach_stream(OfWindow window);
/// All of them.
std::vector<std::shared_ptr<StreamComm>> stream_comms();

}  // namespace gpudt::interpose
