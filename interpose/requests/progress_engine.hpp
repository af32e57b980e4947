// The engine that drives all operations (operation.hpp), as its two sources see it: progress_engine.cpp moves
// operations from packing to issued to unpacking to done, one thread at a time; operation.cpp has what the wrappers ask
// of it.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "interpose/requests/operation.hpp"
#include "interpose/requests/watched.hpp"

namespace gpudt::interpose {

struct ChannelHash {
  std::size_t operator()(const SendChannel& channel) const {
    return std::hash<MPI_Comm>()(channel.comm) * 31 + std::hash<int>()(channel.peer);
  }
};

/// The deferred sends of a channel, by their numbers: up to `submitted` they have been made, up to `issued` MPI has
/// them.
struct Deferred {
  std::uint64_t submitted;
  std::uint64_t issued;
};

class ProgressEngine {
 public:
  int reserve(Operation* operation);
  void submit(Operation* operation, bool issued);
  /// Gives MPI a send. Returns what the function that sends it has returned; none calls an error handler for
  /// hidden_send().
  static int give(Operation& operation);
  void remove(Operation* operation);
  void retire(Operation* operation);
  int progress(Tests tests = Tests::some);
  void settle();
  void order(const SendChannel& channel);
  template <class Wanted>
  void order_each(Wanted wanted);
  void forget_comm(MPI_Comm comm);
  void forget_win(MPI_Win win);
  ErrorOwner owner(const Operation& operation);
  void serve(EngineService service);
  void serve(const EngineBackground* background);
  const char* hook();
  bool stop();
  bool pending() const {
    return live_.load(std::memory_order_acquire) != 0 || service_.load(std::memory_order_relaxed) != nullptr ||
           retired_.load(std::memory_order_relaxed) != nullptr || watched_wanted();
  }
  bool defers() const { return deferred_.load(std::memory_order_acquire) != 0; }
  bool defers(const SendChannel& channel);
  bool has_background() const { return background_.load(std::memory_order_relaxed) != nullptr; }
  int live() const { return live_.load(std::memory_order_relaxed); }

  /// Whether this thread runs the engine.
  static inline constinit thread_local bool inside = false;

 private:
  int pass(Tests tests);
  void let_pass_end();
  void take_incoming();
  void make_room() REQUIRES(mutex_);
  int issue_packed();
  void issue(Operation* operation);
  void watch(Operation* operation);
  void follow_up(Operation* operation);
  int test_inner(Tests tests);
  int test_while_some_end();
  int test_next_window();
  void inner_completed(Operation* operation, const MPI_Status& status, int error) noexcept;
  void read_outcome(Operation* operation, const MPI_Status& status);
  void release_sender(const Operation& operation) noexcept;
  void take_arrived(Operation* operation);
  bool advance_unpacking(Operation* operation);
  void start_unpack(Operation* operation, std::int64_t bytes);
  int finish_unpacked();
  int look_at_watched(Tests tests);
  void complete(Operation* operation);
  void cancel_wanted();
  bool only_receives() const;
  void cancel_receives(bool on_device);
  void issued(const Operation& operation);
  bool is_issued(const SendChannel& channel, std::uint64_t number);
  void release_retired();

  std::atomic<int> live_{0};
  std::atomic<int> deferred_{0};  ///< sends that MPI has not been given yet
  std::atomic<bool> busy_{false};
  std::atomic<int> cancels_{0};
  std::atomic<EngineService> service_{nullptr};
  std::atomic<const EngineBackground*> background_{nullptr};
  std::atomic<Operation*> retired_{nullptr};  ///< whose generalized requests are gone; a list

  Mutex mutex_;                                            // also of the owners of all operations that are reserved
  std::vector<Operation*> operations_ GUARDED_BY(mutex_);  // all that have a generalized request
  std::vector<std::pair<Operation*, bool>> incoming_ GUARDED_BY(mutex_);
  std::unordered_map<SendChannel, Deferred, ChannelHash> deferred_by_channel_ GUARDED_BY(mutex_);
  std::uint64_t last_number_ GUARDED_BY(mutex_) = 0;  // of deferred sends

  // Touched only by the thread that holds busy_. Of these vectors each has room for all operations that are taken
  // (make_room()), so that none gets lost on its way for want of memory.
  std::deque<Operation*> packing_;
  std::vector<MPI_Request> inner_;
  std::vector<Operation*> inner_operations_;
  std::size_t window_ = 0;
  std::vector<Operation*> unpacking_;
  int truncated_ = 0;  ///< of these, since they were looked at last
  int reading_ = 0;    ///< operations in unpacking_ with Operation::reading
};

extern ProgressEngine& engine;

}  // namespace gpudt::interpose
