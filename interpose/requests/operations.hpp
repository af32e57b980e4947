// All operations (operation.hpp), as their two sources see them: operations.cpp moves them from packing to issued to
// unpacking to done, when the engine polls them; operation.cpp has the functions for the wrappers.
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
#include "interpose/engine/engine.hpp"
#include "interpose/engine/polled_list.hpp"
#include "interpose/engine/request_set.hpp"
#include "interpose/requests/operation.hpp"
#include "interpose/requests/watched.hpp"

namespace gpudt::interpose {

struct ChannelHash {
  std::size_t operator()(const SendChannel& channel) const {
    return std::hash<MPI_Comm>()(channel.comm) * 31 + std::hash<int>()(channel.peer);
  }
};

/// The numbers of the last deferred send of a channel that has been submitted, and of the last that MPI has been given.
struct Deferred {
  std::uint64_t submitted;
  std::uint64_t issued;
};

/// Submitted operations that the engine has not taken yet, in order of submission.
class Incoming {
 public:
  Operation* first() const { return first_; }
  std::size_t size() const { return size_; }
  void push(Operation* operation) {
    (first_ == nullptr ? first_ : last_->next_incoming) = operation;
    last_ = operation;
    ++size_;
  }
  void pop() {
    first_ = first_->next_incoming;
    --size_;
  }

 private:
  Operation *first_ = nullptr, *last_ = nullptr;
  std::size_t size_ = 0;
};

class Operations final : public Polled {
 public:
  int reserve(Operation* operation);
  void submit(Operation* operation, bool issued);
  /// Gives MPI a send. Returns the code of the function that sends it. hidden_send() calls no error handler.
  static int give(Operation& operation);
  /// Lets MPI make progress between the sends of a program that posts many before it waits.
  void make_progress_now_and_then();
  /// Lists the operation, so that forget_comm() finds it.
  void list(Operation* operation);
  void remove(Operation* operation);
  void retire(Operation* operation);
  bool due() override {
    return live_.load(std::memory_order_acquire) != 0 || retired_.load(std::memory_order_relaxed) != nullptr ||
           watched_wanted();
  }
  bool may_become_due() override { return due() || watched_count() != 0; }
  int poll(Tests tests) override;
  /// Returns when every message that has arrived and may be an RTS has been recognised.
  void settle() override;
  void order(const SendChannel& channel);
  template <class Wanted>
  void order_each(Wanted wanted);
  void forget_comm(MPI_Comm comm);
  void forget_win(MPI_Win win);
  ErrorOwner owner(const Operation& operation);
  RequestWay way_of(MPI_Request request);
  bool stop();
  bool defers() const { return deferred_.load(std::memory_order_acquire) != 0; }
  bool defers(const SendChannel& channel);
  int live() const { return live_.load(std::memory_order_relaxed); }

 private:
  void take_incoming();
  void enter_list(Operation* operation) REQUIRES(mutex_);
  void make_room() REQUIRES(mutex_);
  int issue_packed();
  int issue_packed(std::deque<Operation*>& queue);
  void issue(Operation* operation);
  void watch(Operation* operation);
  void follow_up(Operation* operation);
  void enter(Operation* operation);
  int test_inner(Tests tests);
  int inner_ended(const RequestSet<Operation*>::Ended& ended) noexcept;
  void read_outcome(Operation* operation, const MPI_Status& status);
  void note_lost(Operation* operation);
  void release_sender(const Operation& operation) noexcept;
  void recognise(Operation* operation);
  static void start(Operation* operation);
  void start_or_read_on(Operation* operation);
  void start_arrived();
  int look_for_lost();
  bool is_over(Operation* operation);
  bool is_over_or_failed(Operation* operation);
  int finish(PolledList<Operation*>& list, Tests tests);
  int finish(PolledList<Operation*>& list, const PolledList<Operation*>::Window& window);
  int look_at_watched(Tests tests);
  void complete(Operation* operation);
  void cancel_wanted();
  bool only_receives();
  void cancel_receives(bool on_device);
  void issued(const Operation& operation);
  bool is_issued(const SendChannel& channel, std::uint64_t number);
  void release_retired() {
    if (retired_.load(std::memory_order_relaxed) != nullptr) release_all_retired();
  }
  void release_all_retired();

  std::atomic<int> live_{0};
  std::atomic<int> deferred_{0};  ///< sends that MPI has not been given yet
  std::atomic<int> cancels_{0};
  std::atomic<int> given_{0};                 ///< sends that MPI has been given since the engine's last poll
  std::atomic<Operation*> retired_{nullptr};  ///< list: their generalized requests are freed

  Mutex mutex_;                                     // also guards the owners of all reserved operations
  Operation* listed_ GUARDED_BY(mutex_) = nullptr;  // list: the program holds their requests
  Incoming incoming_ GUARDED_BY(mutex_);
  std::unordered_map<SendChannel, Deferred, ChannelHash> deferred_by_channel_ GUARDED_BY(mutex_);
  std::uint64_t last_number_ GUARDED_BY(mutex_) = 0;  // of the deferred sends

  // Touched only by the thread that polls. Each of these but the first has room for all operations that are taken
  // (make_room()), so that moving one between them cannot fail for lack of memory.
  /// Sends that MPI has not been given yet, in program order for each peer.
  std::unordered_map<SendChannel, std::deque<Operation*>, ChannelHash> packing_;
  std::size_t in_packing_ = 0;  ///< number of sends in packing_
  RequestSet<Operation*> inner_;
  std::vector<Operation*> arrived_;  ///< Step::reading or Step::starting
  /// The others whose real operations have ended, or that have none: sends, which the receiver ends, and the rest.
  PolledList<Operation*> sending_, moving_;
  int lost_ = 0;     ///< operations that have got Step::lost since look_for_lost()
  int reading_ = 0;  ///< operations in arrived_ with Step::reading
};

extern Operations& operations;

}  // namespace gpudt::interpose
